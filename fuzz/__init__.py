"""Fuzzing of what hears a peer: bytes in, and what must hold whatever they are. README.md says how to run it."""

from pathlib import Path

TARGETS = ("codec", "verifier_session", "drafter_session")
"""Modules of this folder; `run(data)` of each plays one input, raises where something does not hold, and returns what
happened."""

CORPUS = Path(__file__).with_name("corpus")
"""A folder per target: inputs worth beginning with, and every one that has ever broken it."""


def corpus(target: str) -> list[Path]:
    return sorted(path for path in (CORPUS / target).iterdir() if path.is_file())
