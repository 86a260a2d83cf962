"""Damaged frames by the million through the codec: python -m fuzz.mutants [--frames N] [--seed N].

Real frames of every kind, each changed by up to three mutators.
"""

import argparse
import json
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from itertools import islice
from pathlib import Path

from fuzz import CORPUS
from fuzz.codec import REASONS, repaired
from specmesh.core.vocabulary.match import PROBES
from specmesh.errors import FrameError
from specmesh.wire import messages as m
from specmesh.wire.codec import HEADER, decode, encode

VECTORS = Path(__file__).parents[1] / "wire" / "vectors"


def originals() -> list[bytes]:
    """Real frames: the golden vectors of all kinds, and longer ones as a long session has them."""
    found = []
    for name in ("token", "control", "accepted"):
        vectors = json.loads((VECTORS / f"{name}.json").read_text(encoding="utf-8"))["vectors"]
        found += [bytes.fromhex(vector["hex"]) for vector in vectors]
    probes: dict[str, object] = {text: list(text.encode()) for text in PROBES}
    report: dict[str, object] = {"rounds": 200, "by_position": [0.9, 0.7, 0.5] * 4, "tokens_per_second": 31.25}
    longer: list[m.Message] = [
        m.Draft(7, 3000, 1, tuple(range(32))),
        m.DraftProbs(7, 3000, 1, tuple(range(8)), (20,) * 8, tuple(range(160)), tuple(range(1, 161))),
        m.Truth(7, 3000, 1, tuple(range(17)), 4),
        m.Sync(7, 0, 0, tuple(range(2000)), 4),
        m.Welcome("box", "big", "ab" * 32, "cd" * 32, 32000, 8192, [2, 32000], probes),
        m.Open(1, "It was a dark and stormy night. " * 60, 400, 0.8, 40, 0.95, 42, 4),
        m.Vocab(256, ["IHRoZQ=="] * 200),
        m.Done(7, "stop", 3000, report),
    ]
    return found + [encode(message) for message in longer]


BYTES = ("flip", "byte", "lose", "repeat", "splice")
MUTATORS = (*BYTES, "cut", "extend", "count", "kind", "body", "json")
"""Each second damaged frame is given its right checksum afterwards, see `mutants`: else all would end there."""


def _damaged(rng: random.Random, frame: bytes, other: bytes, ways: Sequence[str]) -> bytes:
    at, size = rng.randrange(len(frame)), rng.randint(1, 64)
    head, tail = frame[:at], frame[at + 1 :]
    match rng.choice(ways):
        case "flip":
            return head + bytes([frame[at] ^ 1 << rng.randrange(8)]) + tail
        case "byte":
            return head + rng.choice((b"\0", b"\xff", b"\x80", b'"', b"{", b"]", rng.randbytes(1))) + tail
        case "lose":
            return head + frame[at + rng.randint(1, 8) :]
        case "repeat":
            return head + frame[at : at + size] * 2 + frame[at + size :]
        case "splice":
            return head + other[rng.randrange(len(other)) :]
        case "cut":
            return head
        case "extend":
            return frame + rng.randbytes(rng.randint(1, 16))
        case "count":
            count = rng.choice((0, 1, 255, 8191, 8192, 8193, 65535, rng.randrange(65536)))
            return frame[:16] + count.to_bytes(2, "little") + frame[18:]
        case "kind":
            return frame[:3] + bytes([rng.choice((*m.Kind, rng.randrange(256)))]) + frame[4:]
        case "body":  # another frame's, with its checksum: JSON of the wrong message, or ids as JSON
            return repaired(frame[: HEADER.size] + other[HEADER.size :])
        case _:  # the payload damaged and its checksum right: what only the parser can refuse
            payload = _damaged(rng, frame[HEADER.size : -4] or b"{}", other, BYTES)
            return repaired(frame[: HEADER.size] + payload + bytes(4))


def mutants(seed: int) -> Iterator[bytes]:
    rng, frames = random.Random(seed), originals()
    while True:
        frame = rng.choice(frames)
        for _ in range(rng.choice((1, 1, 2, 3))):
            frame = _damaged(rng, frame or b"\0", rng.choice(frames), MUTATORS)
        yield repaired(frame) if rng.randrange(2) else frame


def decoded(frames: Iterable[bytes]) -> Counter[str]:
    """What comes of frames, by reason or message; one that raises anything but FrameError joins the corpus."""
    outcomes = Counter[str]()
    for frame in frames:
        try:
            outcomes[type(decode(frame)).__name__] += 1
        except FrameError as error:
            outcomes[error.reason] += 1
        except Exception:  # whatever it is, the frame that led to it must not be lost
            (CORPUS / "codec" / f"crash-{sha256(frame).hexdigest()[:16]}").write_bytes(frame)
            raise
    return outcomes


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m fuzz.mutants", description=__doc__.splitlines()[0])
    parser.add_argument("--frames", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    outcomes = decoded(islice(mutants(args.seed), args.frames))
    refused = {reason: count for reason, count in outcomes.most_common() if reason in REASONS}
    print(f"{args.frames} damaged frames: {args.frames - sum(refused.values())} messages, nothing but FrameError")
    for reason, count in refused.items():
        print(f"  {reason:<8}{count:>9}")


if __name__ == "__main__":
    main()
