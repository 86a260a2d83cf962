"""The process in which `llama_trial` has a file read: `python -m specmesh.engines.llama_trial_child`."""

import logging
import os
from pathlib import Path

import structlog

from specmesh.child import Json, serve
from specmesh.core.probes import PROBES
from specmesh.engines.llama_cache import CacheSizes, LlamaCache
from specmesh.engines.llama_library import when_aborted
from specmesh.engines.llama_model import LlamaModel, LlamaSettings
from specmesh.errors import ConfigError, EngineError
from specmesh.gguf_vet import vet

_SIZES = CacheSizes(n_ctx=256, n_seq=1, rows=32, outputs=1, threads=1)


def answer(request: Json) -> Json:
    """Read the file at a request's `path`; the answer has `wrong`, a sentence, where that cannot be done."""
    path = Path(str(request["path"]))
    try:
        vet(path)
        _read(path)
    except (ConfigError, EngineError) as error:
        return {"wrong": str(error)}
    return {}


def _read(path: Path) -> None:
    """All that a daemon has llama.cpp do with a file before its first step, but for the weights."""
    model = LlamaModel(LlamaSettings(path, threads=1, gpu_layers=0, weights=False))
    for text in PROBES:
        model.encode(text)
    LlamaCache(model, _SIZES).close()
    model.close()


def _say(reason: str) -> None:
    os.write(2, f"{reason}\n".encode())


if __name__ == "__main__":
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    when_aborted(_say)
    serve(answer)
