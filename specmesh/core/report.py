"""The report of a finished (or running) session: the numbers of `generate --json` and `--verbose`."""

from collections.abc import Sequence

from specmesh.core import verifier_events as vev
from specmesh.core.draft_length.estimates import StepCosts
from specmesh.core.sampling import is_exact
from specmesh.core.scheduling.kv_slots import KVSlots
from specmesh.core.session import SessionContext, VerifierSession
from specmesh.core.statistics import RoundCounts

Report = dict[str, object]


def session_report(session: VerifierSession, costs: StepCosts, now: float) -> Report:
    """Counts and times of a session as its verifier saw them, in seconds and milliseconds as the keys say.

    tokens_per_second counts from the first verification step on. The baseline of speedup_vs_one_token_step is the
    measured cost of a step of one row on this verifier, not a run without drafts. Where a text was gone on with after
    resumed_tokens, all but generated_tokens is about what followed.
    """
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
        "accept_histogram": list(counts.accept_histogram),
        "draft_n_last": session.draft_n,
        "time_s": round(now - times.opened, 6),
        "time_to_first_token_s": round(times.first_token - times.opened, 6) if times.first_token is not None else None,
        "tokens_per_second": round(rate, 3),
        "verify_ms": round(times.verify * 1e3, 3),
        "wait_ms": round(times.wait * 1e3, 3),
        "restart_ms": round(times.restart * 1e3, 3),
        "restarts": times.restarts,
        "one_token_step_ms": round(one_step * 1e3, 4),
        "speedup_vs_one_token_step": round(rate * one_step, 3),
        "seed": session.params.sampling.seed,
        "strategy": str(session.params.sampling.strategy),
        "exact": is_exact(session.params.sampling.strategy),
        "draft_ms": None,  # what only a drafter knows
        "network_ms": None,
    }


def tokens_per_second(session: VerifierSession, now: float) -> float:
    """Tokens per second of a session since its first verification step; 0 before it."""
    seconds = session.times.generating(now)
    return session.counts.generated / seconds if seconds > 0 else 0.0


def core_report(
    lives: Sequence[SessionContext],
    drafters: dict[vev.DrafterId, Report],
    kept: int,
    waiting: int,
    stray_frames: int,
    slots: KVSlots,
    over: RoundCounts,
    stale: int,
    costs: StepCosts,
    now: float,
) -> vev.CoreReport:
    """Return how a verifier's core stands. over, stale: of sessions that have ended."""
    totals = RoundCounts()
    for counts in (over, *(live.machine.counts for live in lives)):
        totals.add(counts)
    return vev.CoreReport(
        [session_row(live, now) for live in lives],
        drafters,
        kept,
        waiting,
        stray_frames,
        stale + sum(live.machine.drafts.stale for live in lives),
        lives[-1].machine.draft_n if lives else None,
        slots.snapshot(),
        totals,
        costs.seconds(1),
        costs.tables(),
    )


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


def with_drafting(report: Report, drafted: int, draft_s: float) -> Report:
    """Add what only the drafter knows: draft_ms, its own time over the `drafted` ids it guessed, and network_ms.

    network_ms is, summed over corrections, the time until the first draft on it arrived (restart_ms) less the drafter's
    mean time per draft. Verification goes on meanwhile, so only wait_ms of it delayed anything.
    """
    per_draft_ms = draft_s * 1e3 / drafted if drafted else 0.0
    network_ms = _number(report.get("restart_ms")) - _number(report.get("restarts")) * per_draft_ms
    return report | {"draft_ms": round(draft_s * 1e3, 3), "network_ms": round(max(network_ms, 0.0), 3)}


def _number(value: object) -> float:
    """A number out of a report that may have come from a peer; 0 for anything else."""
    return float(value) if isinstance(value, int | float) else 0.0
