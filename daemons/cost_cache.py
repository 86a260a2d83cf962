"""Step times that were measured once, on disk by model, backend and settings: the next start needs no calibration.

Nothing here is needed: what is missing, damaged or cannot be written means measuring again.
"""

import hashlib
import json
from math import isfinite
from pathlib import Path

import structlog
from platformdirs import user_cache_path

from specmesh import __version__

log = structlog.get_logger("specmesh.verifier")

_SAMPLE = 2**20
MAX_ROWS = 1024


def steps_folder() -> Path:
    """Where this user's step times are kept; it may not exist yet."""
    return user_cache_path("specmesh") / "steps"


class CostCache:
    """The step times of one model file in one setting. No call raises."""

    def __init__(self, folder: Path, model: Path, setting: str) -> None:
        identity = _identity(model)
        name = hashlib.sha256(f"{identity} {setting} {__version__}".encode()).hexdigest()[:32]
        self._path = folder / f"{name}.json" if identity else None

    def load(self) -> dict[int, float] | None:
        """Seconds by rows; None where nothing usable is remembered."""
        if self._path is None:
            return None
        try:
            told = json.loads(self._path.read_text())
            found = {int(rows): float(seconds) for rows, seconds in told.items()}
        except (OSError, ValueError, AttributeError, TypeError, RecursionError):
            return None
        sound = all(1 <= rows <= MAX_ROWS and isfinite(seconds) and seconds > 0 for rows, seconds in found.items())
        return found if found and sound else None

    def store(self, table: dict[int, float]) -> None:
        if self._path is None or not table:
            return
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            part = self._path.with_suffix(".part")
            part.unlink(missing_ok=True)  # what a crash has left, or a link that somebody has put there
            with part.open("x") as file:
                json.dump({str(rows): seconds for rows, seconds in table.items()}, file)
            part.replace(self._path)
        except OSError as error:
            log.warning("step_times_not_kept", folder=str(self._path.parent), reason=error.strerror)


def _identity(model: Path) -> str:
    """What tells a model file from others without reading all of it; empty for what is no file."""
    try:
        size = model.stat().st_size
        with model.open("rb") as file:
            head = file.read(_SAMPLE)
            file.seek(max(size - _SAMPLE, 0))
            tail = file.read(_SAMPLE)
    except OSError:
        return ""
    return f"{size} {hashlib.sha256(head + tail).hexdigest()}"
