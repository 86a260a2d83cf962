"""An engine's CPU threads beside those of the other daemon of its host: more than cores stall at every barrier."""

import functools
import hashlib
import subprocess
from collections.abc import Iterable
from pathlib import Path

import structlog

from specmesh.engines.base import CpuEngine, DraftEngine, VerifyEngine, physical_cores
from specmesh.wire.messages import Hello, Welcome

log = structlog.get_logger("specmesh")


class SharedCores:
    """How many `threads` an engine takes; 0 where it does not compute on the CPU.

    Unless `explicit`, they follow who else computes on this host; a reproducible target keeps its own, since some
    kernels' sums depend on them. drafts: the engine is a drafter's, which beside others takes a quarter of the cores: a
    draft model is small, and loses less by that than a target. A verifier takes what drafters leave while they draft,
    all cores (`alone`) while they do not.
    """

    def __init__(self, engine: VerifyEngine | DraftEngine, *, drafts: bool, explicit: bool = False) -> None:
        info = engine.info
        self.host = host_id()
        self._cores, self._drafts = physical_cores(), drafts
        self._follows = isinstance(engine, CpuEngine) and info.threads > 0 and not explicit and info.width is None
        self.alone = self.threads = info.threads
        self._warned = False

    def share(self, others: int) -> int:
        if not others or not self._follows:
            return self.alone
        return max(self._cores // 4 if self._drafts else self._cores - others, 1)

    def shared_with(self, peer: Hello | Welcome) -> bool:
        return bool(self.host) and peer.host == self.host and peer.cpu_threads > 0

    def beside(self, peers: Iterable[Hello | Welcome]) -> int | None:
        """Return the threads that the engine is to take beside these peers; None for as many as now.

        Logs a change, and warns once where `explicit` threads prevent one.
        """
        others = sum(peer.cpu_threads for peer in peers if self.shared_with(peer))
        wanted = self.share(others)
        if wanted != self.threads:
            self.threads = wanted
            why = f"others of this host take {others}" if others else "nobody else of this host computes on it"
            log.info("cpu_threads", threads=wanted, cores=self._cores, why=why)
            return wanted
        if others and self.threads and not self._follows and self.threads + others > self._cores and not self._warned:
            self._warned = True
            meaning = "drafter and verifier of this host slow each other down: give fewer by --threads"
            log.warning(
                "more_threads_than_cores", threads=self.threads, others=others, cores=self._cores, meaning=meaning
            )
        return None


@functools.cache
def host_id() -> str:
    """A digest that two processes have in common where one kernel runs both, containers included; empty if unknown.

    It is made of the boot's id, so that it names no machine to a peer.
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
