"""The accept rule against a brute-force oracle."""

import itertools

from hypothesis import settings

from specmesh.core.accept import Acceptance, accept

PROFILE = settings(derandomize=True, deadline=None, max_examples=300)
END = 0


def one_by_one(drafts, target, room):
    """What the target says alone, as far as the drafts carry it: (committed, accepted, tested)."""
    said = []
    while True:
        said.append(target[len(said)])
        agree = said == list(drafts[: len(said)])
        if not agree or said[-1] == END or len(said) == room:
            break
    accepted = sum(1 for n in range(1, len(drafts) + 1) if said[:n] == list(drafts[:n]))
    return tuple(said), accepted, min(len(said), len(drafts))


def judged(drafts, target, room):
    """accept() with a target that says `target`, and the rows that were looked at."""
    asked = []
    verdict = accept(drafts, lambda i: asked.append(i) or target[i], end_ids={END}, room=room)
    return verdict, asked


def test_every_small_case():
    """For all drafts and targets over three tokens the verdict is that of the target running alone."""
    for length in range(4):
        for drafts in itertools.product(range(3), repeat=length):
            for target in itertools.product(range(3), repeat=length + 1):
                for room in (1, 2, 9):
                    verdict, asked = judged(drafts, target, room)
                    committed, accepted, tested = one_by_one(drafts, target, room)
                    assert verdict == Acceptance(committed, accepted, tested, committed[-1] == END)
                    assert asked == list(range(len(committed)))
