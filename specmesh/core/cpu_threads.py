"""CPU threads of an engine on a host with another daemon.

More threads than cores stall at every barrier. So default threads of the two daemons add up to at
most the cores of the host while one drafts for the other.
"""

from collections.abc import Iterable

from specmesh.core import events as ev
from specmesh.wire import messages as m

HostPeer = m.Hello | m.Welcome
"""They name their host and the threads that they take there; 0 off the CPU."""


class ThreadShare:
    """The number of threads that an engine takes.

    - A draft model on a host with others takes a quarter of the cores: it is small, and loses less
      by that than a target.
    - A target takes the cores that drafters leave.

    threads: the number now.
    undivided: the number while no other daemon computes on `host`.
    """

    def __init__(
        self, threads: int, cores: int, host: str, *, drafter: bool, follows: bool
    ) -> None:
        """Begin without others. follows: the threads change with the others."""
        self.undivided = threads
        self.threads = threads
        self.host = host
        self._cores = cores
        self._drafter = drafter
        self._follows = follows
        self._warned = False

    def computes_here(self, peer: HostPeer) -> bool:
        """Return True if a peer computes on the CPU of this host."""
        return bool(self.host) and peer.host == self.host and peer.cpu_threads > 0

    def threads_beside(self, others: int) -> int:
        """Return the threads for an engine while others take so many."""
        if not others or not self._follows:
            return self.undivided
        left = self._cores - others
        if self._drafter:
            left = self._cores // 4
        return max(left, 1)

    def beside(self, peers: Iterable[HostPeer]) -> ev.Noted | None:
        """Take the threads that fit these peers; return a line for the log, if any."""
        others = sum(peer.cpu_threads for peer in peers if self.computes_here(peer))
        before = self.threads
        self.threads = self.threads_beside(others)
        if self.threads != before:
            why = f"others of this host take {others}"
            if not others:
                why = "nobody else of this host computes on it"
            fields: dict[str, object] = {"threads": self.threads, "cores": self._cores, "why": why}
            return ev.Noted("cpu_threads", fields)
        too_many = self.threads + others > self._cores
        fixed = others > 0 and self.threads > 0 and not self._follows
        if self._warned or not (fixed and too_many):
            return None
        self._warned = True
        advice = "drafter and verifier of this host slow each other down: give fewer by --threads"
        numbers = {"threads": self.threads, "others": others, "cores": self._cores}
        return ev.Noted("more_threads_than_cores", {**numbers, "meaning": advice}, "warning")
