"""The engine that settings ask for. Each library is imported only if its engine is chosen."""

import platform
import sys
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import structlog

from specmesh import paths
from specmesh.config import ModelSettings
from specmesh.core.drafter.window import SPARES, slack
from specmesh.core.vocabulary.match import compare
from specmesh.engines.base import DraftEngine, LocalDrafter, Progress, VerifyEngine
from specmesh.engines.remapped import RemappedDrafter
from specmesh.errors import ConfigError
from specmesh.models.files import located

log = structlog.get_logger("specmesh")

BUNDLED = "bundled"

GUESTS = 2  # sequences of a target for short texts, which do not wait for long ones


def check_there(settings: ModelSettings) -> ModelSettings:
    """Return the settings with the path of the model's file. Raises NotThereYet.

    This takes as long as a disk and a driver take. It loads no library into this process.
    """
    path = located(settings.model, settings.engine)
    engine = settings.engine
    if engine == "auto":
        engine = choose_engine(path)
    if engine == "llama" and (settings.rpc or settings.require_gpu):
        from specmesh.engines.llama.library import check_gpu, check_servers

        if settings.rpc:  # the devices of these servers count as GPUs
            check_servers(settings.rpc)
        else:
            check_gpu()
    template = settings.chat_template
    if template is not None:
        paths.check_there(template, "--chat-template")
    settings.check_llama_options(engine)
    if settings.llama.given():  # of --engine llama only
        from specmesh.engines.llama.trial import check_options

        bundled = paths.bundled("drafter.gguf") if path == BUNDLED else path
        check_options(replace(settings, engine=engine, model=bundled))
    return replace(settings, model=path)


def import_engine(settings: ModelSettings) -> None:
    """Import the library of llama.cpp and what runs it, if it is chosen. Raises ConfigError.

    Other threads need the interpreter for this: afterwards llama.cpp loads beside them.
    """
    engine = settings.engine
    if engine == "auto":
        engine = choose_engine(settings.model)
    if engine == "llama":
        _check_llama()
        import_module("specmesh.engines.llama.engine")


def load_verifier(settings: ModelSettings, progress: Progress) -> VerifyEngine:
    """Load the target model. Raises ConfigError."""
    match settings.engine:
        case "llama" if settings.stretch:
            _check_llama()
            from specmesh.engines.stretched import StretchedVerifier

            return StretchedVerifier(settings, progress, guests=GUESTS)
        case "llama":
            _check_llama()
            from specmesh.engines.llama.engine import LlamaVerifier

            return LlamaVerifier(settings, progress, guests=GUESTS)
        case "mlx":
            from specmesh.engines.mlx.model import check_library

            check_library()
            from specmesh.engines.mlx.verifier import MlxVerifier

            return MlxVerifier(settings, progress, guests=GUESTS)
        case _:  # sim
            from specmesh.engines.sim import SimSettings, SimVerifier

            return SimVerifier(SimSettings.parse(settings.model or ""), guests=GUESTS)


class LoadedTarget(NamedTuple):
    """A target, and the drafter in its process if there is one."""

    engine: VerifyEngine
    drafter: LocalDrafter | None

    def close(self) -> None:
        """Free both."""
        if self.drafter is not None:
            self.drafter.engine.close()
        self.engine.close()


def load_target(
    settings: ModelSettings, draft: ModelSettings | None, progress: Progress
) -> LoadedTarget:
    """Load a target, and before it the draft model beside it. Raises ConfigError.

    The draft model is small: if it is of no use that is known at once. And the target's cache is
    fitted into the memory that is left. Without one the target's own head drafts, if it has one.
    """
    if draft is None:
        engine = load_verifier(settings, progress)
        return LoadedTarget(engine, _own_head(engine, settings))
    settings = replace(settings, mtp=False)
    beside = load_drafter(draft, lambda _: None)
    try:
        engine = load_verifier(settings, progress)
        return LoadedTarget(engine, _in_ids_of(engine, beside))
    except BaseException:  # its memory would stay taken, whatever interrupted this
        beside.close()
        raise


def _own_head(engine: VerifyEngine, settings: ModelSettings) -> LocalDrafter | None:
    """Return a target's own head as its drafter; None if it has none."""
    if settings.engine != "llama":
        return None
    from specmesh.engines.llama.engine import LlamaVerifier

    assert isinstance(engine, LlamaVerifier), "llama.cpp's targets are of this class"
    if engine.head is None:
        return None
    log.info("own_head", model=engine.info.model, layers=engine.head.layers)
    return LocalDrafter(engine.head, engine.head)


def _in_ids_of(engine: VerifyEngine, drafter: DraftEngine) -> LocalDrafter:
    """Return a drafter for a target. Raises ConfigError if too few of their ids correspond."""
    own = drafter.vocabulary
    if own is None:
        return LocalDrafter(drafter, drafter)
    target = engine.tokenizer.vocabulary
    found = compare(own, target)
    log.info(f"vocabulary_{found.verdict}", model=drafter.info.model, meaning=found.meaning)
    if found.remap is None:
        reason = f"--draft-model {drafter.info.model} does not fit {engine.info.model}"
        raise ConfigError(f"{reason}: {found.meaning}", "choose one of the same family")
    if found.remap.identity:
        return LocalDrafter(drafter, drafter)
    return LocalDrafter(drafter, RemappedDrafter(drafter, found.remap, target))


def draft_settings(settings: ModelSettings, draft_model: str | None) -> ModelSettings | None:
    """Return the settings of the draft model beside a target; None for no such model.

    It has a sequence for each of the target's, and the threads and GPUs of the target.
    """
    if draft_model is None:
        return None
    return ModelSettings(
        engine=settings.engine,
        model=draft_model,
        window=0,
        max_sessions=settings.max_sessions + GUESTS,
        threads=settings.threads,
        gpu_layers=settings.gpu_layers,
        stretch=settings.stretch,
    )


def load_drafter(settings: ModelSettings, progress: Progress) -> DraftEngine:
    """Load the draft model. Raises ConfigError or EngineError."""
    engine = settings.engine
    model = settings.model
    if engine == "auto":
        engine = choose_engine(model)
        log.info("engine_chosen", engine=engine)
    if model == BUNDLED:
        model = paths.bundled("drafter-hf" if engine == "mlx" else "drafter.gguf")
    settings = replace(settings, engine=engine, model=model, ctx=_draft_ctx(settings))
    spares = SPARES if settings.window != 0 else 0
    match engine:
        case "mlx":
            from specmesh.engines.mlx.drafter import MlxDrafter

            return MlxDrafter(settings, progress, spares=spares)
        case "llama" if settings.stretch:
            _check_llama()
            from specmesh.engines.stretched import StretchedDrafter

            return StretchedDrafter(settings, progress, guests=spares)
        case "llama":
            _check_llama()
            from specmesh.engines.llama.engine import LlamaDrafter

            return LlamaDrafter(settings, progress, guests=spares)
        case "ngram":
            from specmesh.engines.ngram import NgramDrafter

            return NgramDrafter(settings.max_sessions)
        case _:  # sim
            from specmesh.engines.sim import SimDrafter, SimSettings

            return SimDrafter(SimSettings.parse(settings.model or ""), guests=spares)


def _check_llama() -> None:
    """Raise ConfigError if llama-cpp-python is not installed."""
    from specmesh.engines.llama.library import library

    library()


def _draft_ctx(settings: ModelSettings) -> int | None:
    """Return the cells of a draft model's sequence, by the settings.

    A window that grows needs some more, until the next one has been read.
    """
    if settings.ctx is None and settings.window:
        return settings.window + slack(settings.window)
    return settings.ctx


def choose_engine(model: str | None) -> str:
    """Return the engine that `auto` means for this model on this machine."""
    if not model:
        return "ngram"
    if model == BUNDLED:
        apple = sys.platform == "darwin" and platform.machine() == "arm64"
        prefers_mlx = apple or find_spec("llama_cpp") is None
        if prefers_mlx and find_spec("mlx_lm") is not None:
            return "mlx"
        return "llama"
    if model.endswith(".gguf") or Path(model).is_file():
        return "llama"
    return "mlx"
