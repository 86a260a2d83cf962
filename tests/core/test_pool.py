"""Which drafter a session gets."""

from specmesh.core.pool import pick_drafter


def test_the_least_loaded_then_the_longest_attached():
    """Fewest sessions first; of equals the one that attached first; sessions without a drafter count for nobody."""
    assert pick_drafter(["a", "b", "c"], ["a", "a", "b", "c", None]) == "b"
    assert pick_drafter(["a", "b"], []) == "a"
    assert pick_drafter([], ["gone", None]) is None
