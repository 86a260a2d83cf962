"""Facts about the host that this process runs on."""

import contextlib
import functools
import hashlib
import math
import os
import resource
from pathlib import Path

_MAY_LOCK = 1 << 14  # CAP_IPC_LOCK, in linux/capability.h


@functools.cache
def physical_cores() -> int:
    """Return the number of cores this process may run on, without hyper-threads."""
    try:
        allowed = os.sched_getaffinity(0)  # type: ignore[attr-defined,unused-ignore]
    except AttributeError:  # macOS, whose cores have one thread each
        return os.cpu_count() or 1
    siblings = set[str]()
    try:
        for cpu in allowed:
            path = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
            siblings.add(path.read_text())
    except OSError:
        return len(allowed)
    return len(siblings)


@functools.cache
def physical_memory() -> int:
    """Return the bytes of this host's memory."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


@functools.cache
def host_id() -> str:
    """Return a digest that all processes under one kernel share, containers included.

    It is made of the boot's id, so it names no machine to a peer. It is empty if the system has no
    boot id, as on macOS.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()
    except OSError:
        return ""
    return hashlib.sha256(f"specmesh {boot.strip()}".encode()).hexdigest()[:32]


def lockable_bytes() -> float:
    """Return how much memory this process may lock, after it has raised its limit as far as it may.

    Infinity: there is no limit that the system tells.
    """
    hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)[1]
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (hard, hard))
    soft = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    if soft == resource.RLIM_INFINITY or _may_lock():
        return math.inf
    return soft


def _may_lock() -> bool:
    """Return True if the limit does not hold for this process."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return False
    for line in status.splitlines():
        name, _, value = line.partition(":")
        if name == "CapEff":
            return bool(int(value, 16) & _MAY_LOCK)
    return False
