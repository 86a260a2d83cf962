"""The codec: any bytes are a message or a FrameError, and a message survives being sent on."""

from collections import Counter

from fuzz.frames import decoded, repaired
from specmesh.wire.codec import CRC, HEADER, decode, encode

REASONS = frozenset({"length", "magic", "checksum", "version", "kind", "count", "body"})


def run(data: bytes) -> Counter[str]:
    """Decode the input as it is, and once more with the right checksum."""
    seen = Counter([_outcome(data)])
    if len(data) >= HEADER.size + CRC.size:
        seen[_outcome(repaired(data))] += 1
    return seen


def _outcome(frame: bytes) -> str:
    """Return the message's name, or the reason of the refusal."""
    message = decoded(frame, refused := Counter[str]())
    if message is None:
        [reason] = refused
        assert reason in REASONS, "the protocol does not know it"
        return reason
    assert decode(encode(message)) == message, "a message that does not survive being sent on"
    return type(message).__name__
