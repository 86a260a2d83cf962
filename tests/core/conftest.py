"""Makes importable what tests of this folder share, tests/harness, and fuzz/, which is not installed."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[up]) for up in range(3)]  # test folders are no packages
