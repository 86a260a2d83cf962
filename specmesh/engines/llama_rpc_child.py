"""The process in which `llama_rpc` asks servers: `python -m specmesh.engines.llama_rpc_child`."""

import logging
import os

import structlog

from specmesh.child import Json, serve
from specmesh.engines.llama_library import gpu_devices, when_aborted
from specmesh.engines.llama_rpc import add_server


def answer(request: Json) -> Json:
    """Connect to the server at a request's `address`; the answer has its `devices`. Without one this process ends."""
    before = set(gpu_devices())
    add_server(str(request["address"]))
    return {"devices": [device for device in gpu_devices() if device not in before]}


def _say(reason: str) -> None:
    os.write(2, f"{reason}\n".encode())


if __name__ == "__main__":
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    when_aborted(_say)
    serve(answer)
