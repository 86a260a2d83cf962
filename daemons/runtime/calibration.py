"""How long steps of the target take by their rows: measured before it serves, and remembered on disk."""

import hashlib
import json
import time
from math import isfinite
from pathlib import Path

import structlog
from platformdirs import user_cache_path

from specmesh import __version__
from specmesh.core.draft_length.estimates import StepCosts
from specmesh.core.events import Span
from specmesh.engines.base import VerifyEngine
from specmesh.paths import write_whole

log = structlog.get_logger("specmesh.verifier")

# rows: those first at whose sides kernels change, up to a step with the most drafts; more while there is time
WIDTHS = (1, 2, 4, 8, 9, 16, 17, 25, 3, 5, 6, 7, 12, 33, 10, 11, 13, 14, 15, 20)
REPEATS = 3
BUDGET = 2.0  # seconds after which no further measurement is begun
CHECK_WIDTHS, TOLERANCE = (1, 4, 16), 0.2  # rows whose remembered times must hold, and how closely
MAX_ROWS = 1024

_SAMPLE = 2**20  # bytes at either end of a model file that identify it


def calibrate(engine: VerifyEngine, costs: StepCosts, remembered: dict[int, float] | None = None) -> None:
    """Measure steps of the WIDTHS on an empty sequence, over and over while there is time, and leave it empty again.

    A target with one width is measured at that. remembered: seconds by rows of an earlier run with the same model and
    machine, taken over where steps of a few widths still take as long.
    """
    begun = time.monotonic()
    held = int(engine.info.trimming == "restore")
    width = engine.info.width
    most = min(engine.info.n_outputs or engine.info.n_batch, engine.info.n_ctx - held)
    widths = [rows for rows in (WIDTHS if width is None else (width,)) if rows <= most]
    _step(engine, held, widths[0])  # the first ever warms caches up and is not typical
    if remembered is not None and widths[0] in remembered and _holds(engine, held, remembered):
        for rows, seconds in remembered.items():
            costs.record(rows, seconds)
        return
    for _ in range(REPEATS):
        for rows in widths:
            if time.monotonic() - begun > BUDGET:
                return
            costs.record(rows, _step(engine, held, rows))


def _holds(engine: VerifyEngine, held: int, remembered: dict[int, float]) -> bool:
    """Do steps of a few widths, the quickest of three each, take as long as they did?"""
    checked = [rows for rows in CHECK_WIDTHS if rows in remembered] or list(remembered)[:1]
    quickest = {rows: min(_step(engine, held, rows) for _ in range(3)) for rows in checked}
    return all(abs(seconds - remembered[rows]) <= TOLERANCE * remembered[rows] for rows, seconds in quickest.items())


def _step(engine: VerifyEngine, held: int, rows: int) -> float:
    """Seconds of one step.

    Where a target saves its state before a step with drafts the sequence holds an id, so that there is one to save.
    """
    if held:
        engine.decode([Span(0, 0, (0,), logits=False)])
    started = time.monotonic()
    engine.decode([Span(0, held, (0,) * rows, logits=True)])
    seconds = time.monotonic() - started
    engine.trim(0, 0)
    return seconds


class CostCache:
    """The step times of one model file in one setting, on disk. No call raises."""

    def __init__(self, model: Path, setting: str, folder: Path | None = None) -> None:
        folder = folder or user_cache_path("specmesh") / "steps"
        identity = _identity(model)
        name = hashlib.sha256(f"{identity} {setting} {__version__}".encode()).hexdigest()[:32]
        self._path = folder / f"{name}.json" if identity else None

    def load(self) -> dict[int, float] | None:
        """Seconds by rows; None where nothing usable is remembered."""
        if self._path is None:
            return None
        try:
            table = {int(rows): float(seconds) for rows, seconds in json.loads(self._path.read_text()).items()}
        except (OSError, ValueError, AttributeError, TypeError, RecursionError):
            return None
        sound = all(1 <= rows <= MAX_ROWS and isfinite(seconds) and seconds > 0 for rows, seconds in table.items())
        return table if table and sound else None

    def store(self, table: dict[int, float]) -> None:
        if self._path is None or not table:
            return
        try:
            write_whole(self._path, json.dumps(table).encode())
        except OSError as error:
            log.warning("step_times_not_kept", folder=str(self._path.parent), reason=error.strerror)


def _identity(model: Path) -> str:
    """What tells a model file from others without reading all of it; empty for what is no file."""
    try:
        size = model.stat().st_size
        with model.open("rb") as file:
            head = file.read(_SAMPLE)
            file.seek(max(size - _SAMPLE, 0))
            return f"{size} {hashlib.sha256(head + file.read(_SAMPLE)).hexdigest()}"
    except OSError:
        return ""
