"""What the target says along the chains of a step: the choices that `accept` walks by."""

from specmesh.core import events as ev
from specmesh.core.guided import Guided
from specmesh.core.held_drafts import HeldDrafts
from specmesh.core.prefix import Prefix
from specmesh.core.rules import Choose, Rows, rule_of
from specmesh.core.sampling import Sampler


class Walk:
    """The choices of one session on `prefix`, which is its own and grows between two steps, as are its drafts and its
    constraint."""

    def __init__(self, prefix: Prefix, sampler: Sampler, guided: Guided, drafts: HeldDrafts) -> None:
        self._prefix, self._guided, self._drafts = prefix, guided, drafts
        self._sampler, self._rule = sampler, rule_of(sampler.params)

    def along(self, event: ev.Stepped) -> Choose:
        """The token after the first i drafts: by the rule, or out of what the grammar allows."""
        base = len(self._prefix)
        if self._guided:
            return lambda i: self._guided.choose(self.after(event.drafts[:i]), event.logits[i], base + i)
        offers = self._drafts.offers(event.drafts)
        return self._rule.choices(
            Rows(base, self._prefix.crc, event.logits, offers, lambda i: self.after(event.drafts[:i]))
        )

    def aside(self, event: ev.Stepped) -> Choose:
        """The token after the side chain's first 1 + i ids: the target's own choice, as only where that is the rule
        there are such chains."""
        if event.side is None:
            return _nothing
        base, begin, path = len(self._prefix), event.side.fork + 1, event.path(aside=True)
        rows = event.logits[len(event.drafts) + 1 :]
        return lambda i: self.after(path[: begin + i]).choose(rows[i], base + begin + i)

    def after(self, drafts: tuple[int, ...]) -> Sampler:
        """The sampler after what is committed and these drafts, which stand: earlier rows have chosen them."""
        back = self._sampler.looks_back
        if not back:
            return self._sampler
        begin = 0 if back < 0 else max(len(self._prefix) - back, 0)
        return self._sampler.after((*self._prefix[begin : len(self._prefix)], *drafts))


def _nothing(i: int) -> int:
    raise AssertionError(f"there is no side chain, so nothing comes {i} ids after its first")
