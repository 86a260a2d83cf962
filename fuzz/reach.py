"""What an input reaches: the steps from line to line of our code, and what its target says has happened."""

import importlib
import sys
from collections.abc import Iterable
from pathlib import Path
from types import FrameType

from specmesh.core import prefix
from specmesh.wire import codec

FOLDERS = tuple(str(Path(module.__file__ or "").parent) for module in (prefix, codec))
Feature = tuple[str, int, int]


def reached(target: str, data: bytes) -> set[Feature]:
    """Pairs of lines of the core and the wire that follow each other, and for each thing that happened how often,
    to a power of two."""
    found, last = set[Feature](), {"": 0}

    def trace(frame: FrameType, event: str, _: object):  # type: ignore[no-untyped-def]
        file = frame.f_code.co_filename
        if not file.startswith(FOLDERS):
            return None
        if event == "line":
            found.add((file, last.get(file, 0), frame.f_lineno))
            last[file] = frame.f_lineno
        return trace

    run = importlib.import_module(f"fuzz.{target}").run
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        seen = run(data)
    finally:
        sys.settrace(before)
    return found | {(what, -1, min(count.bit_length(), 5)) for what, count in seen.items() if count}


def worth_keeping(target: str, corpus: Iterable[Path], found: Iterable[Path]) -> list[Path]:
    """Those of the inputs found that reach what neither the corpus nor those before them do, the shortest first."""
    known = set[Feature]()
    for path in corpus:
        known |= reached(target, path.read_bytes())
    kept = []
    for path in sorted(found, key=lambda path: (path.stat().st_size, path.name)):
        more = reached(target, path.read_bytes()) - known
        if more:
            known |= more
            kept.append(path)
    return kept
