"""The C library's heap."""

import ctypes
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_M_PERTURB, _M_ARENA_MAX = -6, -8
"""Of glibc's malloc.h."""

_ZERO = 0xFF
"""glibc fills with the complement of this: what nobody writes to is as a page of the system's own."""

_claiming = threading.Lock()


def share_heap() -> None:
    """One heap for all threads, where the C library is glibc: of its many each keeps what its thread needed most at
    once. To be called before the first thread is started, which would have one of its own."""
    with suppress(AttributeError, OSError):  # another C library
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


@contextmanager
def claimed() -> Iterator[None]:
    """What any thread allocates meanwhile is filled with zeros, where the C library is glibc: its pages are the
    process's from then on, and not from when they are first written to. Another filling, of the environment, stays."""
    if "MALLOC_PERTURB_" in os.environ or "malloc.perturb" in os.environ.get("GLIBC_TUNABLES", ""):
        yield
        return
    with _claiming:
        _perturb(_ZERO)
        try:
            yield
        finally:
            _perturb(0)


def _perturb(byte: int) -> None:
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).mallopt(_M_PERTURB, byte)


def give_back() -> None:
    """Whole pages of it that are free, to the system, where the C library is glibc: by itself that gives back only what
    lies at the end, and the rest of what a busy moment needed stays with the process."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
