"""The soak: pairs of real daemons under load and faults, every text compared. README.md in this folder tells more."""

import sys
from pathlib import Path

TESTS = Path(__file__).parents[1] / "tests"
sys.path[:0] = [
    str(TESTS),
    str(TESTS / "e2e"),
]  # where daemons as processes, and the truth of their texts, are
