"""The whole of an answer, from the chunks of a stream."""

from specmesh.client.pieces import Collector, ReadingProgress, TextPiece


def chunk(text, ids, source):
    extra = {"token_ids": ids, "source": source}
    return {"id": "a", "choices": [{"text": text}], "specmesh": extra}


def test_sources_of_pieces_are_joined_runs():
    collector = Collector()
    collector.take(chunk("ab", [1, 2], [["remote", 1], ["target", 1]]))
    collector.take(chunk("cd", [3, 4], [["target", 1], ["grammar", 1]]))
    whole = collector.completion()
    assert whole.sources == (("remote", 1), ("target", 2), ("grammar", 1))
    assert (whole.text, whole.token_ids) == ("abcd", (1, 2, 3, 4))


def test_a_report_about_a_prompt_is_no_piece():
    collector = Collector()
    progress = {"total": 9, "cache": 1, "processed": 5, "time_ms": 500.0}
    report = collector.take({"id": "a", "choices": [], "prompt_progress": progress})
    assert report == ReadingProgress(total=9, cached=1, processed=5, time_ms=500.0)
    assert collector.take(chunk("a", [1], [["target", 1]])) == TextPiece(
        text="a", token_ids=(1,), sources=(("target", 1),)
    )
