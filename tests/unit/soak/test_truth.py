"""What the verifier alone says, and the comparison with it."""

from dataclasses import replace

import pytest

from soak.truth import BAD, Text, Told, Verdict, judge
from specmesh.core.sampling.sampler import SamplingParams

GREEDY = SamplingParams()
TEXT = Text("p", GREEDY, (112,), (65, 66, 67, 68), ended=False)
ENDED = replace(TEXT, ended=True)


def shown(ids):
    return bytes(ids).decode()


def verdict(told, text=TEXT, max_tokens=4, **more):
    circumstances = {"excused": False, "waits": False} | more
    return judge(told, text, max_tokens, shown(told.ids), **circumstances)


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
    assert (expected in BAD) == (expected not in (Verdict.COMPLETE, Verdict.EXCUSED))


def test_faults_excuse_the_missing_rest_and_nothing_else():
    """With a fault an answer may be cut; what came of it must be right all the same."""
    assert verdict(Told(ids=[65], text="A", error="x", opened=True), excused=True) is Verdict.EXCUSED
    assert verdict(Told(error="x"), excused=True) is Verdict.EXCUSED
    assert verdict(Told(ids=[66], text="B", error="x"), excused=True) is Verdict.MISMATCH
    assert verdict(Told(ids=[65], text="A", finish="length"), excused=True) is Verdict.INCOMPLETE
