"""Weights in large pages of memory: with small ones, to look up addresses slows a step.

Linux gives large pages to memory, not to a mapped file, and where a process asks for them before it
writes there.
"""

import ctypes
from pathlib import Path

_MADV_HUGEPAGE = 14  # in Linux's mman-common.h
_LEAST = 2**24  # bytes of an area: the stack of a thread has less
_MAPS = Path("/proc/self/maps")


def advise() -> None:
    """Ask for large pages in all areas of memory that could hold weights, as far as possible."""
    try:
        lines = _MAPS.read_text().splitlines()
    except OSError:  # another system
        return
    madvise = ctypes.CDLL(None).madvise
    for start, size in areas(lines):
        madvise(ctypes.c_void_p(start), ctypes.c_size_t(size), _MADV_HUGEPAGE)


def areas(lines: list[str]) -> list[tuple[int, int]]:
    """Return the address and the bytes of each large area of a process's own memory.

    lines: of Linux's /proc/PID/maps.
    """
    found = list[tuple[int, int]]()
    for line in lines:
        bounds, rights, _, _, inode, *name = line.split()
        if rights != "rw-p" or inode != "0" or name:
            continue
        start, end = [int(bound, 16) for bound in bounds.split("-")]
        if end - start >= _LEAST:
            found.append((start, end - start))
    return found
