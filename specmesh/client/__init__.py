"""The client of a daemon's API, over its Unix socket or a URL.

`address`, `http_exchange`, `request_bodies`, `pieces` and `resume` are shared by `sync` and `aio`,
which add sockets, the clock and waiting.
"""

from specmesh.client.address import local_sockets, starting
from specmesh.client.pieces import (
    Completion,
    FunctionCall,
    ReadingProgress,
    Source,
    TextPiece,
    TokenLogprob,
    TokenLogprobs,
)
from specmesh.client.request_bodies import ChatOptions, Message, Prompt, TextOptions
from specmesh.client.resume import RECONNECT_TIMEOUT, START_TIMEOUT_S
from specmesh.client.sync import Client, Stream, answer
from specmesh.client.text import GeneratedText, printable

__all__ = [
    "RECONNECT_TIMEOUT",
    "START_TIMEOUT_S",
    "ChatOptions",
    "Client",
    "Completion",
    "FunctionCall",
    "GeneratedText",
    "Message",
    "Prompt",
    "ReadingProgress",
    "Source",
    "Stream",
    "TextOptions",
    "TextPiece",
    "TokenLogprob",
    "TokenLogprobs",
    "answer",
    "local_sockets",
    "printable",
    "starting",
]
