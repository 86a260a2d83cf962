"""The process around a daemon's loop."""

import gc
import threading
import weakref

from specmesh.daemons.process import Sweeper


class Session:
    """Refers to itself, as sessions and tasks do by way of others."""

    def __init__(self, gone: threading.Event) -> None:
        self.own = self
        weakref.finalize(self, gone.set)


def test_what_sessions_leave_behind_is_collected():
    """Garbage that has become old goes without a single further allocation; what was there before is not looked at."""
    there, gone = [[] for _ in range(1000)], threading.Event()
    gc.disable()
    sweeper = Sweeper(0.02)
    try:
        assert gc.get_freeze_count() > len(there)
        session = Session(gone)
        gc.collect(1)  # it is old now
        del session
        assert gone.wait(20)
    finally:
        sweeper.close()
        gc.enable()
        gc.unfreeze()
