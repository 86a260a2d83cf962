"""The whole of an answer, from the chunks of a stream."""

import pytest

from specmesh.client.pieces import Collector, ReadingProgress, TextPiece


@pytest.fixture
def collector():
    return Collector()


def chunk(text, ids, source):
    """Return the JSON of a chunk."""
    choice = {"text": text}
    extra = {"token_ids": ids}
    extra["source"] = source
    return {"id": "a", "choices": [choice], "specmesh": extra}


def test_sources_of_pieces_are_joined_runs(collector):
    first = [["remote", 1], ["target", 1]]
    second = [["target", 1], ["grammar", 1]]
    collector.take(chunk("ab", [1, 2], first))
    collector.take(chunk("cd", [3, 4], second))
    whole = collector.completion()
    assert whole.text == "abcd"
    assert whole.token_ids == (1, 2, 3, 4)
    assert whole.sources == (("remote", 1), ("target", 2), ("grammar", 1))


def test_a_report_about_a_prompt(collector):
    progress = {"total": 9, "cache": 1, "processed": 5, "time_ms": 500.0}
    sent = {"id": "a", "choices": [], "prompt_progress": progress}
    report = collector.take(sent)
    assert report == ReadingProgress(total=9, cached=1, processed=5, time_ms=500.0)


def test_a_piece_of_text(collector):
    source = [["target", 1]]
    sent = chunk("a", [1], source)
    piece = collector.take(sent)
    assert piece == TextPiece(text="a", token_ids=(1,), sources=(("target", 1),))
