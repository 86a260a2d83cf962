"""What is fuzzed: each target takes any bytes, and raises where something does not hold."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

TARGETS = ("codec", "verifier_session", "drafter_session")
"""Modules of this folder; `run(data)` of each plays one input, and says what happened in it."""

CORPUS = Path(__file__).with_name("corpus")
"""A folder per target: inputs worth beginning with, and every one that has ever broken it."""

Run = Callable[[bytes], Counter[str]]


def corpus(target: str) -> list[Path]:
    return sorted(path for path in (CORPUS / target).iterdir() if path.is_file())
