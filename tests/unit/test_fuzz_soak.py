"""The fuzz targets, by their corpora, any bytes and broken products; the verdicts of the soak."""

import importlib
from collections import Counter
from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuzz import TARGETS, corpus
from soak.truth import BAD, Text, Told, Verdict, judge
from specmesh.core import events as ev
from specmesh.core.prefix import Prefix
from specmesh.core.sampling.sampler import SamplingParams
from specmesh.core.verifier import session
from specmesh.core.verifier.accept import Acceptance
from specmesh.core.verifier.session import VerifierSession
from specmesh.wire import codec
from specmesh.wire import messages as m

REASONS = {"length", "magic", "checksum", "version", "kind", "count", "body"}
MESSAGES = {message.__name__ for message in get_args(m.Message)}
REACHED = {
    "codec": REASONS | MESSAGES,
    "verifier_session": {
        *("Truth", "Sync", "Nack", "Round", "Trim", "Finish"),
        *("accepted", "rejected", "stale", "waits", "solved", "resumed", "no event"),
    },
    "drafter_session": {
        *("Draft", "DraftProbs", "Nack", "Trim", "Learned"),
        *("accepted", "sampled", "no event"),
    },
}
"""Messages, refusals, effects and turns that some input of each corpus reaches."""


def run(target, data):
    return importlib.import_module(f"fuzz.{target}").run(data)


@pytest.mark.parametrize("target", TARGETS)
def test_no_input_of_a_corpus_breaks_its_target(target):
    """Together they reach all that the target can do."""
    seen = Counter()
    for path in corpus(target):
        try:
            seen += run(target, path.read_bytes())
        except Exception as error:
            error.add_note(str(path))
            raise
    assert REACHED[target] <= set(seen)


@pytest.mark.parametrize("target", TARGETS)
@given(st.sampled_from([b"", b"SM\x02"]), st.binary(max_size=400))
def test_no_input_breaks_a_target(target, begin, data):
    run(target, begin + data)


# --- a broken product is noticed


def is_noticed(target: str) -> bool:
    for path in corpus(target):
        try:
            run(target, path.read_bytes())
        except (AssertionError, LookupError, RecursionError, ValueError):
            return True
    return False


def accept_without_looking(drafts, choose, **_):
    """Accept the first draft, whatever the target chooses."""
    token = drafts[0] if drafts else choose(0)
    count = 1 if drafts else 0
    return Acceptance(committed=(token,), accepted=count, tested=count, ended=False)


STEPPED = VerifierSession.stepped


def step_without_trimming(self, *step, **fields):
    effects = STEPPED(self, *step, **fields)
    return [effect for effect in effects if not isinstance(effect, ev.Trim)]


BREAKS = [
    pytest.param(
        "verifier_session",
        (session, "accept", accept_without_looking),
        id="drafts are believed",
    ),
    pytest.param(
        "verifier_session",
        (VerifierSession, "stepped", step_without_trimming),
        id="nothing is trimmed",
    ),
    pytest.param(
        "drafter_session", (Prefix, "holds", lambda *_: True), id="any prefix counts as held"
    ),
    pytest.param("codec", (codec, "MAX_DEPTH", 10**9), id="reports of any depth"),
]


@pytest.mark.parametrize(("target", "broken"), BREAKS)
def test_a_broken_product_is_noticed(target, broken, monkeypatch):
    monkeypatch.setattr(*broken)
    assert is_noticed(target)


# --- the soak: the text of a client, compared with that of the verifier alone

TEXT = Text("p", SamplingParams(), (112,), (65, 66, 67, 68), ended=False)
ENDED = replace(TEXT, ended=True)


def verdict(told, text=TEXT, max_tokens=4, *, excused=False):
    return judge(told, text, max_tokens, bytes(told.ids).decode(), excused=excused, waits=False)


@pytest.mark.parametrize(
    ("told", "text", "max_tokens", "expected"),
    [
        (Told(ids=[65, 66, 67, 68], text="ABCD", finish="length"), TEXT, 4, Verdict.COMPLETE),
        (Told(ids=[65, 66, 67, 68], text="ABCD", finish="stop"), ENDED, 9, Verdict.COMPLETE),
        (Told(ids=[65, 66, 67, 68], text="ABCD", finish="length"), ENDED, 9, Verdict.INCOMPLETE),
        (Told(ids=[65, 66], text="AB", finish="length"), TEXT, 4, Verdict.INCOMPLETE),
        (Told(ids=[65, 66], text="AB", finish="cancelled"), TEXT, 2, Verdict.INCOMPLETE),
        (Told(ids=[65, 66, 67, 68], text="ABC", finish="length"), TEXT, 4, Verdict.MISMATCH),
        (Told(ids=[65, 66, 68], text="ABD", finish=None, error="x"), TEXT, 4, Verdict.MISMATCH),
        (Told(ids=[65, 66, 67], text="ABC", finish="length"), TEXT, 2, Verdict.MISMATCH),
        (Told(ids=[65], text="A", left=True), TEXT, 4, Verdict.EXCUSED),
        (Told(ids=[65], text="A", error="x"), TEXT, 4, Verdict.INCOMPLETE),
    ],
    ids=repr,
)
def test_verdicts(told, text, max_tokens, expected):
    assert verdict(told, text, max_tokens) is expected


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        (Told(ids=[65], text="A", error="x", opened=True), Verdict.EXCUSED),
        (Told(error="x"), Verdict.EXCUSED),
        (Told(ids=[66], text="B", error="x"), Verdict.MISMATCH),
        (Told(ids=[65], text="A", finish="length"), Verdict.INCOMPLETE),
    ],
    ids=repr,
)
def test_faults_excuse_a_missing_rest_only(told, expected):
    assert verdict(told, excused=True) is expected


def test_other_verdicts_than_these_are_bad():
    assert set(Verdict) - set(BAD) == {Verdict.COMPLETE, Verdict.EXCUSED}
