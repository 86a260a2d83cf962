"""An engine's CPU threads beside those of the other daemon of its host: more than cores stall at every barrier."""


class ThreadShare:
    """How many of `cores` an engine takes: `threads` now, and `alone` while nobody else computes on this host.

    Unless it `follows` who does, they stay. drafts: the engine is a drafter's, which beside others takes a quarter of
    the cores: a draft model is small, and loses less by that than a target. A verifier takes what drafters leave.
    """

    def __init__(self, threads: int, cores: int, *, drafts: bool, follows: bool) -> None:
        self.alone = self.threads = threads
        self._cores, self._drafts, self._follows = cores, drafts, follows
        self._warned = False

    def share(self, others: int) -> int:
        if not others or not self._follows:
            return self.alone
        return max(self._cores // 4 if self._drafts else self._cores - others, 1)

    def changed(self, others: int) -> bool:
        """Note how many threads others take; return True where that changes the engine's."""
        before, self.threads = self.threads, self.share(others)
        return self.threads != before

    def too_many(self, others: int) -> bool:
        """Return True, once, where fixed threads and those of others are more than there are cores."""
        excess = others > 0 and self.threads > 0 and not self._follows and self.threads + others > self._cores
        first, self._warned = excess and not self._warned, self._warned or excess
        return first
