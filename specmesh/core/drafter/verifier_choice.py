"""Which verifiers may have a request, and which of them is asked first."""

from collections.abc import Sequence

from specmesh.core.drafter.pending_request import DrafterRequest, is_wrong
from specmesh.core.drafter.upstream import Upstream
from specmesh.core.drafter.upstream_facts import UpstreamFacts
from specmesh.core.requests import target_of
from specmesh.wire import messages as m

MAX_OPENING = 32  # most requests without a session at a verifier: it drops what comes too fast
MAX_OWN_OPENING = 8  # and of one tenant: at the verifier no other overtakes them
NEARLY_AS_FAST = 1.1
"""Ratio of expected times below which verifiers count as equally fast.

The turns of a chat should find their prefix cache again.
"""


def candidates(upstreams: Sequence[Upstream], pending: DrafterRequest) -> list[Upstream]:
    """Return the verifiers that may have a request and have not refused it, the best first.

    1. The verifier that had it.
    2. Those that can be drafted for.
    3. Those with the shortest expected time per token.
    """
    fitting = [upstream for upstream in upstreams if fits(pending, upstream.facts)]
    if len(fitting) < 2:
        return fitting
    seconds_of = {
        upstream.number: upstream.facts.token_seconds(upstream.own) for upstream in fitting
    }
    fastest = min(seconds_of.values())

    def rank(upstream: Upstream) -> tuple[bool, bool, float]:
        """Return what a verifier is ordered by; the settings' order decides between equals."""
        seconds = seconds_of[upstream.number]
        if seconds <= NEARLY_AS_FAST * fastest:
            seconds = 0.0
        facts = upstream.facts
        return facts.address != pending.home, bool(facts.foreign), seconds

    return sorted(fitting, key=rank)


def is_hopeless(upstreams: Sequence[Upstream], pending: DrafterRequest) -> bool:
    """Return True if the verifier that began a text has another model, and no other has it."""
    began = pending.began
    if began is None:
        return False
    home_is_there = False
    for upstream in upstreams:
        facts = upstream.facts
        if facts.info is None:
            continue
        if same_model(began, facts.info):
            return False
        if facts.address == pending.home:
            home_is_there = True
    return home_is_there


def has_room(upstream: Upstream, pending: DrafterRequest, now: float) -> bool:
    """Return True if another request may queue at a verifier; else it is placed later."""
    if not upstream.has_room(now) and pending.is_long:
        return False
    own = 0
    for opening in upstream.opening:
        if opening.tenant == pending.tenant != ():
            own += 1
    return len(upstream.opening) < MAX_OPENING and own < MAX_OWN_OPENING


def fits(pending: DrafterRequest, verifier: UpstreamFacts) -> bool:
    """Return True if a verifier may have a request, and has not refused it.

    It has the model that was asked for, or that the text began with.
    """
    info = verifier.info
    began = pending.began
    if info is None or verifier.address in pending.tried:
        return False
    if began is None:
        target = pending.request.target
        return not is_wrong(pending.error) and target in ("", target_of(info))
    if verifier.address == pending.home:
        return same_model(began, info)
    # A shorter context would end the text early.
    return same_file(began, info) and info.n_ctx >= began.n_ctx


def same_model(before: m.Welcome, now: m.Welcome) -> bool:
    """Return True if a verifier that came back has the model that it had."""
    if target_of(before) != target_of(now):
        return False
    return before.n_vocab == now.n_vocab and before.model_hash == now.model_hash


def same_file(first: m.Welcome, second: m.Welcome) -> bool:
    """Return True if two verifiers run the same file, as far as the hash shows.

    Equal names prove nothing across machines.
    """
    if not first.model_hash or first.model_hash != second.model_hash:
        return False
    return first.vocab_fingerprint == second.vocab_fingerprint and first.n_vocab == second.n_vocab
