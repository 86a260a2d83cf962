"""The process in which `llama_tokens` has prompts tokenized: `python -m specmesh.engines.llama_tokens_child`."""

import functools
import logging
import os
import threading
from pathlib import Path

import structlog

from specmesh.child import Json, serve
from specmesh.engines.llama_library import when_aborted
from specmesh.engines.llama_model import LlamaModel, LlamaSettings
from specmesh.errors import ConfigError, EngineError, RequestError

STACK = 2**30
"""Bytes of stack: what the longest run of letters takes, which the API would let in, with some vocabularies."""


def answer(request: Json) -> Json:
    """`ids` of a request's `text`; or `refused`, what is wrong with it; or `wrong`, what is with the model."""
    try:
        model = _model(str(request["path"]), str(request["fingerprint"]))
        return {"ids": model.encode(str(request["text"]))}
    except RequestError as error:
        return {"refused": str(error)}
    except (ConfigError, EngineError) as error:
        return {"wrong": str(error)}


@functools.lru_cache(maxsize=1)
def _model(path: str, fingerprint: str) -> LlamaModel:
    model = LlamaModel(LlamaSettings(Path(path), threads=1, gpu_layers=0, vocab_only=True))
    if model.vocabulary.fingerprint() != fingerprint:
        raise EngineError(f"{path} has changed since it was loaded: start the daemon again")
    return model


def _say(reason: str) -> None:
    os.write(2, f"{reason}\n".encode())


if __name__ == "__main__":
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    when_aborted(_say)
    threading.stack_size(STACK)
    thread = threading.Thread(target=serve, args=(answer,))
    thread.start()
    thread.join()
