"""Sessions at the verifier, what their drafters send and what their target says."""

import numpy as np

from specmesh.core import events as ev
from specmesh.core.draft_length.acceptance import RollingAcceptance
from specmesh.core.draft_length.arrival_estimates import Arrivals
from specmesh.core.draft_length.policy import solve
from specmesh.core.draft_length.step_costs import StepCosts
from specmesh.core.prefix import Prefix
from specmesh.core.sampling.sampler import SamplingParams
from specmesh.core.session import VerifierSession
from specmesh.core.session_params import SessionParams, TargetLimits

END = 0
PROMPT = (5, 6, 7)
STEP = 0.03


def crc(*ids):
    """CRC-32 of a prefix."""
    return Prefix(ids).crc


GREEDY = SamplingParams()


def logits(*tokens):
    """Rows in which these tokens are the largest."""
    rows = np.zeros((len(tokens), 16), np.float32)
    rows[np.arange(len(tokens)), tokens] = 9.0
    return rows


def session(
    draft_n=4, max_tokens=100, n_ctx=64, max_drafts=8, interval=None, filled=True, rise=0.0, stop=(), sampling=GREEDY
):
    """A session on PROMPT with its memory filled, attached to a drafter of a known interval (20 ms round trip)."""
    costs = StepCosts()
    costs.record_pause(0.0, drafting=False)
    for rows in (1, 9):
        costs.record(rows, STEP * (1 + rise * (rows - 1)))
    limits = TargetLimits(n_ctx, 16, frozenset({END}), max_drafts, [b"%d" % token for token in range(16)])
    params = SessionParams(sampling, max_tokens, draft_n, stop)
    made = VerifierSession(PROMPT, params, limits, costs, RollingAcceptance(), 0.0)
    if filled:
        made.handle(ev.Prefilled(len(PROMPT) - 1), 0.0)
    arrivals = Arrivals()
    if interval is not None:
        arrivals.record_round_trip(0.02)
        arrivals.record_restart(0.02 + interval, 1)
        arrivals.record_interval(interval, 1)
    made.attach(arrivals)
    reconsider(made, 0.0)
    return made


def reconsider(made, now):
    """Solve a policy for the session, if it wants one."""
    inputs = made.unsolved(now)
    if inputs is not None:
        made.pacing.adopt(solve(inputs, made.pacing.policy))


def draft(made, *ids, now=0.0, after=()):
    """A DRAFT on what is committed, followed by the drafts in `after`."""
    prefix = (*made.prefix[0 : len(made.prefix)], *after)
    return made.handle(ev.Drafted(len(prefix), crc(*prefix), ids), now)


def step(made, *says, now=0.0):
    """Run the session's plan with a target that says this, row by row; returns the effects."""
    plan = made.plan(now)
    plan = plan if isinstance(plan, ev.Verify) else made.verify()
    made.begin(now)
    rows = logits(*says[: len(plan.drafts) + 1])
    return made.handle(ev.Stepped(plan.drafts, rows, STEP), now)


def only(effects, kind):
    """The one effect of a kind."""
    (effect,) = [effect for effect in effects if isinstance(effect, kind)]
    return effect
