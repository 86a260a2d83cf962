"""An engine's CPU threads beside those of the other daemon of its host: more than cores stall at every barrier."""

from collections.abc import Iterable

from specmesh.core.events import Noted
from specmesh.wire import messages as m

HostPeer = m.Hello | m.Welcome  # they tell of their host and the threads that they take there, 0 off the CPU


class ThreadShare:
    """How many of `cores` an engine takes: `threads` now, and `alone` while nobody else computes on `host`. Unless it
    `follows` who does, they stay. drafts: the engine is a drafter's, which beside others takes a quarter of the cores:
    a draft model is small, and loses less by that than a target. A verifier takes what drafters leave."""

    def __init__(self, threads: int, cores: int, host: str, *, drafts: bool, follows: bool) -> None:
        self.alone = self.threads = threads
        self.host = host
        self._cores, self._drafts, self._follows = cores, drafts, follows
        self._warned = False

    def shared_with(self, peer: HostPeer) -> bool:
        return bool(self.host) and peer.host == self.host and peer.cpu_threads > 0

    def share(self, others: int) -> int:
        if not others or not self._follows:
            return self.alone
        return max(self._cores // 4 if self._drafts else self._cores - others, 1)

    def beside(self, peers: Iterable[HostPeer]) -> Noted | None:
        """Take the threads that are right beside these peers; return what the log is to be told."""
        others = sum(peer.cpu_threads for peer in peers if self.shared_with(peer))
        before, self.threads = self.threads, self.share(others)
        if self.threads != before:
            why = f"others of this host take {others}" if others else "nobody else of this host computes on it"
            return Noted("cpu_threads", {"threads": self.threads, "cores": self._cores, "why": why})
        fixed = others > 0 and self.threads > 0 and not self._follows
        if not fixed or self._warned or self.threads + others <= self._cores:
            return None
        self._warned = True
        meaning = "drafter and verifier of this host slow each other down: give fewer by --threads"
        numbers = {"threads": self.threads, "others": others, "cores": self._cores}
        return Noted("more_threads_than_cores", {**numbers, "meaning": meaning}, "warning")
