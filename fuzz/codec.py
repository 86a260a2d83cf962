"""The codec: any bytes are a message or a FrameError, and a message survives being sent on."""

from collections import Counter
from zlib import crc32

from specmesh.errors import FrameError
from specmesh.wire.codec import HEADER, decode, encode
from specmesh.wire.messages import Kind

REASONS = frozenset({"length", "magic", "version", "kind", "count", "body"})


def run(data: bytes) -> Counter[str]:
    """Decode the input as it is and, where that makes another frame, with the checksum that its body has.

    Returns what came of it: a message's name, or the reason of the refusal.
    """
    seen = Counter([_decoded(data)])
    if len(data) >= HEADER.size and data[3] >= Kind.HELLO:
        seen[_decoded(repaired(data))] += 1
    return seen


def repaired(frame: bytes) -> bytes:
    """A control frame with the right checksum: nobody guesses 32 bits, and behind them is a parser."""
    return frame[:12] + crc32(frame[HEADER.size :]).to_bytes(4, "little") + frame[16:]


def _decoded(frame: bytes) -> str:
    try:
        message = decode(frame)
    except FrameError as error:
        return error.reason if error.reason in REASONS else _unknown(error.reason)
    assert decode(encode(message)) == message, "a message that does not survive being sent on"
    return type(message).__name__


def _unknown(reason: str) -> str:
    raise AssertionError(f"refused for a reason that the protocol does not know: {reason}")
