"""What the verifier alone says, and the comparison with it."""

from dataclasses import replace

import pytest

from soak.truth import BAD, Alone, Text, Told, Verdict, judge
from specmesh.core.sampling.sampler import SamplingParams
from specmesh.engines.sim import SimSettings, SimVerifier

GREEDY = SamplingParams()
TEXT = Text("p", GREEDY, (112,), (65, 66, 67, 68), ended=False)
ENDED = replace(TEXT, ended=True)


def shown(ids):
    return bytes(ids).decode()


def verdict(told, text=TEXT, max_tokens=4, **more):
    circumstances = {"excused": False, "tie": False, "waits": False} | more
    return judge(told, text, max_tokens, shown(told.ids), **circumstances)


@pytest.mark.parametrize(
    ("told", "text", "max_tokens", "expected"),
    [
        (Told(ids=[65, 66, 67, 68], text="ABCD", finish="length"), TEXT, 4, Verdict.COMPLETE),
        (Told(ids=[65, 66], text="AB", finish="length"), TEXT, 2, Verdict.COMPLETE),
        (Told(ids=[65, 66, 67, 68], text="ABCD", finish="stop"), ENDED, 9, Verdict.COMPLETE),
        (Told(ids=[65, 66, 67, 68], text="ABCD", finish="length"), ENDED, 9, Verdict.SHORT),
        (Told(ids=[65, 66], text="AB", finish="length"), TEXT, 4, Verdict.SHORT),
        (Told(ids=[65, 66], text="AB", finish="cancelled"), TEXT, 2, Verdict.SHORT),
        (Told(ids=[65, 66, 67, 68], text="ABC", finish="length"), TEXT, 4, Verdict.MISMATCH),
        (Told(ids=[65, 66, 68], text="ABD", finish=None, error="x"), TEXT, 4, Verdict.MISMATCH),
        (Told(ids=[65, 66, 67], text="ABC", finish="length"), TEXT, 2, Verdict.MISMATCH),
        (Told(ids=[65, 66], text="AX", finish=None, error="x"), TEXT, 4, Verdict.MISMATCH),
        (Told(ids=[65], text="A", left=True), TEXT, 4, Verdict.LEFT),
        (Told(ids=[65], text="A", error="x"), TEXT, 4, Verdict.LOST),
        (Told(error="x"), TEXT, 4, Verdict.LOST),
    ],
    ids=repr,
)
def test_verdicts(told, text, max_tokens, expected):
    assert verdict(told, text, max_tokens) is expected
    assert (expected in BAD) == (expected not in (Verdict.COMPLETE, Verdict.LEFT))


def test_faults_excuse_the_missing_rest_and_nothing_else():
    """With a fault an answer may be cut; what came of it must be right all the same."""
    assert verdict(Told(ids=[65], text="A", error="x", opened=True), excused=True) is Verdict.CUT
    assert verdict(Told(error="x"), excused=True) is Verdict.REFUSED
    assert verdict(Told(ids=[66], text="B", error="x"), excused=True) is Verdict.MISMATCH
    assert verdict(Told(ids=[65], text="A", finish="length"), excused=True) is Verdict.SHORT


def test_who_waits_must_have_it_all():
    assert verdict(Told(ids=[65], text="A", error="x", opened=True), excused=True, waits=True) is Verdict.LOST
    assert verdict(Told(error="x"), excused=True, waits=True) is Verdict.REFUSED
    assert verdict(Told(error="x"), waits=True) is Verdict.LOST


@pytest.fixture
def alone():
    return Alone(SimVerifier(SimSettings(n_batch=16)))


@pytest.mark.parametrize("sampling", [GREEDY, SamplingParams(temperature=6.0, seed=1)], ids=["greedy", "sampled"])
def test_alone(alone, sampling):
    """The text depends on prompt and sampling only, not on what the engine held before or takes at once."""
    prompt = "a prompt that is longer than one batch"
    text = alone.text(prompt, sampling, 30)
    assert len(text.ids) == 30
    assert text.prompt_ids == tuple(prompt.encode())
    alone.text("another", GREEDY, 5)
    assert alone.text(prompt, sampling, 30) == text
    assert Alone(SimVerifier(SimSettings())).text(prompt, sampling, 30) == text
    assert alone.text(prompt, sampling, 7).ids == text.ids[:7]
    assert alone.shown(text.ids) == bytes(text.ids).decode("utf-8", "replace")


def test_near_ties_are_seen_by_the_target(alone):
    text = alone.text("abc", GREEDY, 10)
    assert not alone.near_tie(text, text.ids)
    assert not alone.near_tie(text, (*text.ids[:4], text.ids[4] ^ 1))
    forged = replace(text, ids=(*text.ids[:4], text.ids[4] ^ 1, *text.ids[5:]))
    assert alone.near_tie(forged, text.ids)
