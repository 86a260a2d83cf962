"""Step times that were measured once, on disk by model, backend and settings: the next start needs no calibration.

Nothing here is needed: what is missing, damaged or cannot be written means measuring again.
"""

import hashlib
import json
import time
from math import isfinite
from pathlib import Path

import structlog
from platformdirs import user_cache_path

from specmesh import __version__
from specmesh.core.draft_length.step_costs import StepCosts
from specmesh.engines.base import Span, VerifyEngine

WIDTHS = (1, 2, 3, 5, 9, 17, 4, 7, 8, 6, 10, 12, 14, 16, 11, 13, 15, 24, 33)
"""Rows, the ones that tell most first: what time does not reach is interpolated until it is met."""

REPEATS = 3
BUDGET = 2.0  # seconds after which no further measurement is begun
CHECK_WIDTHS, SAME = (1, 3, 5), 0.2
"""Steps of so many rows may be so far from what is remembered of them for the rest of it to hold."""


def calibrate(engine: VerifyEngine, costs: StepCosts, remembered: dict[int, float] | None = None) -> None:
    """Measure steps of the WIDTHS on an empty sequence, over and over while there is time, and leave it empty again.
    Where a target has one width only, that is measured.

    remembered: seconds by rows of an earlier run with the same model and machine; taken over where steps of a few
    widths still take as long as then.
    """
    begun = time.monotonic()
    held = int(engine.info.trimming == "restore")
    constant = engine.info.width
    candidates = WIDTHS if constant is None else (constant,)
    most = min(engine.info.n_outputs or engine.info.n_batch, engine.info.n_ctx - held)
    widths = [rows for rows in candidates if rows <= most]
    _step(engine, held, widths[0])  # the first ever warms caches up and is not typical
    if remembered is not None and widths[0] in remembered and _still(engine, held, remembered):
        for rows, seconds in remembered.items():
            costs.record(rows, seconds)
        return
    for _ in range(REPEATS):
        for rows in widths:
            if time.monotonic() - begun > BUDGET:
                return
            costs.record(rows, _step(engine, held, rows))


def _still(engine: VerifyEngine, held: int, remembered: dict[int, float]) -> bool:
    """Whether steps of a few widths take as long as they did, the quickest of three each."""
    checked = [rows for rows in CHECK_WIDTHS if rows in remembered] or list(remembered)[:1]
    quickest = {rows: min(_step(engine, held, rows) for _ in range(3)) for rows in checked}
    return all(abs(seconds - remembered[rows]) <= SAME * remembered[rows] for rows, seconds in quickest.items())


def _step(engine: VerifyEngine, held: int, rows: int) -> float:
    """Seconds of one step of `rows` rows.

    Where a target saves its state before a step with drafts the sequence holds an id, so that there is one to save.
    """
    if held:
        engine.decode([Span(0, 0, (0,), logits=False)])
    started = time.monotonic()
    engine.decode([Span(0, held, (0,) * rows, logits=True)])
    seconds = time.monotonic() - started
    engine.trim(0, 0)
    return seconds


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
