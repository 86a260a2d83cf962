"""The address of llama.cpp's scratch memory."""

import subprocess
import sys

import pytest
from harness.tables import cases

ROWS = 512

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems are left alone")

PROGRAM = """
import ctypes
import sys

from specmesh.engines.llama import scratch

LIBC = ctypes.CDLL(None)
LIBC.malloc.argtypes = (ctypes.c_size_t,)
LIBC.malloc.restype = ctypes.c_void_p
LIBC.free.argtypes = (ctypes.c_void_p,)
LIBC.free.restype = None
rows_at_most, row_bytes, before = map(int, sys.argv[1:])
address = None


def run(rows):
    global address
    LIBC.malloc(2048 + before)
    pieces = [LIBC.malloc(40) for _ in range(rows)]
    LIBC.free(address)
    address = LIBC.malloc(rows * row_bytes)
    for piece in pieces:
        LIBC.free(piece)


scratch.align(run, rows_at_most, rows_at_most * 2**15)
print(address % 64)
"""
"""Takes memory for rows as llama.cpp's CPU backend does: what it had is given back before.

It is a process of its own, as a daemon is: what tests have freed would be taken first.
"""


@cases("row_bytes", "1000 1728 3360 9000")
@cases("before", "0 16 32 48")
def test_scratch_memory_begins_at_a_vector(row_bytes, before):
    """Whatever was taken there before."""
    words = map(str, (ROWS, row_bytes, before))
    done = subprocess.run([sys.executable, "-c", PROGRAM, *words], capture_output=True, check=True)
    assert done.stdout.strip() == b"0"
