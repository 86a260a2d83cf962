"""A soak of seconds: what `make soak` does for minutes."""

from soak.run import soak
from soak.truth import Verdict


def test_soak():
    """Daemons that are killed and started, frozen, cut off: every text is right, and no session is left."""
    [pair] = soak(seconds=5.0, seed=45, count=10, pairs=("shaken",))
    assert pair.failures() == []
    assert pair.verdicts[Verdict.COMPLETE] > 5
    assert pair.faults["verifier kill"] + pair.faults["drafter kill"] > 0
