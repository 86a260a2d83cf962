"""A completion's chunks on the terminal."""

import json
from collections.abc import Generator

import pytest

from specmesh.cli.generate import SEEDS, Output, run, run_several, summary
from specmesh.client import Json
from specmesh.errors import DaemonUnreachable

REPORT = {
    "prompt_tokens": 3,
    "generated_tokens": 4,
    "rounds": 2,
    "drafted": 5,
    "accepted": 2,
    "acceptance_rate": 0.4,
    "mean_acceptance_length": 2.0,
    "time_s": 0.5,
    "time_to_first_token_s": 0.1,
    "tokens_per_second": 8.0,
    "verify_ms": 300.0,
    "wait_ms": 5.0,
    "draft_ms": 40.0,
    "network_ms": 7.0,
    "bytes_sent": 200,
    "bytes_received": 100,
    "draft_n_last": 4,
    "accept_histogram": [1, 0, 1],
    "drafter": "mac:7",
    "seed": 1,
    "one_token_step_ms": 34.0,
    "speedup_vs_one_token_step": 1.5,
    "strategy": "deterministic",
    "exact": True,
}


def round_(text: str, ids: list[int], accepted: int, drafts: list[int], drafted_text: str) -> Json:
    pieces = list(text)
    told = {
        "token_ids": ids,
        "accepted": accepted,
        "drafts": drafts,
        "drafted_text": drafted_text,
        "pieces": pieces,
        "accepted_text": text[:accepted],
    }
    return {"choices": [{"text": text, "finish_reason": None}], "specmesh": told}


CHUNKS: list[Json] = [
    {"choices": [{"text": "", "finish_reason": None}], "specmesh": {"session": 1, "prompt_tokens": 3}},
    round_("abc", [1, 2, 3], 2, [1, 2, 9], "abx"),
    round_("d", [4], 0, [], ""),
    round_("ef", [5, 6], 1, [5], "e"),
    {
        "choices": [{"text": "", "finish_reason": "length"}],
        "specmesh": {"schema_version": 1, "prompt_token_ids": [7, 8, 9], "report": REPORT},
    },
]


class Fake:
    """A client that yields chunks, then raises."""

    def __init__(self, chunks: list[Json], error: BaseException | None = None) -> None:
        self._chunks, self._error = chunks, error
        self.closed = False

    def complete(self, body: Json) -> Generator[Json, None, None]:
        try:
            yield from self._chunks
            if self._error is not None:
                raise self._error
        finally:
            self.closed = True


def test_text_only_on_stdout(capsys: pytest.CaptureFixture[str]):
    """Without options: the text, a newline, nothing else; the stream is closed."""
    client = Fake(CHUNKS)
    run(client, {}, Output())  # type: ignore[arg-type]
    assert capsys.readouterr() == ("abcdef\n", "")
    assert client.closed


def of(number: int, text: str, finish: str | None = None) -> Json:
    """A chunk of one of several texts."""
    end = {"report": REPORT} if finish else {"token_ids": [*text.encode()]}
    return {"choices": [{"index": number, "text": text, "finish_reason": finish}], "specmesh": end}


SEVERAL = [of(1, "uv"), of(0, "a"), of(2, "x"), of(1, "", "stop"), of(0, "b"), of(0, "", "length"), of(2, "", "stop")]


def several(chunks: list[Json], output: Output, error: BaseException | None = None) -> list[str]:
    """What is said of three texts; raises as the daemon does."""
    told: list[str] = []
    run_several(Fake(chunks, error), {"seed": SEEDS - 2}, output, 3, 30.0, told.append)  # type: ignore[arg-type]
    return told


def test_several_texts_in_their_order(capsys: pytest.CaptureFixture[str]):
    """However they come; which one follows is said, with its seed."""
    told = several(SEVERAL, Output(verbose=True))
    assert told == [f"text {n} of 3, seed {seed}" for n, seed in ((1, SEEDS - 2), (2, SEEDS - 1), (3, 0))]
    assert capsys.readouterr() == ("ab\nuv\nx\n", "\n".join(summary(REPORT) * 3) + "\n")


def test_several_texts_as_json(capsys: pytest.CaptureFixture[str]):
    """One object with each as it is alone."""
    assert several(SEVERAL, Output(as_json=True)) == []
    choices = json.loads(capsys.readouterr().out)["choices"]
    assert [(one["text"], one["finish_reason"]) for one in choices] == [("ab", "length"), ("uv", "stop"), ("x", "stop")]
    assert [one["token_ids"] for one in choices] == [[97, 98], [117, 118], [120]]


def test_json(capsys: pytest.CaptureFixture[str]):
    """--json: one object with text, ids, reason and the report's numbers; no other output."""
    run(Fake(CHUNKS), {}, Output(as_json=True))  # type: ignore[arg-type]
    out, err = capsys.readouterr()
    told = json.loads(out)
    assert err == ""
    assert (told["text"], told["token_ids"], told["prompt_token_ids"]) == ("abcdef", [1, 2, 3, 4, 5, 6], [7, 8, 9])
    assert (told["finish_reason"], told["schema_version"]) == ("length", 1)
    assert told.items() >= REPORT.items()


@pytest.mark.parametrize("no_color", [False, True])
def test_show_drafts_marks_the_accepted(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, no_color: bool
):
    """--show-drafts: accepted drafts are green, or in brackets where NO_COLOR is set."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    if no_color:
        monkeypatch.setenv("NO_COLOR", "1")
    run(Fake(CHUNKS), {}, Output(show_drafts=True))  # type: ignore[arg-type]
    expected = "[[ab]]cd[[e]]f\n" if no_color else "\x1b[32mab\x1b[39mcd\x1b[32me\x1b[39mf\n"
    assert capsys.readouterr().out == expected


@pytest.mark.parametrize("error", [DaemonUnreachable("gone"), KeyboardInterrupt()])
def test_cut_text_is_kept(capsys: pytest.CaptureFixture[str], error: BaseException):
    """A text that is cut stays on stdout, ended by a newline, and the error goes on."""
    with pytest.raises(type(error)):
        run(Fake(CHUNKS[:3], error), {}, Output())  # type: ignore[arg-type]
    assert capsys.readouterr() == ("abcd\n", "")
    with pytest.raises(type(error)):
        run(Fake([], error), {}, Output())  # type: ignore[arg-type]
    assert capsys.readouterr() == ("", "")
