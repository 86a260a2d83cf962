"""How the C library's heap is used: one for all threads; free pages are given back; pages are claimed at once."""

import os
import platform
import subprocess
import sys

import pytest

ARENA = 64 * 2**20
"""glibc reserves so much for each heap but the first, at a multiple of that."""

PROGRAM = f"""
import ctypes, sys, threading
from pathlib import Path
from specmesh.heap import share_heap

if sys.argv[1] == "one":
    share_heap()
malloc = ctypes.CDLL(None).malloc
gate = threading.Barrier(4)
def allocate():
    malloc(1000)
    gate.wait()
    gate.wait()
threads = [threading.Thread(target=allocate) for _ in range(3)]
for thread in threads:
    thread.start()
gate.wait()
lines = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]
gate.wait()
spans = [tuple(int(part, 16) for part in line[0].split("-")) for line in lines]
print(sum(
    begin % {ARENA} == 0 and after[0] == end and after[1] == begin + {ARENA}
    for (begin, end), after in zip(spans, spans[1:])
))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has several")
def test_one_heap():
    """Without it each thread would have its own, as far as cores go."""

    def heaps(which: str) -> int:
        env = {name: value for name, value in os.environ.items() if name not in ("MALLOC_ARENA_MAX", "GLIBC_TUNABLES")}
        command = [sys.executable, "-c", PROGRAM, which]
        return int(subprocess.run(command, capture_output=True, text=True, check=True, env=env).stdout)

    assert heaps("one") == 0
    assert heaps("many") > 0


HOLES = """
from pathlib import Path
from specmesh.heap import give_back

def resident():
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Rss:"))

blocks = [bytes(1000) for _ in range(20_000)]
kept = blocks[:: 500]
full = resident()
del blocks
freed = resident()
give_back()
print(full - freed, full - resident())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library decides for itself")
def test_free_pages_are_given_back():
    """Those between what stays, too: of 20 MB in blocks of 1 kB, where one in 500 stays."""
    told = subprocess.run([sys.executable, "-c", HOLES], capture_output=True, text=True, check=True).stdout
    by_itself, given_back = (int(kilobytes) for kilobytes in told.split())
    assert by_itself < 5_000
    assert given_back > 15_000


CLAIM = """
import ctypes, sys
from contextlib import nullcontext
from pathlib import Path
from specmesh.heap import claimed

def resident():
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Rss:"))

malloc = ctypes.CDLL(None).malloc
malloc.restype = ctypes.c_void_p
before = resident()
with claimed() if sys.argv[1] == "claimed" else nullcontext():
    block = malloc(50_000_000)
between = resident()
malloc(50_000_000)
print(between - before, resident() - between, any(ctypes.string_at(block, 50_000_000)))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library claims pages as it likes")
def test_what_is_claimed_is_had_at_once():
    """All pages of a block that nothing is written to, zeros as those that come later, and none of blocks after it; a
    filling that somebody looks for errors with is left alone."""

    def taken(how: str, **env: str) -> tuple[int, int, str]:
        clean = {name: value for name, value in os.environ.items() if name not in ("MALLOC_PERTURB_", "GLIBC_TUNABLES")}
        command = [sys.executable, "-c", CLAIM, how]
        told = subprocess.run(command, capture_output=True, text=True, check=True, env=clean | env).stdout
        first, after, filled = told.split()
        return int(first), int(after), filled

    first, after, filled = taken("claimed")
    assert first > 48_000
    assert after < 4_000
    assert filled == "False"
    assert max(taken("not")[:2]) < 4_000
    first, after, filled = taken("claimed", MALLOC_PERTURB_="85")
    assert min(first, after) > 48_000
    assert filled == "True"
