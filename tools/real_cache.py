"""The folder that real models, and whatever else is fetched for the tests, lie in: outside of the checkout."""

import os
from pathlib import Path

from platformdirs import user_cache_path

VARIABLE = "SPECMESH_TEST_CACHE"


def folder(kind: str) -> Path:
    """Return the folder for this kind of files, which need not exist: in SPECMESH_TEST_CACHE, else in specmesh's own
    cache (`~/.cache/specmesh/tests`, on macOS `~/Library/Caches/specmesh/tests`)."""
    chosen = os.environ.get(VARIABLE)
    root = Path(chosen).expanduser().absolute() if chosen else user_cache_path("specmesh") / "tests"
    return root / kind
