"""The codec: any bytes are a message or a FrameError, and a message survives being sent on."""

from collections import Counter
from zlib import crc32

from specmesh.errors import FrameError
from specmesh.wire.codec import CRC, HEADER, decode, encode

REASONS = frozenset({"length", "magic", "checksum", "version", "kind", "count", "body"})


def run(data: bytes) -> Counter[str]:
    """Decode the input as it is and, where that makes another frame, with the checksum that it should have."""
    seen = Counter([outcome(data)])
    if len(data) >= HEADER.size + CRC.size:
        seen[outcome(repaired(data))] += 1
    return seen


def repaired(frame: bytes) -> bytes:
    """The frame with the right checksum: nobody guesses 32 bits, and behind them is a parser."""
    return frame[: -CRC.size] + CRC.pack(crc32(frame[: -CRC.size]))


def outcome(frame: bytes) -> str:
    """A message's name, or the reason of the refusal; raises where something does not hold."""
    try:
        message = decode(frame)
    except FrameError as error:
        return error.reason if error.reason in REASONS else _unknown(error.reason)
    assert decode(encode(message)) == message, "a message that does not survive being sent on"
    return type(message).__name__


def _unknown(reason: str) -> str:
    raise AssertionError(f"refused for a reason that the protocol does not know: {reason}")
