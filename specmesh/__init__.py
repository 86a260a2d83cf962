"""specmesh: speculative decoding across machines.

`Client` and `AsyncClient` are its Python API, see docs/python.md; they, and what they return and
raise, are loaded when they are first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specmesh.client.aio import AsyncClient, AsyncStream
    from specmesh.client.pieces import (
        Completion,
        FunctionCall,
        ReadingProgress,
        TextPiece,
        TokenLogprob,
        TokenLogprobs,
    )
    from specmesh.client.request_bodies import ChatOptions, TextOptions
    from specmesh.client.sync import Client, Stream
    from specmesh.errors import SpecmeshError

__version__: str

__all__ = [
    "AsyncClient",
    "AsyncStream",
    "ChatOptions",
    "Client",
    "Completion",
    "FunctionCall",
    "ReadingProgress",
    "SpecmeshError",
    "Stream",
    "TextOptions",
    "TextPiece",
    "TokenLogprob",
    "TokenLogprobs",
    "__version__",
]

_MODULES = {
    "AsyncClient": "specmesh.client.aio",
    "AsyncStream": "specmesh.client.aio",
    "ChatOptions": "specmesh.client.request_bodies",
    "Client": "specmesh.client.sync",
    "Completion": "specmesh.client.pieces",
    "TokenLogprob": "specmesh.client.pieces",
    "TextPiece": "specmesh.client.pieces",
    "ReadingProgress": "specmesh.client.pieces",
    "SpecmeshError": "specmesh.errors",
    "Stream": "specmesh.client.sync",
    "TextOptions": "specmesh.client.request_bodies",
    "TokenLogprobs": "specmesh.client.pieces",
    "FunctionCall": "specmesh.client.pieces",
}


def __getattr__(name: str) -> object:
    """Return a public name on its first use: nothing of them is loaded before."""
    if name == "__version__":
        from importlib.metadata import version

        return version("specmesh")
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the public names, for completion in a shell."""
    return __all__
