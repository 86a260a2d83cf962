"""An engine's CPU threads beside those of the other daemon of its host.

More busy threads than cores stall each other at every barrier: two daemons with a thread per core each ran at a sixth
of their speed. Waiting passively instead costs a small model four fifths of its own.
"""

from collections.abc import Callable, Iterable

import structlog

from specmesh.engines.base import CpuEngine, DraftEngine, VerifyEngine
from specmesh.host import host_id, physical_cores
from specmesh.wire.messages import Hello, Welcome

log = structlog.get_logger("specmesh")


class SharedCores:
    """How many threads an engine takes. Where nothing was asked for (`explicit` is false) these follow who else
    computes on this host; a reproducible target keeps its own, since some kernels' sums depend on them.

    share: threads by default beside others, from the cores and the threads that the others take.
    """

    def __init__(
        self, engine: VerifyEngine | DraftEngine, share: Callable[[int, int], int], *, explicit: bool = False
    ) -> None:
        info = engine.info
        self.host = host_id()
        self._cores, self._share = physical_cores(), share
        self._follows = isinstance(engine, CpuEngine) and info.threads > 0 and not explicit and info.width is None
        self._alone = self._threads = info.threads
        self._warned = False

    @property
    def threads(self) -> int:
        """What it takes now; 0 where it does not compute on the CPU."""
        return self._threads

    @property
    def shared(self) -> int:
        """What it takes beside another that computes on this host."""
        return self._share(self._cores, 1) if self._follows else self._alone

    def beside(self, peers: Iterable[Hello | Welcome]) -> int | None:
        """These are there now: what the engine is to take from its next step on, None where that is what it takes
        already. Says so, and why, or warns once where nothing can be done about it."""
        others = sum(peer.cpu_threads for peer in peers if self.host and peer.host == self.host)
        if others and not self._follows and self._threads + others > self._cores and not self._warned:
            self._warned = self._threads > 0
            if self._warned:
                log.warning(
                    "more_threads_than_cores",
                    threads=self._threads,
                    others=others,
                    cores=self._cores,
                    meaning="drafter and verifier of this host slow each other down: give fewer by --threads",
                )
        wanted = self._share(self._cores, others) if others and self._follows else self._alone
        if wanted == self._threads:
            return None
        self._threads = wanted
        why = f"others of this host take {others}" if others else "nobody else of this host computes on it"
        log.info("cpu_threads", threads=wanted, cores=self._cores, why=why)
        return wanted
