"""Stop strings, in ids and in text."""

import codecs

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from specmesh.core.sampling.stop import StopScan, StopTextFilter
from specmesh.core.session_params import stops_of
from specmesh.core.vocabulary.vocabulary import Vocabulary
from specmesh.errors import RequestError

PIECES = (b"a", b"b", b"ab", b"ba", b"", "é".encode()[:1], "é".encode()[1:], b"abab", b"\xf0\x9f", b"\xff")
VOCABULARY = Vocabulary(PIECES, frozenset())
STOPS = st.lists(st.text("abé", min_size=1, max_size=4), max_size=3)
IDS = st.lists(st.integers(0, len(PIECES) - 1), max_size=20)


@given(STOPS, IDS)
@example(["ab"], [0, 1])
@example(["bé"], [1, 5, 6])
def test_the_scan_notices_the_first_id_that_completes_one(stops, ids):
    scan = StopScan(stops, PIECES)
    raw = b""
    for token in ids:
        raw += PIECES[token]
        found = any(stop.encode() in raw for stop in stops)
        assert scan.completes(token) == found
        if found:
            return


@given(STOPS, IDS, st.data())
@pytest.mark.fault("E7.83")
def test_what_is_shown_is_the_text_before_it(stops, ids, data):
    """However ids come, of which the last is the first that completes one. Told with it are exactly those whose text
    begins before its end, all without a stop string; no id is told of which a stop string may be made alone."""
    scan = StopScan(stops, PIECES)
    ids = ids[: next((n for n, token in enumerate(ids, 1) if scan.completes(token)), len(ids))]
    feed, told, shown, left = StopTextFilter(VOCABULARY, stops), [], "", list(ids)
    whole = b"".join(PIECES[token] for token in ids).decode("utf-8", "replace")
    end = min((at for stop in stops if (at := whole.find(stop)) >= 0), default=None)
    expected = whole if end is None else whole[:end]
    starts = [len(decoded_so_far(ids[:count])) for count in range(len(ids))]
    while left:
        count = data.draw(st.integers(1, len(left)))
        passage, left = feed.feed(left[:count]), left[count:]
        told, shown = [*told, *passage.begins], shown + passage.text
        assert expected.startswith(shown)
        assert not stops or all(start < len(shown) for start in told)
    passage = feed.finish()
    assert shown + passage.text == expected
    assert [*told, *passage.begins] == [start for start in starts if start < len(expected) or end is None]


@pytest.mark.parametrize("stops", [["x"] * 17, ["x" * 1025], ["a\ufffd"], ["\ud800"]])
def test_stops_that_cannot_be(stops):
    with pytest.raises(RequestError, match="stop") as refused:
        stops_of(stops)
    assert refused.value.param == "stop"


def decoded_so_far(ids):
    """The text of ids but for a character that is not complete."""
    return codecs.getincrementaldecoder("utf-8")("replace").decode(b"".join(PIECES[token] for token in ids))
