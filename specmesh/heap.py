"""The C library's heap."""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_M_PERTURB, _M_ARENA_MAX = -6, -8
"""Of glibc's malloc.h."""


def share_heap() -> None:
    """One heap for all threads, where the C library is glibc: of its many each keeps what its thread needed most at
    once. To be called before the first thread is started, which would have one of its own."""
    with suppress(AttributeError, OSError):  # another C library
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


@contextmanager
def claimed() -> Iterator[None]:
    """What is allocated meanwhile is filled, where the C library is glibc: its pages are the process's from then on,
    and not from when they are first written to."""
    _perturb(1)
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
