"""Makes the training tool's modules importable: the tests measure as the model card does."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "tools"))
