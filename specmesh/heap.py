"""The C library's heap."""

import ctypes
from contextlib import suppress

_M_ARENA_MAX = -8
"""Of glibc's malloc.h."""


def share_heap() -> None:
    """One heap for all threads, where the C library is glibc: of its many each keeps what its thread needed most at
    once. To be called before the first thread is started, which would have one of its own."""
    with suppress(AttributeError, OSError):  # another C library
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


def give_back() -> None:
    """Whole pages of it that are free, to the system, where the C library is glibc: by itself that gives back only what
    lies at the end, and the rest of what a busy moment needed stays with the process."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
