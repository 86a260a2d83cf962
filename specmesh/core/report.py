"""The report of a finished (or running) session: the numbers of `generate --json` and `--verbose`."""

from specmesh.core.draft_length.estimates import StepCosts
from specmesh.core.sampling import is_exact
from specmesh.core.session import SessionContext, VerifierSession

Report = dict[str, object]


def session_report(session: VerifierSession, costs: StepCosts, now: float) -> Report:
    """Counts and times of a session as its verifier saw them, in seconds and milliseconds as the keys say.
    tokens_per_second counts from the first verification step on. The baseline of speedup_vs_one_token_step is the
    measured cost of a step of one row on this verifier, not a run without drafts. Where a text was gone on with after
    resumed_tokens, all but generated_tokens is about what followed."""
    times, counts = session.times, session.counts
    rate = tokens_per_second(session, now)
    one_step = costs.alone.seconds(1, len(session.prefix))
    return {
        "prompt_tokens": session.n_prompt,
        "cached_tokens": session.cached,
        "generated_tokens": session.generated,
        "resumed_tokens": session.resumed,
        "rounds": counts.rounds,
        "drafted": counts.drafted,
        "accepted": counts.accepted,
        "forced_drafted": counts.forced_drafted,
        "forced_accepted": counts.forced_accepted,
        "acceptance_rate": round(counts.acceptance_rate, 4),
        "mean_acceptance_length": round(counts.mean_acceptance_length, 4),
        "accept_histogram": counts.accept_histogram,
        "draft_n_last": session.draft_n,
        "time_s": round(now - times.opened, 6),
        "time_to_first_token_s": round(times.first_token - times.opened, 6) if times.first_token is not None else None,
        "tokens_per_second": round(rate, 3),
        "verify_ms": round(times.verify * 1e3, 3),
        "wait_ms": round(times.wait * 1e3, 3),
        "one_token_step_ms": round(one_step * 1e3, 4),
        "speedup_vs_one_token_step": round(rate * one_step, 3),
        "seed": session.params.sampling.seed,
        "strategy": str(session.params.sampling.strategy),
        "exact": is_exact(session.params.sampling.strategy),
        "draft_ms": None,  # what only a drafter knows: its own time
    }


def tokens_per_second(session: VerifierSession, now: float) -> float:
    """Tokens per second of a session since its first verification step; 0 before it."""
    seconds = session.times.generating(now)
    return session.counts.generated / seconds if seconds > 0 else 0.0


def session_row(live: SessionContext, now: float) -> Report:
    """Return a running session's row of `stats --json`; its drafters are named by their connections."""
    session, counts = live.machine, live.machine.counts
    return {
        "session": live.id,
        "prompt_tokens": session.n_prompt,
        "generated": counts.generated,
        "drafted": session.attached,
        "drafter": live.drafter,
        "acceptance_rate": round(counts.acceptance_rate, 4),
        "draft_n": session.draft_n,
        "lead": len(session.drafts),
        "strategy": str(session.params.sampling.strategy),
        "exact": is_exact(session.params.sampling.strategy),
        "stale_drafts": session.drafts.stale,
        "tokens_per_second": round(tokens_per_second(session, now), 2),
    }
