"""Texts with a name: opening them, and asking for them again."""

from dataclasses import replace

from harness import PATIENCE
from harness.loops import PROMPT, Flaky, ask_for, request, truth, until

from specmesh.core.prefix import Prefix
from specmesh.wire import messages as m

NAME = "cmpl-" + 32 * "a"
LONG = 8000
TEXT = tuple(truth(20))


class Told:
    """A session of TEXT at a scripted verifier, in frames, after the ids that the OPEN has.

    order: the OPEN if it has come already.
    """

    def __init__(self, router, order=None, session=4):
        self.router = router
        self.session = session
        self.order = order or router.expect(m.Open)
        ids = tuple(self.order.ids) or PROMPT
        self.known = Prefix(ids)
        options = self.order.options | {"temperature": 0}
        opened = m.Opened(session, self.order.ref, len(PROMPT), options)
        router.say(opened, m.Sync(session, 0, 0, ids, 0))

    def more(self, count, *, logprobs=False):
        """Send the next ids, perhaps with log-probabilities that differ by position."""
        base = len(self.known)
        begin = base - len(PROMPT)
        ids = TEXT[begin : begin + count]
        self.router.say(m.Truth(self.session, base, self.known.crc, ids, 0))
        if logprobs:
            values = [-float(begin + at) for at in range(len(ids))]
            self.router.say(m.Logprobs(session=self.session, base=base, chosen=values))
        self.known.extend(ids)
        return self

    def done(self, reason="length"):
        self.router.say(m.Done(self.session, reason, len(self.known), {}))

    def rest(self):
        self.more(len(TEXT)).done()


def back(router, **changes):
    """Let the verifier go away, and come back, or another in its place."""
    router.say(m.Bye())
    router.welcomes(**({"verifier": "w"} | changes))


def named(ref, name=NAME, *, said=(), max_tokens=200):
    order = ask_for(ref, ids=(*PROMPT, *said), max_tokens=max_tokens)
    return replace(order, name=name, n_prompt=len(PROMPT))


def by_name(ref):
    return replace(ask_for(ref), name=NAME, adopt=True)


def asked(timeout=PATIENCE):
    made = request(len(TEXT), None)
    return replace(made, id=NAME, reconnect_timeout=timeout)


def wanted():
    return replace(asked(), prompt_ids=None, named_only=True)


def followed(peer):
    """Return a drafter's part of a session: OPENED, all ids in their places, DONE."""
    opened = peer.expect(m.Opened)
    known = Prefix()
    while True:
        message = peer.expect(m.Sync, m.Truth, m.Done)
        if isinstance(message, m.Done):
            break
        assert message.session == opened.session
        assert known.holds(message.base, message.prefix_crc), "a gap"
        known.truncate(message.base)
        known.extend(message.ids)
    assert message.length == len(known)
    return opened, known[0:], message


def sessions(running):
    return running.stats()["sessions"]


def kept(verifier, count=1):
    until(lambda: sessions(verifier)["kept"] == count, f"{count} kept")


def slow(max_sessions=8):
    return Flaky(step_ms=2, max_sessions=max_sessions)
