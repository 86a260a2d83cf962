"""A drafter that follows a session and is asked for nothing."""

import pytest

from specmesh.core import events as ev
from specmesh.core.drafting.standby import SYNC_INTERVAL, Standby
from specmesh.core.prefix import Prefix
from specmesh.core.truth_sender import TELL_EVERY

PROMPT = (5, 6, 7)


def grown(count: int) -> Prefix:
    """The prompt and so many ids more, 0, 1, 2, ..."""
    return Prefix((*PROMPT, *range(count)))


def shadow(prefix: Prefix, base: int, *ids: int) -> ev.Shadowed:
    return ev.Shadowed(base, prefix.crc_at(base), ids)


def test_it_is_told_the_text_in_large_pieces():
    """All that there is at first, then every TELL_EVERY ids, and at the end the rest; no drafts are asked for."""
    prefix = grown(0)
    standby = Standby(prefix, 0.0)
    assert standby.begin(0.0) == ev.SendSync(0, 0, PROMPT, 0)
    prefix.extend(range(TELL_EVERY - 1))
    assert standby.follow(1.0) is None
    prefix.extend((99,))
    assert standby.follow(1.0) == ev.SendTruth(3, prefix.crc_at(3), (*range(TELL_EVERY - 1), 99), 0)
    assert standby.rest(1.0) is None
    prefix.extend((1, 2))
    assert standby.rest(1.0) == ev.SendTruth(3 + TELL_EVERY, prefix.crc_at(3 + TELL_EVERY), (1, 2), 0)
    assert standby.told == len(prefix)


def test_one_that_has_drafted_is_told_what_it_lacks():
    """It is told that nothing is asked of it any more, even where it knows all of the text."""
    prefix = grown(4)
    assert Standby(prefix, 0.0, 5).begin(0.0) == ev.SendTruth(5, prefix.crc_at(5), (2, 3), 0)
    assert Standby(prefix, 0.0, 7).begin(0.0) == ev.SendTruth(7, prefix.crc, (), 0)


def test_guesses_are_compared_once():
    """Each position counts once, whatever is sent again; a prefix that is not the text's tells nothing."""
    prefix = grown(0)
    standby = Standby(prefix, 0.0)
    prefix.extend(range(8))
    assert standby.shadowed(shadow(prefix, 3, 0, 9, 2), 0.0, 1.0)[0] == (True, False, True)
    assert standby.shadowed(shadow(prefix, 3, 0, 1, 2), 0.0, 1.0)[0] == ()
    assert standby.shadowed(shadow(prefix, 5, 2, 3), 0.0, 1.0)[0] == (True,)
    assert standby.shadowed(ev.Shadowed(3, 1, (0, 1, 2)), 0.0, 1.0) == ((), None)
    assert standby.shadowed(shadow(prefix, 10, 7, 8, 9), 0.0, 1.0)[0] == (True,)
    assert standby.shown == 5


def test_what_it_was_told_first_is_not_guessed():
    """Guesses of the text that was there when it came may have been copied from it, and prove nothing."""
    prefix = grown(8)
    standby = Standby(prefix, 0.0)
    assert standby.shadowed(shadow(prefix, 3, *range(8)), 0.0, 1.0) == ((), None)


def test_its_interval():
    """From what it was told to its guesses, less the way; not of the first, which wait for the whole prompt, nor of
    guesses that end elsewhere."""
    prefix = grown(0)
    standby = Standby(prefix, 0.0)
    standby.begin(0.0)
    for number, seconds in enumerate((5.0, 0.092)):
        prefix.extend(range(TELL_EVERY))
        standby.follow(10.0 * number)
        end = len(prefix)
        right, interval = standby.shadowed(
            shadow(prefix, end - 8, *prefix[end - 8 : end]), 0.002, 10.0 * number + seconds
        )
        assert len(right) == 8
    assert interval == pytest.approx(0.01)
    prefix.extend(range(TELL_EVERY))
    assert standby.shadowed(shadow(prefix, len(prefix) - 2, 1, 1), 0.002, 20.0)[1] is None


def test_a_gap_is_filled_but_not_without_end():
    """From where it is, or from the start where that is not known here."""
    prefix = grown(4)
    standby = Standby(prefix, 0.0)
    assert standby.nacked(5, prefix.crc_at(5), 1.0) == ev.SendSync(5, prefix.crc_at(5), (2, 3), 0)
    assert standby.nacked(5, prefix.crc_at(5), 1.0 + SYNC_INTERVAL / 2) is None
    assert standby.nacked(5, 0, 1.0 + SYNC_INTERVAL) == ev.SendSync(0, 0, (*PROMPT, 0, 1, 2, 3), 0)
