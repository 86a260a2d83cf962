"""The report: what fails a soak, and that all of it is told."""

from collections import Counter

from soak.report import JUDGED_S, PairReport, Report
from soak.slopes import Growth
from soak.truth import Verdict


def grown(memory=0.0, descriptors=0.0, seconds=JUDGED_S):
    return Growth(memory, descriptors, 100, seconds, 50.0, 50.0, (20, 20))


def report(**more):
    pair = PairReport(
        "steady", Counter({Verdict.COMPLETE: 9, Verdict.CUT: 1}), 500, Counter({"network reset": 2}), **more
    )
    return Report("sim", 1, 120.0, [pair])


def test_a_pass():
    good = report(growth={"verifier": grown(0.9, 0.5)})
    assert good.failures == []
    assert "steady: 10 generations, 500 tokens: 9 complete, 1 cut" in good.lines()
    assert good.lines()[-1] == "passed"


def test_what_fails():
    """An orphan, growth, a line of what is wrong; growth seen for too short a time does not."""
    assert report(orphans=2).failures == ["steady: 2 sessions live on without a client"]
    assert report(wrong=["steady: mismatch"]).failures == ["steady: mismatch"]
    for bad in (grown(memory=1.1), grown(descriptors=2.0), grown(descriptors=-2.0)):
        assert len(report(growth={"drafter": bad}).failures) == 1
    assert report(growth={"drafter": grown(memory=30.0, seconds=100.0)}).failures == []
