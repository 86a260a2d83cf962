"""Fuzzing of the code that reads a peer's bytes. See README.md."""

from pathlib import Path

TARGETS = ("codec", "verifier_session", "drafter_session", "drafter_windows")
"""Modules of this folder. `run(data)` of each plays one input and counts its events.

It raises AssertionError if an invariant does not hold.
"""

CORPUS = Path(__file__).with_name("corpus")
"""A folder per target: inputs to begin with, and every input that ever broke it."""


def corpus(target: str) -> list[Path]:
    return sorted(path for path in (CORPUS / target).iterdir() if path.is_file())
