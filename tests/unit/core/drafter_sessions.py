"""Sessions at the drafter, and what they are told."""

from specmesh.core import events as ev
from specmesh.core.draft_session import DrafterSession
from specmesh.core.prefix import Prefix

PROMPT = (5, 6, 7)


def crc(*ids):
    """CRC-32 of a prefix."""
    return Prefix(ids).crc


def told(*ids, after=(), draft_n=4, sync=False):
    """TRUTH (or SYNC) of `ids` after this prefix."""
    return ev.Told(len(after), crc(*after), ids, draft_n, sync)


def session(draft_n=4, n_ctx=64, n_batch=16, synced=True, shadows=True):
    """A session that knows PROMPT."""
    made = DrafterSession(16, n_ctx, n_batch, shadows=shadows)
    if synced:
        made.handle(told(*PROMPT, draft_n=draft_n, sync=True), 0.0)
    return made


def predict(made, token, now=0.0, took=0.01, round_trip=0.0):
    """Carry out the session's plan with this guess; returns (plan, effects)."""
    plan = made.plan(round_trip)
    event = ev.Predicted(len(plan.ids), token if plan.guess else None, now - took)
    return plan, made.handle(event, now)


def drafting(*chain, **options):
    """A session that has drafted and sent this chain on PROMPT."""
    made = session(**options)
    for token in chain:
        predict(made, token)
    return made
