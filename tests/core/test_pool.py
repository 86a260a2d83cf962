"""Which drafter a session gets."""

from specmesh.core.pool import pick_drafter


def test_fewest_sessions_then_longest_attached():
    """The least loaded drafter is chosen, of equals the first; without any there is none."""
    assert pick_drafter({"a": 2, "b": 1, "c": 1}) == "b"
    assert pick_drafter({"a": 0, "b": 0}) == "a"
    assert pick_drafter({}) is None
