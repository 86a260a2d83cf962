"""The report of a verifier's session at its end, and its row in `stats` while it runs."""

from specmesh.core.draft_length.step_costs import StepCosts
from specmesh.core.fields import Json
from specmesh.core.no_drafts import NoDrafts
from specmesh.core.sampling.strategy import is_exact
from specmesh.core.statistics.counters import ratio
from specmesh.core.verifier.session import VerifierSession


def session_report(
    session: VerifierSession,
    costs: StepCosts,
    drafter: str | None,
    now: float,
    no_drafts: NoDrafts | None = None,
) -> Json:
    """Return the counts and times of a session: the numbers of `generate --json`.

    - Times are in seconds or milliseconds, as the keys say.
    - tokens_per_second counts from the first verification step on.
    - The baseline of speedup_vs_one_token_step is the measured cost of a step of one row on this
      verifier, not a run without drafts.
    - If a text was resumed after resumed_tokens, all figures but generated_tokens are about the
      rest.
    - draft_ms is None: only a drafter knows its own time.

    drafter: its name; None for none.
    no_drafts: why nothing was drafted, or nothing more at the end.
    """
    times = session.times
    counts = session.counts
    sampling = session.params.sampling
    rate = tokens_per_second(session, now)
    one_step = costs.undrafted.seconds(1, len(session.prefix))
    first_token_s = None
    if times.first_token is not None:
        first_token_s = round(times.first_token - times.opened, 6)
    return {
        "prompt_tokens": session.n_prompt,
        "cached_tokens": session.cached,
        "generated_tokens": session.generated,
        "resumed_tokens": session.resumed,
        "rounds": counts.rounds,
        "drafted": counts.drafted,
        "accepted": counts.accepted,
        "by_source": counts.by_source(),
        "acceptance_rate": round(counts.acceptance_rate, 4),
        "mean_acceptance_length": round(counts.mean_acceptance_length, 4),
        "accept_histogram": counts.accept_histogram,
        "draft_n_last": session.draft_n,
        "time_s": round(now - times.opened, 6),
        "time_to_first_token_s": first_token_s,
        "tokens_per_second": round(rate, 3),
        "verify_ms": round(times.verify * 1e3, 3),
        "wait_ms": round(times.wait * 1e3, 3),
        "one_token_step_ms": round(one_step * 1e3, 4),
        "speedup_vs_one_token_step": round(rate * one_step, 3),
        "seed": sampling.seed,
        "strategy": str(sampling.strategy),
        "exact": is_exact(sampling.strategy),
        "draft_ms": None,
        "drafter": drafter,
        "no_drafts": no_drafts,
    }


def session_row(
    session: VerifierSession, drafter: str | None, now: float, no_drafts: NoDrafts | None = None
) -> Json:
    """Return a running session's row of `stats --json`.

    drafter: its name; None for none. no_drafts: why nothing is drafted now.
    """
    counts = session.counts
    strategy = session.params.sampling.strategy
    return {
        "session": session.id,
        "prompt_tokens": session.n_prompt,
        "generated_tokens": counts.generated_tokens,
        "drafter": drafter,
        "no_drafts": no_drafts,
        "acceptance_rate": round(counts.acceptance_rate, 4),
        "draft_n": session.draft_n,
        "lead": len(session.remote.tokens),
        "strategy": str(strategy),
        "exact": is_exact(strategy),
        "stale_drafts": counts.stale_drafts,
        "tokens_per_second": round(tokens_per_second(session, now), 2),
    }


def tokens_per_second(session: VerifierSession, now: float) -> float:
    """Return the rate of a session since its first verification step; 0 before it."""
    seconds = session.times.generating(now)
    return ratio(session.counts.generated_tokens, seconds)
