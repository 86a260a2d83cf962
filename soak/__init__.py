"""The soak: pairs of real daemons under load and faults, every text compared. See README.md."""

import sys
from pathlib import Path

TESTS = Path(__file__).parents[1] / "tests"
# They have the daemons as processes, and the truth of their texts.
sys.path[:0] = [str(TESTS), str(TESTS / "e2e")]
