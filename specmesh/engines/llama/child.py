"""The process that tokenizes long prompts and asks RPC servers first: `python -m specmesh.engines.llama.child`."""

import functools
import logging
import os
import threading
from pathlib import Path

import structlog

from specmesh.engines.llama.library import gpu_devices, when_aborted
from specmesh.engines.llama.model import LlamaModel, LlamaSettings
from specmesh.engines.llama.rpc import add_server
from specmesh.engines.sandbox import Json, serve
from specmesh.errors import ConfigError, EngineError, RequestError

STACK = 2**30
"""Bytes: what the longest run of letters that the API lets in takes with some vocabularies."""


def answer(request: Json) -> Json:
    """To an `address`: its `devices`; this process ends where no RPC server answers there.

    To a `text` with the `path` and `fingerprint` of a model: its `ids`; or `refused`, what is wrong with the text; or
    `wrong`, what is with the model.
    """
    if "address" in request:
        before = set(gpu_devices())
        add_server(str(request["address"]))
        return {"devices": [device for device in gpu_devices() if device not in before]}
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
