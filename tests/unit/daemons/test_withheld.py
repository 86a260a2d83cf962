"""Ids that wait for what belongs to them."""

import pytest

from specmesh.api.requests import Tokens
from specmesh.core.sampling.logprobs import Logprob
from specmesh.daemons.drafter.event_buffer import EARLY, Withheld
from specmesh.wire.messages import Logprobs


def of(*values):
    return tuple(Logprob(value) for value in values)


def told(withheld):
    return list(withheld.ready())


def test_nothing_waits_unless_asked_for():
    """Truth is ready as it comes."""
    withheld = Withheld(rounds=False, logprobs=False)
    withheld.add(5, (1, 2), 1, sync=False)
    assert told(withheld) == [Tokens((1, 2), 1, None)]
    assert withheld.first is None


def test_a_round_waits_for_its_drafts():
    """In order; SYNC does not, and takes those before it along."""
    withheld = Withheld(rounds=True, logprobs=False)
    withheld.add(5, (1,), 0, sync=False)
    withheld.add(6, (2,), 0, sync=False)
    assert told(withheld) == []
    withheld.round((9,), 0)
    assert told(withheld) == [Tokens((1,), 0, (9,))]
    withheld.add(7, (3,), 0, sync=True)
    assert told(withheld) == [Tokens((2,), 0, None), Tokens((3,), 0, None)]


def test_ids_wait_for_their_logprobs():
    """All of those that came together, over as many frames as it takes; and for both where both were asked for."""
    withheld = Withheld(rounds=True, logprobs=True)
    withheld.add(5, (1, 2, 3), 2, sync=False)
    withheld.logprobs(Logprobs(1, 5, [-1.0, -2.0]))
    withheld.round((1, 2), 2)
    assert (told(withheld), withheld.first) == ([], 5)
    withheld.logprobs(Logprobs(1, 7, [-3.0]))
    assert told(withheld) == [Tokens((1, 2, 3), 2, (1, 2), of(-1.0, -2.0, -3.0))]


def test_ids_of_before_have_none():
    """They precede the first frame after a SYNC."""
    withheld = Withheld(rounds=False, logprobs=True)
    withheld.add(5, (1, 2), 0, sync=True)
    withheld.add(7, (3,), 0, sync=False)
    withheld.logprobs(Logprobs(1, 6, [-1.0, -2.0], [4, 5], [-0.5, -0.25]))
    top = Logprob(-1.0, (4,), (-0.5,)), Logprob(-2.0, (5,), (-0.25,))
    assert told(withheld) == [Tokens((1, 2), 0, None, (None, top[0])), Tokens((3,), 0, None, (top[1],))]


def test_truth_that_was_lost_still_has_its_logprobs():
    """They came before their ids, which a later TRUTH or a SYNC brings; what SYNC brings again waits for its own."""
    withheld = Withheld(rounds=False, logprobs=True)
    withheld.logprobs(Logprobs(1, 5, [-1.0, -2.0]))
    withheld.logprobs(Logprobs(1, 7, [-3.0]))
    withheld.add(5, (1, 2, 3), 0, sync=False)
    assert told(withheld) == [Tokens((1, 2, 3), 0, None, of(-1.0, -2.0, -3.0))]
    withheld.logprobs(Logprobs(1, 9, [-5.0]))
    withheld.add(8, (4, 5), 0, sync=True)
    assert told(withheld) == []
    withheld.logprobs(Logprobs(1, 8, [-4.0, -5.0]))
    assert told(withheld) == [Tokens((4, 5), 0, None, of(-4.0, -5.0))]


def test_what_is_kept_for_ids_to_come_is_bounded():
    """A verifier may send for positions without end."""
    withheld = Withheld(rounds=False, logprobs=True)
    for base in range(1, 10 * EARLY, 500):
        withheld.logprobs(Logprobs(1, base, [-1.0] * 500))
    assert len(withheld._early) == EARLY


def test_what_never_comes():
    """At the end of a text the rest is told without."""
    withheld = Withheld(rounds=True, logprobs=True)
    withheld.add(5, (1, 2), 0, sync=False)
    withheld.give_up_rounds()
    assert (told(withheld), withheld.first) == ([], 5)
    withheld.give_up()
    assert told(withheld) == [Tokens((1, 2), 0, None, (None, None))]


@pytest.mark.parametrize(
    "message",
    [
        Logprobs(1, 5, []),
        Logprobs(1, 5, [-1.0, -1.0], [1], [-1.0]),
        Logprobs(1, 5, [-1.0], [1, 2], [-1.0]),
        Logprobs(1, 0, [-1.0]),
    ],
    ids=["of none", "fewer than ids", "ids without numbers", "of the prompt"],
)
def test_what_says_nothing_about_an_id_here(message):
    """It goes on waiting."""
    withheld = Withheld(rounds=False, logprobs=True)
    withheld.add(5, (1, 2), 0, sync=False)
    withheld.logprobs(message)
    assert told(withheld) == []
    withheld.logprobs(Logprobs(1, 4, [0.0, -1.0, -2.0]))
    assert told(withheld) == [Tokens((1, 2), 0, None, of(-1.0, -2.0))]
