"""An input's bytes as choices, and as frames that a peer might send: true ones, and such as are nearly true."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeVar
from zlib import crc32

from fuzz.oracle import N_VOCAB
from specmesh.core.prefix import Prefix
from specmesh.errors import FrameError
from specmesh.wire import messages as m
from specmesh.wire.codec import CRC, decode, encode

WILD_IDS = (-1, -(2**31), N_VOCAB, 2**31 - 1)
STEPS = (0, 0, 0, 0, 1, 2, 4, 8, -1, -2, -4, -8)
FLAWLESS, WRONG = 160, 96
"""Of 256 frames so many name a true place, and in so many an id may be wrong."""

T = TypeVar("T")


class Tape:
    """Reads its bytes in order, and zeros for ever once they are used up: every input is a whole script."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

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
    """A token-plane frame about `truth` near its position `frontier`, with what the tape changes of it."""
    kind = tape.choice((m.Draft, m.DraftProbs, m.Nack, m.Truth, m.Sync))
    flaws = max(tape.byte() - FLAWLESS, 0)
    base = tape.number(4) if flaws & 1 else max(frontier + tape.choice(STEPS), 0)
    known = min(base, len(truth))
    crc = tape.number(4) if flaws & 2 else truth.crc_at(known)
    count = (
        (tape.choice((300, 1000)) if flaws & 4 else tape.byte() % 12) if kind is not m.Nack else 0
    )
    ids = truth[known : known + count]
    ids += [index % N_VOCAB for index in range(count - len(ids))]
    wrong = tape.byte()
    if wrong < WRONG and ids:
        ids[wrong % len(ids)] = tape.choice(WILD_IDS) if flaws & 8 else tape.byte() % N_VOCAB
    frame = bytearray(encode(_message(kind, session, base, crc, tuple(ids), tape)))
    if flaws & 16:
        frame[tape.byte() % len(frame)] ^= tape.byte()
    return repaired(bytes(frame)) if flaws & 32 else bytes(frame)


def repaired(frame: bytes) -> bytes:
    """The frame with the right checksum: nobody guesses 32 bits, and behind them is a parser."""
    return frame[: -CRC.size] + CRC.pack(crc32(frame[: -CRC.size]))


def decoded(frame: bytes, seen: Counter[str]) -> m.Message | None:
    """The message; None where it is refused, which is counted by its reason."""
    try:
        return decode(frame)
    except FrameError as error:
        seen[error.reason] += 1
        return None


def _message(
    kind: type[m.TokenMessage], session: int, base: int, crc: int, ids: tuple[int, ...], tape: Tape
) -> m.TokenMessage:
    number = tape.choice((0, 0, 1, 4, 16, 255))
    if kind is m.DraftProbs:
        return _with_probs(session, base, crc, ids, number)
    rest = {m.Nack: (), m.Truth: (ids, number, tape.byte()), m.Sync: (ids, number)}.get(
        kind, (ids,)
    )
    made: Callable[..., m.TokenMessage] = kind
    return made(session, base, crc, *rest)


def _with_probs(
    session: int, base: int, crc: int, ids: tuple[int, ...], number: int
) -> m.DraftProbs:
    """Distributions of up to three tokens, the draft's own last; of some drafts none. `number`: 4 and 16 are wrong."""
    sizes = tuple(token % 4 for token in ids)
    support = tuple(
        token if after == size - 1 and number != 4 else (token + after + 1) % N_VOCAB
        for token, size in zip(ids, sizes, strict=True)
        for after in range(size)
    )
    weights = tuple(0 if number == 16 else 1 + token % 7 for token in support)
    return m.DraftProbs(
        session=session,
        base=base,
        prefix_crc=crc,
        ids=ids,
        sizes=sizes,
        support=support,
        weights=weights,
    )
