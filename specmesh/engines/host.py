"""This machine as its daemons share it: its cores, and a name by which two of them know that it is one."""

import functools
import hashlib
import os
import subprocess
from pathlib import Path


@functools.cache
def physical_cores() -> int:
    """Cores this process may run on, counting hyper-threads of one core once."""
    try:
        allowed = os.sched_getaffinity(0)  # type: ignore[attr-defined,unused-ignore]
    except AttributeError:  # macOS, whose cores have one thread each
        return os.cpu_count() or 1
    return len({_siblings(cpu) for cpu in allowed})


def _siblings(cpu: int) -> str:
    try:
        return Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text()
    except OSError:
        return str(cpu)


@functools.cache
def host_id() -> str:
    """A digest that two processes have in common where one kernel runs both, containers included; empty if unknown.

    It is made of the boot's own id, so that it names no machine to a peer, and is another after the next boot.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()
    except OSError:
        asked = ["/usr/sbin/sysctl", "-n", "kern.bootsessionuuid"]
        try:
            boot = subprocess.run(asked, capture_output=True, text=True, timeout=5, check=False).stdout  # noqa: S603
        except (OSError, subprocess.SubprocessError):
            boot = ""
    return hashlib.sha256(f"specmesh {boot.strip()}".encode()).hexdigest()[:32] if boot.strip() else ""
