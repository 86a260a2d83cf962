"""An input's bytes as choices, and as frames of a peer that are true, or nearly true."""

from collections import Counter
from collections.abc import Sequence
from typing import TypeVar
from zlib import crc32

from fuzz.oracle import N_VOCAB
from specmesh.core.prefix import Prefix
from specmesh.errors import FrameError
from specmesh.wire import messages as m
from specmesh.wire.codec import CRC, decode, encode

WILD_IDS = (-1, -(2**31), N_VOCAB, 2**31 - 1)
STEPS = (0, 0, 0, 0, 1, 2, 4, 8, -1, -2, -4, -8)
FLAWLESS = 160  # of 256 frames name a true place
WRONG = 96  # of 256 frames may have a wrong id

Place = tuple[int, int, int]
"""Session, base and CRC of a frame of the token plane."""

T = TypeVar("T")


class Tape:
    """Reads its bytes in order, then zeros for ever: every input is a whole script."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def left(self) -> bool:
        return self._at < len(self._data)

    def take(self, count: int) -> bytes:
        taken = self._data[self._at : self._at + count]
        self._at += count
        return taken

    def byte(self) -> int:
        return self.number(1)

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "little")

    def choice(self, options: Sequence[T]) -> T:
        return options[self.byte() % len(options)]


def frame_of(tape: Tape, truth: Prefix, session: int, frontier: int) -> bytes:
    """Return a token-plane frame about `truth` near its position `frontier`, with flaws."""
    kind = tape.choice((m.Draft, m.DraftProbs, m.Nack, m.Truth, m.Sync))
    flaws = max(tape.byte() - FLAWLESS, 0)
    base = tape.number(4) if flaws & 1 else max(frontier + tape.choice(STEPS), 0)
    known = min(base, len(truth))
    crc = tape.number(4) if flaws & 2 else truth.crc_at(known)
    count = 0
    if kind is not m.Nack:
        count = tape.choice((300, 1000)) if flaws & 4 else tape.byte() % 12
    ids = truth[known : known + count]
    ids += [index % N_VOCAB for index in range(count - len(ids))]
    wrong = tape.byte()
    if wrong < WRONG and ids:
        ids[wrong % len(ids)] = tape.choice(WILD_IDS) if flaws & 8 else tape.byte() % N_VOCAB
    message = _message(kind, (session, base, crc), tuple(ids), tape)
    frame = bytearray(encode(message))
    if flaws & 16:
        frame[tape.byte() % len(frame)] ^= tape.byte()
    if flaws & 32:
        return repaired(bytes(frame))
    return bytes(frame)


def repaired(frame: bytes) -> bytes:
    """Return the frame with the right checksum, which no fuzzer would guess."""
    return frame[: -CRC.size] + CRC.pack(crc32(frame[: -CRC.size]))


def decoded(frame: bytes, seen: Counter[str]) -> m.Message | None:
    """Return the message. Count a refusal by its reason, and return None."""
    try:
        return decode(frame)
    except FrameError as error:
        seen[error.reason] += 1
        return None


def _message(
    kind: type[m.TokenMessage], place: Place, ids: tuple[int, ...], tape: Tape
) -> m.TokenMessage:
    number = tape.choice((0, 0, 1, 4, 16, 255))
    if kind is m.DraftProbs:
        return _with_probs(place, ids, number)
    last = tape.byte()
    if kind is m.Nack:
        return m.Nack(*place)
    if kind is m.Truth:
        return m.Truth(*place, ids, number, last)
    if kind is m.Sync:
        return m.Sync(*place, ids, number)
    return m.Draft(*place, ids)


def _with_probs(place: Place, ids: tuple[int, ...], number: int) -> m.DraftProbs:
    """Return drafts with distributions of up to three tokens, the draft's own token last.

    Some drafts have none. A `number` of 4 or 16 makes them wrong.
    """
    sizes = tuple(token % 4 for token in ids)
    support: list[int] = []
    for token, size in zip(ids, sizes, strict=True):
        for after in range(size):
            own = after == size - 1 and number != 4
            support.append(token if own else (token + after + 1) % N_VOCAB)
    weights = tuple(0 if number == 16 else 1 + token % 7 for token in support)
    session, base, crc = place
    return m.DraftProbs(
        session=session,
        base=base,
        prefix_crc=crc,
        ids=ids,
        sizes=sizes,
        support=tuple(support),
        weights=weights,
    )
