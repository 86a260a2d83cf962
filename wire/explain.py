"""A frame in words, for people who look at bytes of the wire.

A DRAFT of session 7, with the drafts 100 and 200 behind its first 3 ids:

    32 bytes
      magic = b'SM'
      version = 2
      kind = 1
      session = 7
      base = 3
      prefix_crc = 0x00001234
      count = 2
      draft_n = 0
      accepted = 0
      body = 8 bytes
      checksum = 949bbc77
    Draft
      session = 7
      base = 3
      prefix_crc = 4660
      ids = [100, 200]
"""

import json
from collections.abc import Iterator
from dataclasses import fields

from specmesh.errors import FrameError
from specmesh.wire.codec import CRC, HEADER, decode

LONGEST_VALUE = 200  # characters of a field that are shown
_HEADER_NAMES = (
    "magic",
    "version",
    "kind",
    "session",
    "base",
    "prefix_crc",
    "count",
    "draft_n",
    "accepted",
)


def explain(frame: bytes) -> Iterator[str]:
    """Yield the lines that describe a frame: its parts by offset, then the message's fields.

    Raise FrameError for bytes that are no frame, after the lines that could be made.
    """
    yield f"{len(frame)} bytes"
    if len(frame) >= HEADER.size:
        yield from _explain_header(frame)
    # The header is shown first: of a damaged frame it is the most useful part.
    message = decode(frame)
    yield f"{type(message).__name__}"
    for one in fields(message):
        value = json.dumps(getattr(message, one.name), ensure_ascii=False)
        if len(value) > LONGEST_VALUE:
            value = f"{value[:LONGEST_VALUE]}... ({len(value)} characters)"
        yield f"  {one.name} = {value}"


def _explain_header(frame: bytes) -> Iterator[str]:
    """Yield a line for each field of the header, and one for the checksum."""
    for name, value in zip(_HEADER_NAMES, HEADER.unpack_from(frame), strict=True):
        shown = f"{value:#010x}" if name == "prefix_crc" else str(value)
        yield f"  {name} = {shown}"
    yield f"  body = {max(len(frame) - HEADER.size - CRC.size, 0)} bytes"
    yield f"  checksum = {frame[-CRC.size :].hex()}"


def from_hex(text: str) -> bytes:
    """Return the bytes of hexadecimal digits, blanks between them allowed. Raise FrameError."""
    try:
        return bytes.fromhex(text)
    except ValueError as error:
        raise FrameError("length", f"no hexadecimal digits: {error}") from None
