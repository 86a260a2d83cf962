"""The address of the memory in which llama.cpp computes on a CPU.

It computes attention there in vectors of 64 bytes, and takes the memory by `malloc`, which promises
multiples of 16. At one that is no multiple of 32 a long prompt takes a tenth longer.
"""

import ctypes
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

_VECTOR = 64
_PROMISED = 16
_FEWER = 0.75
_PIECE = 2**17
_PIECES = 32  # what is free among other memory is less than these
_BETWEEN = (_PIECES + 2) * _PIECE  # more than these leave when they are freed
_LARGEST = 2**25  # glibc maps what is larger, whatever was freed before


def align(run: Callable[[int], object], rows: int, size: int) -> None:
    """Call `run` with a number of rows so that the large memory that it takes begins at a vector.

    By glibc's `malloc` only; others are left alone. A new thread calls it, since glibc gives that
    an area of its own. A run with fewer rows comes first: what is small is taken from what that
    has freed.

    size: most bytes that `run` takes at once.
    """
    if not _is_glibc():
        return
    fewer = max(int(rows * _FEWER), 1)

    def runs() -> None:
        run(fewer)
        heap = _Heap()
        heap.prepare(min(max(size, 2 * _BETWEEN), _LARGEST))
        run(rows)
        heap.release()

    with ThreadPoolExecutor(1, "scratch") as thread:
        thread.submit(runs).result()


def _is_glibc() -> bool:
    try:
        return os.confstr("CS_GNU_LIBC_VERSION") is not None
    except (ValueError, OSError):
        return False


class _Heap:
    """The memory that this thread's `malloc` takes from."""

    def __init__(self) -> None:
        libc = ctypes.CDLL(None)
        self._take: Any = libc.malloc
        self._take.argtypes = (ctypes.c_size_t,)
        self._take.restype = ctypes.c_void_p
        self._free: Any = libc.free
        self._free.argtypes = (ctypes.c_void_p,)
        self._free.restype = None
        self._pieces: list[int] = []

    def prepare(self, size: int) -> None:
        """Have the next large `malloc` return a multiple of `_VECTOR`, and small ones not matter.

        size: bytes up to which memory is not mapped. A mapped piece begins at 16 bytes of a page.
        """
        self._free(
            self._take(size)
        )  # once such a piece was freed, those that follow are not mapped
        for _ in range(_PIECES):
            self._pieces.append(self._take(_PIECE))
        self._free(self._pieces.pop(_PIECES // 2))  # for what is small
        for shift in range(0, _VECTOR, _PROMISED):
            # Behind all that was ever used there is this, which stays, and then what comes next.
            between = self._take(_BETWEEN + shift)
            following = self._take(_BETWEEN)
            self._free(following)
            if following % _VECTOR == 0:
                break
            self._free(between)

    def release(self) -> None:
        """Free the pieces. Nothing was written there, nor in what stays: it takes no memory."""
        for piece in self._pieces:
            self._free(piece)
