"""Prompt lookup: what it guesses, and that its index follows every cut."""

from harness.engine_contract import GREEDY, predict
from hypothesis import given
from hypothesis import strategies as st

from specmesh.engines.ngram import NgramDrafter


def searched(ids: list[int], longest: int = 4, shortest: int = 2) -> int | None:
    """The same guess by looking through everything."""
    for size in range(longest, shortest - 1, -1):
        for end in range(len(ids) - 1, size - 1, -1):
            if size < len(ids) and ids[end - size : end] == ids[-size:]:
                return ids[end]
    return None


SHORT_IDS = st.lists(st.integers(0, 3), max_size=12)


@given(st.lists(st.tuples(st.integers(0, 30), SHORT_IDS), max_size=12))
def test_equals_a_full_search_after_any_history(moves: list[tuple[int, list[int]]]) -> None:
    drafter = NgramDrafter(512, 1)
    ids: list[int] = []
    for length, more in moves:
        held = drafter.trim(0, length)
        del ids[length:]
        assert held == len(ids)
        if more:
            ids += more
            assert predict(drafter, 0, more, GREEDY) == searched(ids)
