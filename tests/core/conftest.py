"""Makes importable what tests of this folder share, and fuzz/, which is not installed."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2])]  # test folders are no packages
