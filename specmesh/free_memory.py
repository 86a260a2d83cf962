"""The memory that a process may still take on its host."""

import contextlib
import ctypes
import os
import resource
import sys
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

MIB = 2**20
_KIB = 1024
_NO_LIMIT = 2**60
"""Bytes beyond which the number of a cgroup stands for none: version 1 writes a huge one."""

_HOST_VM_INFO64 = 4  # of host_statistics64: struct vm_statistics64, in words of 32 bits
_VM_WORDS = 64  # there is room for more words than any version has


def free_bytes(root: Path = Path("/")) -> int | None:
    """Return the bytes that this process may take: the least that the host and limits allow.

    - On Linux, MemAvailable of the host, which counts the cache of files as free.
    - On Linux, what each cgroup of the process has left, its cache of files counted in the same
      way. Files that the process itself has mapped, as weights, do not count as free.
    - What RLIMIT_AS leaves of addresses, where the system shows how many are used.
    - On macOS, the free and inactive pages.

    Return None if the system shows nothing.

    root: the folder in which Linux's /proc and /sys are.
    """
    if sys.platform == "darwin":
        return _macos_free()
    mapped = _numbers(root / "proc/self/status").get("RssFile", 0) * _KIB
    found = [_address_space(root)]
    for rest in (_available(root), *_cgroups(root)):
        found.append(None if rest is None else rest - mapped)
    known = [number for number in found if number is not None]
    if not known:
        return None
    return max(min(known), 0)


def give_back_freed() -> None:
    """Have the system get back what this process has freed, where its C library keeps that."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's
    if trim is not None:
        trim(ctypes.c_size_t(0))


def _macos_free() -> int | None:
    """Return the bytes of free and inactive pages, by the kernel's own count."""
    library = ctypes.CDLL(None)
    counts = (ctypes.c_uint32 * _VM_WORDS)()
    words = ctypes.c_uint32(_VM_WORDS)
    library.mach_host_self.restype = ctypes.c_uint32
    host = library.mach_host_self()
    code = library.host_statistics64(host, _HOST_VM_INFO64, counts, ctypes.byref(words))
    if code != 0:
        return None
    free, _, inactive = counts[:3]
    return (int(free) + int(inactive)) * os.sysconf("SC_PAGE_SIZE")


def _available(root: Path) -> int | None:
    kib = _numbers(root / "proc/meminfo").get("MemAvailable")
    return None if kib is None else kib * _KIB


def _address_space(root: Path) -> int | None:
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    used = _numbers(root / "proc/self/status").get("VmSize")
    if limit == resource.RLIM_INFINITY or used is None:
        return None
    return limit - used * _KIB


def _cgroups(root: Path) -> Iterator[int | None]:
    """Yield what each cgroup of this process has left, from its own up to the root's."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers:
            base = root / "sys/fs/cgroup"
            names = ("memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            base = root / "sys/fs/cgroup/memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes")
        else:
            continue
        # In a container the path may be that of the host: the root of what is mounted counts too.
        group = PurePosixPath(path.lstrip("/"))
        for folder in (group, *group.parents):
            yield _rest(base / folder, *names)


def _rest(folder: Path, limit_name: str, usage_name: str) -> int | None:
    """Return what a cgroup has left; None if it has no limit."""
    limit = _number(folder / limit_name)
    usage = _number(folder / usage_name)
    if limit is None or usage is None or limit >= _NO_LIMIT:
        return None
    stat = _numbers(folder / "memory.stat")
    prefix = "total_" if "total_inactive_file" in stat else ""
    files = stat.get(f"{prefix}inactive_file", 0) + stat.get(f"{prefix}active_file", 0)
    return limit - max(usage - files, 0)


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""


def _number(path: Path) -> int | None:
    """Return the number in a file; None without one, as for "max"."""
    with contextlib.suppress(ValueError):
        return int(_text(path))
    return None


def _numbers(path: Path) -> dict[str, int]:
    """Return the numbers of a file of lines "name: number" or "name number", units left out."""
    numbers = dict[str, int]()
    for line in _text(path).splitlines():
        name, *values = line.replace(":", " ").split() or [""]
        with contextlib.suppress(ValueError, IndexError):
            numbers[name] = int(values[0])
    return numbers
