"""From settings to an engine, each library imported only when chosen; and an engine of another vocabulary."""

import platform
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import structlog

from specmesh.config import ModelSettings
from specmesh.core.draft_length.step_costs import StepCosts
from specmesh.core.events import Span
from specmesh.core.sampling.sampler import Logits, Sampler
from specmesh.core.vocabulary.remap import NONE, Remap
from specmesh.core.vocabulary.vocabulary import Vocabulary
from specmesh.engines.base import DEFAULT_CTX, Ask, DraftEngine, EngineInfo, Progress, VerifyEngine
from specmesh.errors import LocalProtocolError, NotThereYet
from specmesh.models import located
from specmesh.paths import bundled

log = structlog.get_logger("specmesh")

BUNDLED = "bundled"

GUESTS = 2  # sequences of a target for short texts, which do not wait for long ones


def check_there(settings: ModelSettings) -> ModelSettings:
    """Return the settings with the model's own path, once all that it needs is there; raise
    NotThereYet before. This takes as long as a disk and a driver take, and loads no library."""
    path, engine = located(settings.model, settings.engine), settings.engine
    if engine == "auto":
        engine = choose_engine(path)
    if engine == "llama" and (settings.rpc or settings.require_gpu):
        from specmesh.engines.llama.library import check_gpu, check_servers

        if settings.rpc:  # whose devices count as GPUs
            check_servers(settings.rpc)
        else:
            check_gpu()
    template = settings.chat_template
    if template is not None and not template.exists():
        what = f"--chat-template: there is no {template}"
        raise NotThereYet.of(what, "name a readable file")
    return replace(settings, model=path)


def load_verifier(settings: ModelSettings, progress: Progress) -> VerifyEngine:
    """Load the target model. Raises ConfigError."""
    match settings.engine:
        case "llama":
            from specmesh.engines.llama import LlamaVerifier
            from specmesh.engines.stretched import StretchedVerifier

            kind = StretchedVerifier if settings.stretch else LlamaVerifier
            return kind(settings, progress, guests=GUESTS)
        case _:  # sim
            from specmesh.engines.sim import SimSettings, SimVerifier

            return SimVerifier(SimSettings.parse(settings.model or ""), guests=GUESTS)


def load_drafter(settings: ModelSettings, progress: Progress) -> DraftEngine:
    """Load the draft model. Raises ConfigError or EngineError."""
    engine, model = settings.engine, settings.model
    if engine == "auto":
        engine = choose_engine(model)
        log.info("engine_chosen", engine=engine)
    if model == BUNDLED:
        model = bundled("drafter-hf" if engine == "mlx" else "drafter.gguf")
    settings = replace(settings, engine=engine, model=model)
    match engine:
        case "mlx":
            from specmesh.engines.mlx import MlxDrafter

            return MlxDrafter(settings)
        case "llama":
            from specmesh.engines.llama import LlamaDrafter
            from specmesh.engines.stretched import StretchedDrafter

            return (StretchedDrafter if settings.stretch else LlamaDrafter)(settings, progress)
        case "ngram":
            from specmesh.engines.ngram import NgramDrafter

            return NgramDrafter(
                n_ctx=settings.ctx or DEFAULT_CTX, max_sessions=settings.max_sessions
            )
        case _:  # sim
            from specmesh.engines.sim import SimDrafter, SimSettings

            return SimDrafter(SimSettings.parse(settings.model or ""))


def choose_engine(model: str | None) -> str:
    """Return the engine that `auto` means for this model on this machine."""
    if not model:
        return "ngram"
    if model == BUNDLED:
        apple = (sys.platform, platform.machine()) == ("darwin", "arm64")
        wanted = apple or find_spec("llama_cpp") is None
        return "mlx" if wanted and find_spec("mlx_lm") is not None else "llama"
    return "llama" if model.endswith(".gguf") or Path(model).is_file() else "mlx"


class RemappedDrafter:
    """`DraftEngine` around one of another vocabulary: `vocabulary` and all ids are the verifier's. Logits are put in
    the order of the verifier's ids before a token is chosen. Coupled sampling's noise belongs to the verifier's ids, so
    the acceptance rate does not suffer."""

    def __init__(self, engine: DraftEngine, remap: Remap, vocabulary: Vocabulary) -> None:
        self._engine, self._remap, self.vocabulary = engine, remap, vocabulary

    @property
    def info(self) -> EngineInfo:
        return self._engine.info

    def predict(self, asks: Sequence[Ask]) -> list[int | None]:
        drafts = self._engine.predict([self._translated(ask) for ask in asks])
        return [None if draft == NONE else draft for draft in drafts]

    def _translated(self, ask: Ask) -> Ask:
        ids = ask.ids
        if ids and not 0 <= min(ids) <= max(ids) < self._remap.n_verifier:
            raise LocalProtocolError(
                f"an id outside [0, {self._remap.n_verifier}) for sequence {ask.seq}"
            )
        sampler = None if ask.sampler is None else _Translating(ask.sampler, self._remap)
        return Ask(ask.seq, self._remap.to_draft(ids), sampler)

    def trim(self, seq: int, length: int) -> int:
        return self._engine.trim(seq, length)

    def close(self) -> None:
        self._engine.close()


class _Translating(Sampler):
    """Chooses one of the verifier's ids, or NONE where the draft model's best has no counterpart."""

    __slots__ = ("_remap", "_sampler")

    def __init__(self, sampler: Sampler, remap: Remap) -> None:
        super().__init__(sampler.params)
        self._sampler, self._remap = sampler, remap
        self.argmax = False  # an engine's own argmax would be one of its ids

    def choose(self, logits: Logits, position: int) -> int:
        best = self._remap.to_verifier(int(logits.argmax()))
        if best == NONE or self._sampler.argmax:
            return best
        return self._sampler.choose(self._remap.reordered(logits), position)


# rows: those first at whose sides kernels change, up to a step with the most drafts; more while there is time
WIDTHS = (1, 2, 4, 8, 9, 16, 17, 25, 3, 5, 6, 7, 12, 33, 10, 11, 13, 14, 15, 20)
REPEATS = 3
BUDGET = 2.0  # seconds after which no further measurement is begun


def calibrate(engine: VerifyEngine, costs: StepCosts) -> None:
    """Measure steps of the WIDTHS, or of the target's one width, on an empty sequence; leave it empty again."""
    begun, info = time.monotonic(), engine.info
    held = int(info.trimming == "restore")
    most = min(info.n_outputs or info.n_batch, info.n_ctx - held)
    widths = [rows for rows in (WIDTHS if info.width is None else (info.width,)) if rows <= most]
    _step(engine, held, widths[0])  # the first ever warms caches up and is not typical
    for number, rows in enumerate(widths * REPEATS):
        if number and time.monotonic() - begun > BUDGET:
            return
        costs.record(rows, _step(engine, held, rows))


def _step(engine: VerifyEngine, held: int, rows: int) -> float:
    """Seconds of one step. held: ids before it, so that a target that saves its state has one."""
    if held:
        engine.decode([Span(0, 0, (0,) * held, logits=False)])
    started = time.monotonic()
    engine.decode([Span(0, held, (0,) * rows, logits=True)])
    seconds = time.monotonic() - started
    engine.trim(0, 0)
    return seconds
