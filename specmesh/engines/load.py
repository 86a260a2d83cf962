"""From settings to an engine; each library is imported only here and only when chosen."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from specmesh.config import ModelSettings
from specmesh.core.verifier_session import MAX_DRAFTS
from specmesh.core.vocabulary import Vocabulary
from specmesh.engines.base import DraftEngine, VerifyEngine
from specmesh.errors import ConfigError

if TYPE_CHECKING:
    from specmesh.engines.llama import LlamaSettings

Progress = Callable[[float], bool]
"""Called with the share loaded so far, 0..1; False gives up."""


def load_verifier(settings: ModelSettings, progress: Progress) -> VerifyEngine:
    """The target model; raises ConfigError, or EngineError when `progress` gave up."""
    match settings.engine:
        case "llama":
            from specmesh.engines.llama import LlamaVerifier

            return LlamaVerifier(_llama(settings), progress)
        case "sim":
            from specmesh.engines.sim import SimSettings, SimVerifier

            return SimVerifier(SimSettings.parse(settings.model or ""))
        case other:
            raise ConfigError(f"--engine {other} cannot verify: choose llama")


def load_drafter(settings: ModelSettings, progress: Progress) -> DraftEngine:
    """The draft model; raises ConfigError, or EngineError when `progress` gave up."""
    match settings.engine:
        case "llama":
            from specmesh.engines.llama import LlamaDrafter

            return LlamaDrafter(_llama(settings), progress)
        case "ngram":
            from specmesh.engines.ngram import NgramDrafter

            return NgramDrafter(n_ctx=settings.ctx, n_seq=settings.max_sessions)
        case "sim":
            from specmesh.engines.sim import SimDrafter, SimSettings

            return SimDrafter(SimSettings.parse(settings.model or ""))
        case other:
            raise ConfigError(f"--engine {other} cannot draft: choose llama or ngram")


@dataclass(frozen=True, slots=True)
class TokenizerFile:
    """A model's vocabulary without the model; `encode` is None where what it takes is not installed."""

    vocabulary: Vocabulary
    encode: Callable[[str], list[int]] | None


def load_tokenizer(path: Path) -> TokenizerFile:
    """The vocabulary of a GGUF file or a Hugging Face directory; raises ConfigError."""
    if path.is_dir():
        from specmesh.engines.hf_vocabulary import load_hf_vocabulary

        found = load_hf_vocabulary(path)
        return TokenizerFile(found.vocabulary, found.encode)
    from specmesh.engines.llama_model import LlamaModel, LlamaSettings

    model = LlamaModel(LlamaSettings(path, threads=1, gpu_layers=0, vocab_only=True))
    return TokenizerFile(model.vocabulary, model.encode)


def _llama(settings: ModelSettings) -> "LlamaSettings":
    from specmesh.engines.llama import LlamaSettings

    return LlamaSettings(
        path=Path(settings.model or ""),
        n_ctx=settings.ctx,
        n_seq=settings.max_sessions,
        threads=settings.threads,
        gpu_layers=settings.gpu_layers,
        gpu_required=settings.gpu_required,
        max_draft=MAX_DRAFTS,
    )
