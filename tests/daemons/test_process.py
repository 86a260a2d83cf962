"""The process around a daemon's loop."""

import gc
import weakref

from specmesh.daemons.process import COLLECT, keep_for_good


class Session:
    """Refers to itself, as sessions and tasks do by way of others."""

    def __init__(self) -> None:
        self.own = self


def test_what_sessions_leave_behind_is_collected():
    """Garbage that has become old is gone after some collections, however much there was at the start."""
    before = gc.get_threshold()
    there = [[] for _ in range(100_000)]
    try:
        gc.set_threshold(*COLLECT)
        keep_for_good()
        assert gc.get_freeze_count() > len(there)
        old = Session()
        gc.collect(1)  # it is old now
        gone = weakref.ref(old)
        del old
        kept = [[] for _ in range(12 * COLLECT[0])]
        assert gone() is None
        assert kept
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
