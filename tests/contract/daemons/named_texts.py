"""Texts with a name: opening them, and asking for them again."""

from collections.abc import Sequence
from dataclasses import replace

from harness import PATIENCE
from harness.loops import (
    PROMPT,
    Flaky,
    Running,
    Scripted,
    ScriptedDrafter,
    ask_for,
    request,
    truth,
    until,
    welcome,
)

from specmesh.core.prefix import Prefix
from specmesh.core.requests import Request
from specmesh.engines.sim import SimSettings
from specmesh.wire import messages as m

NAME = "cmpl-" + 32 * "a"
LONG = 8000
TEXT = tuple(truth(20))


class Told:
    """A session of TEXT at a scripted verifier, in frames, after the ids that the OPEN has."""

    def __init__(self, router: Scripted, order: m.Open, session: int = 4, said: int = 0) -> None:
        self.router = router
        self.session = session
        self.order = order
        self.known = Prefix((*PROMPT, *TEXT[:said]) if said else tuple(order.ids) or PROMPT)
        options = order.options | {"temperature": 0}
        router.say(m.Opened(session, order.ref, len(PROMPT), options))
        router.say(m.Sync(session, 0, 0, tuple(self.known[0:]), 0))

    def more(self, count: int, *, logprobs: bool = False) -> "Told":
        """Send the next ids, perhaps with log-probabilities that differ by position."""
        base = len(self.known)
        begin = base - len(PROMPT)
        ids = TEXT[begin : begin + count]
        self.router.say(m.Truth(self.session, base, self.known.crc, ids, 0))
        if logprobs:
            values = [-float(at) for at in range(begin, begin + len(ids))]
            self.router.say(m.Logprobs(session=self.session, base=base, chosen=values))
        self.known.extend(ids)
        return self

    def done(self, reason: str = "length") -> None:
        self.router.say(m.Done(self.session, reason, len(self.known), {}))

    def rest(self) -> None:
        self.more(len(TEXT)).done()


def back(router: Scripted, **changes: object) -> None:
    """The verifier goes away, and comes back, or another in its place."""
    router.say(m.Bye())
    router.expect(m.Hello)
    router.say(welcome(**({"verifier": "w"} | changes)))


def named(ref: int, name: str = NAME, *, said: Sequence[int] = (), max_tokens: int = 200) -> m.Open:
    order = ask_for(ref, ids=(*PROMPT, *said), max_tokens=max_tokens)
    return replace(order, name=name, n_prompt=len(PROMPT))


def by_name(ref: int, name: str = NAME) -> m.Open:
    return replace(ask_for(ref), name=name, adopt=True)


def asked(max_tokens: int = 200, timeout: float = PATIENCE) -> Request:
    return replace(request(max_tokens, None), id=NAME, reconnect_timeout=timeout)


def wanted(name: str = NAME) -> Request:
    named = {"prompt_ids": None, "id": name, "named_only": True}
    return replace(request(1, ids=()), **named, reconnect_timeout=PATIENCE)


def followed(peer: ScriptedDrafter) -> tuple[m.Opened, list[int], m.Done]:
    """Return a drafter's part of a session: OPENED, all ids in their places, DONE."""
    opened = peer.expect(m.Opened)
    known = Prefix()
    while not isinstance(told := peer.expect(m.Sync, m.Truth, m.Done), m.Done):
        assert told.session == opened.session
        assert known.holds(told.base, told.prefix_crc), "a gap"
        known.truncate(told.base)
        known.extend(told.ids)
    assert told.length == len(known)
    return opened, known[0:], told


def sessions(running: Running) -> dict[str, object]:
    return running.stats()["sessions"]


def kept(verifier: Running, count: int = 1) -> None:
    until(lambda: sessions(verifier)["kept"] == count, f"{count} kept")


def slow(max_sessions: int = 8) -> Flaky:
    return Flaky(SimSettings(step_ms=2, max_sessions=max_sessions))
