"""Damaged frames by the million through the codec: python -m fuzz.mutants [--frames N].

Real frames of every kind, each changed in up to three ways; every second one gets its right checksum afterwards, as
else all would end there. One that raises anything but FrameError ends the run, and joins the corpus.
"""

import argparse
import json
import random
from collections import Counter
from collections.abc import Iterator
from hashlib import sha256
from itertools import islice
from pathlib import Path

from fuzz import CORPUS
from fuzz.codec import REASONS
from fuzz.frames import decoded, repaired
from specmesh.wire import messages as m
from specmesh.wire.codec import HEADER, encode

COUNTS = (0, 1, 8192, 8193, 65535)
VECTORS = Path(__file__).parents[1] / "wire" / "vectors"


def originals() -> list[bytes]:
    """The golden vectors of all kinds, and longer frames as a long session has them."""
    found = []
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


def _damaged(rng: random.Random, frame: bytes, other: bytes) -> bytes:
    at, size = rng.randrange(len(frame)), rng.randint(1, 64)
    head, tail = frame[:at], frame[at + 1 :]
    ways = (
        lambda: head + bytes([frame[at] ^ 1 << rng.randrange(8)]) + tail,
        lambda: head + rng.choice((b"\0", b"\xff", b'"', b"{", b"]", rng.randbytes(1))) + tail,
        lambda: head + frame[at + size :],
        lambda: head + frame[at : at + size] * 2 + frame[at + size :],
        lambda: head + other[rng.randrange(len(other)) :],
        lambda: head + rng.randbytes(size) + tail,
        lambda: (
            frame[:16]
            + rng.choice((*COUNTS, rng.randrange(65536))).to_bytes(2, "little")
            + frame[18:]
        ),
        lambda: frame[:3] + bytes([rng.choice((*m.Kind, rng.randrange(256)))]) + frame[4:],
        lambda: frame[: HEADER.size] + other[HEADER.size :],  # the body of another kind
    )
    return rng.choice(ways)()


def mutants(seed: int) -> Iterator[bytes]:
    rng, frames = random.Random(seed), originals()
    while True:
        frame = rng.choice(frames)
        for _ in range(rng.choice((1, 1, 2, 3))):
            frame = _damaged(rng, frame or b"\0", rng.choice(frames))
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
        except Exception:  # whatever it is, the frame that led to it must not be lost
            (CORPUS / "codec" / f"crash-{sha256(frame).hexdigest()[:16]}").write_bytes(frame)
            raise
        if message is not None:
            found[type(message).__name__] += 1
    for reason, count in found.most_common():
        print(f"{'refused' if reason in REASONS else 'message'}  {reason:<12}{count:>9}")


if __name__ == "__main__":
    main()
