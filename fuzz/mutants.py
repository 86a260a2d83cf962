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
        file = VECTORS / f"{name}.json"
        content = json.loads(file.read_bytes())
        for vector in content["vectors"]:
            found.append(bytes.fromhex(vector["hex"]))
    report: dict[str, object] = {"rounds": 200, "by_position": [0.9, 0.7, 0.5] * 4}
    found.append(encode(m.Draft(7, 3000, 1, tuple(range(32)))))
    found.append(encode(m.Truth(7, 3000, 1, tuple(range(17)), 4)))
    found.append(encode(m.Sync(7, 0, 0, tuple(range(2000)), 4)))
    found.append(encode(m.Ids(9, 0, 0, tuple(range(2000)))))
    found.append(encode(m.Vocab(256, ["IHRoZQ=="] * 200)))
    found.append(encode(m.Done(7, "stop", 3000, report)))
    return found


@dataclass(slots=True)
class Mutant:
    """A frame that is damaged again and again, and another frame to take parts from."""

    rng: random.Random
    frame: bytearray
    other: bytes

    def place(self) -> int:
        return self.rng.randrange(len(self.frame))

    def length(self) -> int:
        return self.rng.randint(1, 64)

    def flip(self) -> None:
        at = self.place()
        bit = self.rng.randrange(8)
        self.frame[at] ^= 1 << bit

    def set_byte(self) -> None:
        other = self.rng.randrange(256)
        byte = self.rng.choice((*SPECIAL, other))
        self.frame[self.place()] = byte

    def cut(self) -> None:
        at = self.place()
        end = at + self.length()
        del self.frame[at:end]

    def repeat(self) -> None:
        at = self.place()
        end = at + self.length()
        self.frame[at:at] = self.frame[at:end]

    def splice(self) -> None:
        begin = self.rng.randrange(len(self.other))
        self.frame[self.place() :] = self.other[begin:]

    def insert(self) -> None:
        at = self.place()
        inserted = self.rng.randbytes(self.length())
        self.frame[at : at + 1] = inserted

    def set_count(self) -> None:
        other = self.rng.randrange(65536)
        count = self.rng.choice((*COUNTS, other))
        self.frame[16:18] = count.to_bytes(2, "little")

    def set_kind(self) -> None:
        other = self.rng.randrange(256)
        kind = self.rng.choice((*m.Kind, other))
        self.frame[3:4] = bytes([kind])

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
        damaged = rng.choice(frames)
        other = rng.choice(frames)
        mutant = Mutant(rng, bytearray(damaged), other)
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
