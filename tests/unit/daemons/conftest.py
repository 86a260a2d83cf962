"""A verifier's gate."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # test folders are no packages; these helpers are

from gate import closed, gate

__all__ = ["closed", "gate"]
