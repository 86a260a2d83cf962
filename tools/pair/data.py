"""Training text: the running interpreter's own standard library, cleaned and split.

Nothing is downloaded: `sysconfig` has the folder of the standard library. Tests, generated tables
and licence headers are left out, because a tiny model spends its capacity on whatever is most
regular and those are regular without being code anybody writes.
"""

from __future__ import annotations

import re
import sysconfig
from pathlib import Path

# Modules never shown to the tokenizer trainer or to either model. Quality is measured on these.
HELD_OUT: tuple[str, ...] = (
    "asyncio/queues.py",
    "bisect.py",
    "calendar.py",
    "cmd.py",
    "contextlib.py",
    "copy.py",
    "csv.py",
    "fnmatch.py",
    "fractions.py",
    "getopt.py",
    "graphlib.py",
    "heapq.py",
    "json/decoder.py",
    "netrc.py",
    "queue.py",
    "reprlib.py",
    "sched.py",
    "shelve.py",
    "shlex.py",
    "tempfile.py",
    "textwrap.py",
    "uuid.py",
    "wave.py",
    "zipapp.py",
)

_SKIPPED_FOLDERS = frozenset(
    {"__pycache__", "idle_test", "lib-dynload", "pydoc_data", "site-packages", "test", "tests"}
)

# Generated files, and files that are mostly tables of names or numbers.
_SKIPPED_FILES = frozenset(
    {
        "encodings/aliases.py",
        "html/entities.py",
        "keyword.py",
        "lib2to3/pgen2/token.py",
        "locale.py",
        "msilib/schema.py",
        "msilib/sequence.py",
        "opcode.py",
        "_opcode_metadata.py",
        "stringprep.py",
        "symbol.py",
        "this.py",
        "token.py",
    }
)

_LICENCE = re.compile(r"copyright|licen[cs]e|permission to use|all rights reserved", re.IGNORECASE)
_COMMENT_BLOCK = re.compile(r"(?:^[ \t]*#[^\n]*\n)+", re.MULTILINE)


def stdlib_root() -> Path:
    """Return the folder of the running interpreter's standard library."""
    return Path(sysconfig.get_path("stdlib"))


def strip_licence(text: str) -> str:
    """Drop every block of whole-line comments about copyright or licence."""

    def keep(match: re.Match[str]) -> str:
        return "" if _LICENCE.search(match.group()) else match.group()

    return _COMMENT_BLOCK.sub(keep, text).lstrip("\n")


def _is_table(name: str, text: str) -> bool:
    generated = name.startswith("encodings/") and "decoding_" in text
    return generated or name.startswith(("_sysconfigdata", "config-", "__phello__"))


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8").replace("\r\n", "\n")
    except UnicodeDecodeError:
        return None


def training_files() -> dict[str, str]:
    """Return the cleaned text of every module used for training by its name, sorted."""
    root = stdlib_root()
    found: dict[str, str] = {}
    for path in sorted(root.rglob("*.py")):
        relative = path.relative_to(root)
        name = relative.as_posix()
        in_skipped = not _SKIPPED_FOLDERS.isdisjoint(relative.parts)
        if in_skipped or name in _SKIPPED_FILES or name in HELD_OUT:
            continue
        text = _read(path)
        if text is None or _is_table(name, text):
            continue
        text = strip_licence(text)
        if text.strip():
            found[name] = text
    return found


def held_out_files() -> dict[str, str]:
    """Return the cleaned text of the held-out modules of this interpreter by its name."""
    found: dict[str, str] = {}
    for name in HELD_OUT:
        path = stdlib_root() / name
        text = _read(path) if path.is_file() else None
        if text:
            found[name] = strip_licence(text)
    return found
