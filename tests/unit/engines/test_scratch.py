"""The address of llama.cpp's scratch memory."""

import ctypes
import sys

import pytest
from harness.tables import cases

from specmesh.engines.llama import scratch

LIBC = ctypes.CDLL(None)
LIBC.malloc.argtypes = (ctypes.c_size_t,)
LIBC.malloc.restype = ctypes.c_void_p
LIBC.free.argtypes = (ctypes.c_void_p,)
LIBC.free.restype = None
ROWS = 512

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems are left alone")


class Backend:
    """It takes memory for its rows as llama.cpp's CPU backend does: what it had is given back."""

    def __init__(self, row_bytes, small):
        self.row_bytes = row_bytes
        self.small = small  # bytes of a row that are taken before, in small pieces
        self.address = None

    def run(self, rows):
        pieces = [LIBC.malloc(self.small) for _ in range(rows)]
        LIBC.free(self.address)
        self.address = LIBC.malloc(rows * self.row_bytes)
        for piece in pieces:
            LIBC.free(piece)


@pytest.fixture(params=[1000, 1728, 3360, 9000])
def backend(request):
    """Yield a backend with so many bytes for a row."""
    made = Backend(request.param, small=40)
    yield made
    LIBC.free(made.address)


@cases("before", "0 16 32 48")
def test_scratch_memory_begins_at_a_vector(backend, before):
    """Whatever was taken there before."""

    def run(rows):
        LIBC.malloc(2048 + before)
        backend.run(rows)

    scratch.align(run, ROWS, ROWS * 2**15)
    assert backend.address % 64 == 0
