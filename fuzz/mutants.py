"""Damaged frames by the million through the codec: python -m fuzz.mutants [--frames N].

Real frames of every kind, each changed in up to three ways. Every second one then gets the right
checksum: without it no other check would be reached. A frame that raises anything but FrameError
ends the run, and joins the corpus.
"""

import argparse
import json
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from itertools import islice
from pathlib import Path

from fuzz import CORPUS
from fuzz.codec import REASONS
from fuzz.frames import decoded, repaired
from specmesh.wire import messages as m
from specmesh.wire.codec import HEADER, encode

COUNTS = (0, 1, 8192, 8193, 65535)
SPECIAL = b'\0\xff"{]'
VECTORS = Path(__file__).parents[1] / "wire" / "vectors"


def originals() -> list[bytes]:
    """Return the golden vectors of all kinds, and longer frames of long sessions."""
    found: list[bytes] = []
    for name in ("token", "control", "accepted"):
        vectors = json.loads((VECTORS / f"{name}.json").read_text(encoding="utf-8"))["vectors"]
        found += [bytes.fromhex(vector["hex"]) for vector in vectors]
    longer: list[m.Message] = [
        m.Draft(7, 3000, 1, tuple(range(32))),
        m.Truth(7, 3000, 1, tuple(range(17)), 4),
        m.Sync(7, 0, 0, tuple(range(2000)), 4),
        m.Vocab(256, ["IHRoZQ=="] * 200),
        m.Done(7, "stop", 3000, {"rounds": 200, "by_position": [0.9, 0.7, 0.5] * 4}),
    ]
    return found + [encode(message) for message in longer]


@dataclass(slots=True)
class Mutant:
    """A frame that is damaged again and again, and another frame to take parts from."""

    rng: random.Random
    frame: bytearray
    other: bytes

    def flip(self) -> None:
        self.frame[self.rng.randrange(len(self.frame))] ^= 1 << self.rng.randrange(8)

    def set_byte(self) -> None:
        self.frame[self.rng.randrange(len(self.frame))] = self.rng.choice(
            (*SPECIAL, self.rng.randrange(256))
        )

    def cut(self) -> None:
        at = self.rng.randrange(len(self.frame))
        del self.frame[at : at + self.rng.randint(1, 64)]

    def repeat(self) -> None:
        at = self.rng.randrange(len(self.frame))
        self.frame[at:at] = self.frame[at : at + self.rng.randint(1, 64)]

    def splice(self) -> None:
        self.frame[self.rng.randrange(len(self.frame)) :] = self.other[
            self.rng.randrange(len(self.other)) :
        ]

    def insert(self) -> None:
        at = self.rng.randrange(len(self.frame))
        self.frame[at : at + 1] = self.rng.randbytes(self.rng.randint(1, 64))

    def set_count(self) -> None:
        count = self.rng.choice((*COUNTS, self.rng.randrange(65536)))
        self.frame[16:18] = count.to_bytes(2, "little")

    def set_kind(self) -> None:
        self.frame[3:4] = bytes([self.rng.choice((*m.Kind, self.rng.randrange(256)))])

    def set_body(self) -> None:
        self.frame[HEADER.size :] = self.other[HEADER.size :]


DAMAGES = (
    Mutant.flip,
    Mutant.set_byte,
    Mutant.cut,
    Mutant.repeat,
    Mutant.splice,
    Mutant.insert,
    Mutant.set_count,
    Mutant.set_kind,
    Mutant.set_body,
)


def mutants(seed: int) -> Iterator[bytes]:
    """Yield damaged frames, without end."""
    rng = random.Random(seed)
    frames = originals()
    while True:
        mutant = Mutant(rng, bytearray(rng.choice(frames)), rng.choice(frames))
        for _ in range(rng.choice((1, 1, 2, 3))):
            damage = rng.choice(DAMAGES)
            damage(mutant)
            mutant.frame = mutant.frame or bytearray(1)
        frame = bytes(mutant.frame)
        yield repaired(frame) if rng.randrange(2) else frame


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m fuzz.mutants", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--frames", type=int, default=1_000_000)
    found = Counter[str]()
    for frame in islice(mutants(1), parser.parse_args().frames):
        try:
            message = decoded(frame, found)
        except Exception:  # the frame that led to it must not be lost
            (CORPUS / "codec" / f"crash-{sha256(frame).hexdigest()[:16]}").write_bytes(frame)
            raise
        if message is not None:
            found[type(message).__name__] += 1
    for reason, count in found.most_common():
        kind = "refused" if reason in REASONS else "message"
        print(f"{kind}  {reason:<12}{count:>9}")


if __name__ == "__main__":
    main()
