"""One drafter of a verifier: what was measured of it, and the tokens per second to expect of it."""

from specmesh.core.draft_length.drafter_estimates import DrafterEstimates, RollingAcceptance
from specmesh.core.draft_length.policy import PolicyInputs
from specmesh.core.fields import Json
from specmesh.core.statistics.counters import milliseconds
from specmesh.core.verifier import events as vev

MEASURED_SECONDS = 600.0  # for which the measurements of a drafter without sessions count
CERTAIN = 0.999  # no chain of drafts is accepted more surely than this


class RemoteDrafter:
    """A drafter attached to the verifier, and what was measured of it.

    silent: a session has waited for its drafts in vain.
    muted: it drafts nothing here, by its own account.
    rate: tokens per second to expect, when it was last compared.
    measured_at: when it last drafted, or should have.
    """

    def __init__(self, joined: vev.DrafterJoined, others: RollingAcceptance | None = None) -> None:
        """Begin without measurements; `others` is the acceptance of all drafters so far."""
        self.id = joined.drafter
        self.n_ctx = joined.n_ctx
        self.name = joined.name
        self.silent = False
        self.muted = False
        self.estimates = DrafterEstimates(others)
        self.rate: float | None = None
        self.measured_at: float | None = None

    def unmeasured(self, now: float) -> bool:
        """Return True if it was not measured of late."""
        return self.measured_at is None or now - self.measured_at > MEASURED_SECONDS

    def report(self, sessions: int) -> Json:
        """Return its measurements for `stats`; it drafts for so many sessions."""
        acceptance = self.estimates.acceptance
        acceptance_rate = round(acceptance.pooled(), 4) if acceptance.known else None
        promised = None if self.rate is None else round(self.rate, 2)
        return {
            "draft_interval_ms": milliseconds(self.estimates.arrivals.interval),
            "acceptance_rate": acceptance_rate,
            "promised_tokens_per_second": promised,
            "sessions": sessions,
        }


def drafting_rate(inputs: PolicyInputs) -> float:
    """Return the tokens per second to expect of a drafter, at least the target's own.

    This is a closed form, in microseconds instead of the milliseconds of a policy. Each step has
    the same number of drafts. After a rejection they are waited for, or the target goes on without
    drafts until the drafter has caught up.
    """
    interval = inputs.interval
    single = inputs.steps[0]
    first_rate = min(inputs.rates[0], CERTAIN)
    best = 1.0 / inputs.undrafted_s
    tokens = 1.0  # expected of a step with drafts
    accepted = 1.0  # probability that all its drafts are accepted
    for drafts, step in enumerate(inputs.steps[1:], 1):
        accepted *= inputs.rates[drafts - 1]
        tokens += accepted
        # Nothing is rejected, so the next step has drafts too: it begins when they are here.
        unbroken = min(accepted * inputs.rates[drafts], CERTAIN)
        rejected = 1.0 - unbroken
        spent = rejected * step + unbroken * max(step, (drafts + 1) * interval)
        # After a rejection the drafter begins anew, and makes all drafts of the next step before it
        # begins.
        behind = inputs.restart + (drafts - 1) * interval
        best = max(best, tokens / (rejected * behind + spent))
        if interval < single:
            # The target's own tokens must agree with the chain until the drafter has caught up.
            caught_up = first_rate ** (behind / (single - interval))
            undrafted_steps = (1.0 - caught_up) / (1.0 - first_rate) * rejected
            seconds = undrafted_steps * single + caught_up * spent
            best = max(best, (undrafted_steps + caught_up * tokens) / seconds)
    return best
