"""The free memory of a host, by files as Linux has them."""

import ctypes
import os
import resource
import sys
from pathlib import Path

import pytest
from harness.tables import cases

from specmesh.free_memory import free_bytes, give_back_freed

GIB = 2**30
MEMINFO = "MemTotal:       33554432 kB\nMemFree:         1048576 kB\nMemAvailable:   16777216 kB\n"
STATUS = "Name:\tpython\nVmSize:\t 2097152 kB\nRssFile:\t 1048576 kB\n"


@pytest.fixture
def host(tmp_path, monkeypatch):
    """Return a function that writes the files of a host, and returns its folder."""
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY,) * 2)

    def write(**files):
        for name, text in {"proc/self/status": STATUS, **files}.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path

    return write


def test_what_is_available_but_for_weights_that_are_mapped(host):
    assert free_bytes(host(**{"proc/meminfo": MEMINFO})) == 15 * GIB


def test_a_host_that_shows_nothing(host):
    assert free_bytes(host()) is None


@cases(
    "path, limited, expected",
    """
    ["/user/daemon", "user/daemon", 3] ["/user/daemon", "user", 3] ["/user/daemon", "", 3]
    ["/", "", 3] ["/user/daemon", "other", 15]
    """,
)
def test_the_least_that_a_cgroup_has_left(host, path, limited, expected):
    """Its cache of files is free, but for what this process has mapped."""
    folder = f"sys/fs/cgroup/{limited}"
    files = {
        "proc/meminfo": MEMINFO,
        "proc/self/cgroup": f"0::{path}\n",
        f"{folder}/memory.max": f"{8 * GIB}\n",
        f"{folder}/memory.current": f"{6 * GIB}\n",
        f"{folder}/memory.stat": f"anon 1\ninactive_file {GIB}\nactive_file {GIB}\n",
    }
    assert free_bytes(host(**files)) == expected * GIB


def test_a_cgroup_without_a_limit(host):
    files = {
        "proc/meminfo": MEMINFO,
        "proc/self/cgroup": "0::/\n",
        "sys/fs/cgroup/memory.max": "max\n",
        "sys/fs/cgroup/memory.current": "5\n",
    }
    assert free_bytes(host(**files)) == 15 * GIB


@cases("limit, expected", "[$LIMIT, 5] [9223372036854771712, 15]", LIMIT=8 * GIB)
def test_a_cgroup_of_version_1(host, limit, expected):
    """Its number for no limit is huge."""
    folder = "sys/fs/cgroup/memory/docker"
    files = {
        "proc/meminfo": MEMINFO,
        "proc/self/cgroup": "5:cpu,cpuacct:/docker\n4:memory:/docker\n0::/\n",
        f"{folder}/memory.limit_in_bytes": str(limit),
        f"{folder}/memory.usage_in_bytes": str(3 * GIB),
        f"{folder}/memory.stat": f"inactive_file 1\ntotal_inactive_file {GIB}\n",
    }
    assert free_bytes(host(**files)) == expected * GIB


@cases("limit, expected", "[6, 4] [1, 0]")
def test_a_limit_of_addresses(host, monkeypatch, limit, expected):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit * GIB, limit * GIB))
    assert free_bytes(host(**{"proc/meminfo": MEMINFO})) == expected * GIB


@cases("code, expected", "[0, 12] [5, null]")
def test_macos(monkeypatch, code, expected):
    """It counts free and inactive pages."""

    class Library:
        class mach_host_self:  # noqa: N801 - the system's name
            restype = None

            def __new__(cls):
                return 9

        @staticmethod
        def host_statistics64(host, flavour, counts, words):
            [most] = ctypes.cast(words, ctypes.POINTER(ctypes.c_uint32))[:1]
            assert (host, flavour, most) == (9, 4, 64)
            counts[0:3] = (5, 100, 7)
            return code

    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(ctypes, "CDLL", lambda _: Library)
    monkeypatch.setattr(os, "sysconf", lambda _: GIB)
    assert free_bytes() == (None if expected is None else expected * GIB)


def resident():
    """Return the bytes of this process that are in memory."""
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="glibc's alone")
def test_what_was_freed_goes_back_to_the_system():
    """Though what is still used lies behind it."""
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    pieces = [libc.malloc(ctypes.c_size_t(65_536)) for _ in range(1000)]
    for piece in pieces:
        ctypes.memset(piece, 1, 65_536)
    for piece in pieces[:-1]:
        libc.free(ctypes.c_void_p(piece))
    before = resident()
    give_back_freed()
    assert before - resident() > 30_000_000
    libc.free(ctypes.c_void_p(pieces[-1]))
