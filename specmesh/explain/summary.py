"""What a file of decisions comes to: counts, rates and shares, as values and as lines."""

from collections import Counter
from dataclasses import asdict, dataclass
from statistics import median

from specmesh.core.decision import MODES, WAIT, Decision, PolicyRecord
from specmesh.explain.reader import DecisionFile

POSITIONS = 16


@dataclass(frozen=True, slots=True)
class Summary:
    """The steps of some sessions together.

    seconds:             from the beginning of each session's first step (its wait before it included) to the end of its
                         last, summed over sessions.
    tokens_per_second:   committed ids / seconds; waited_share and verify_share: of the same seconds.
    promised_per_second: mean of what the policy promised at each step, weighted by the step's time; None without.
    acceptance_at:       accepted / tested drafts at position 1, 2, ...; a draft behind a rejected one is not tested.
    step_error:          median of measured / expected seconds of a step; None where the cost table said nothing.
    drafters:            how often sessions got a drafter, by the reason.
    """

    model: str
    version: str
    sessions: tuple[int, ...]
    steps: int
    tokens: int
    seconds: float
    tokens_per_second: float
    promised_per_second: float | None
    waited_share: float
    verify_share: float
    mean_draft_n: float
    mean_asked: float
    mean_lead: float
    drafted: int
    accepted: int
    acceptance_rate: float | None
    acceptance_at: tuple[float, ...]
    modes: dict[str, int]
    step_error: float | None
    interval_s: float | None
    round_trip_s: float | None
    restart_s: float | None
    policy: PolicyRecord | None
    drafters: dict[str, int]

    def as_json(self) -> dict[str, object]:
        """The summary as a JSON object."""
        policy = None if self.policy is None else self.policy.as_json()
        return {"schema_version": 1} | asdict(self) | {"policy": policy}


def summarise(file: DecisionFile) -> Summary:
    """Sum up all sessions of `file`."""
    steps = [decision for trace in file.traces for decision in trace.decisions]
    seconds = sum(_length(trace.decisions) for trace in file.traces)
    tokens = sum(step.committed for step in steps)
    drafted, accepted = sum(step.drafted for step in steps), sum(step.accepted for step in steps)
    count = max(len(steps), 1)
    modes = Counter(step.mode for step in steps)
    policies = [policy for trace in file.traces for policy in trace.policies]
    return Summary(
        model=file.model,
        version=file.version,
        sessions=tuple(trace.session for trace in file.traces),
        steps=len(steps),
        tokens=tokens,
        seconds=round(seconds, 6),
        tokens_per_second=_share(tokens, seconds),
        promised_per_second=_promised(steps),
        waited_share=_share(sum(step.waited_s for step in steps), seconds),
        verify_share=_share(sum(step.took_s for step in steps), seconds),
        mean_draft_n=_share(sum(step.draft_n for step in steps), count),
        mean_asked=_share(sum(step.asked for step in steps), count),
        mean_lead=_share(sum(step.lead for step in steps), count),
        drafted=drafted,
        accepted=accepted,
        acceptance_rate=_share(accepted, drafted) if drafted else None,
        acceptance_at=_acceptance_at(steps),
        modes={mode: modes[mode] for mode in MODES},
        step_error=_median([step.took_s / step.expected_s for step in steps if step.expected_s > 0]),
        interval_s=_median([step.interval_s for step in steps if step.interval_s is not None]),
        round_trip_s=_median([step.round_trip_s for step in steps if step.round_trip_s]),
        restart_s=_median([step.restart_s for step in steps if step.restart_s is not None]),
        policy=policies[-1] if policies else None,
        drafters=dict(Counter(change.why for trace in file.traces for change in trace.drafters)),
    )


def rows(summary: Summary) -> list[tuple[str, str]]:
    """(name, value) pairs in words, the most interesting first."""
    s = summary
    if not s.steps:
        return [("model", f"{s.model} (specmesh {s.version})"), ("steps", "none yet")]
    rate = "no drafts verified" if s.acceptance_rate is None else f"{s.acceptance_rate:.0%} of {s.drafted} drafts stood"
    promised = "" if s.promised_per_second is None else f", where the policy promised {s.promised_per_second:.1f}"
    told = [
        ("model", f"{s.model} (specmesh {s.version})"),
        ("sessions", _sessions(s.sessions)),
        ("steps", f"{s.steps}, {s.tokens} tokens, {s.tokens / s.steps:.2f} a step"),
        ("tokens/s", f"{s.tokens_per_second:.1f}{promised}"),
        ("time", f"{s.seconds:.2f} s: {s.verify_share:.0%} verifying, {s.waited_share:.0%} waiting for drafts"),
        ("draft_n", f"{s.mean_draft_n:.2f} verified a step, {s.mean_lead:.2f} in hand, {s.mean_asked:.2f} asked for"),
        ("acceptance", rate),
        ("per position", " ".join(f"{share:.2f}" for share in s.acceptance_at) or "-"),
        ("modes", ", ".join(f"{mode} {count}" for mode, count in s.modes.items() if count)),
        ("estimates", f"a draft each {_ms(s.interval_s)}, the first after a correction in {_ms(s.restart_s)}"),
        ("round trip", _ms(s.round_trip_s)),
    ]
    if s.step_error is not None:
        told.append(("step costs", f"steps took {s.step_error:.2f} of what the table said (median)"))
    if s.drafters:
        told.append(("drafters", ", ".join(f"{why} {count}" for why, count in s.drafters.items())))
    if s.policy is not None:
        told.append(("policy", policy_in_words(s.policy)))
    return told


def lines(summary: Summary) -> list[str]:
    """The rows, aligned."""
    return [f"{name:<14}{value}" for name, value in rows(summary)]


def policy_in_words(policy: PolicyRecord) -> str:
    """The policy as stretches of the lead: "lead 0: wait; from 2: 2 drafts"."""
    parts = list[str]()
    before = None
    for lead, drafts in zip(policy.leads, policy.drafts, strict=True):
        if drafts != before:
            what = "wait" if drafts == WAIT else "step alone" if drafts == 0 else f"verify {drafts}"
            parts.append(f"from lead {lead:g} {what}")
            before = drafts
    return "; ".join(parts) or "empty"


def _sessions(sessions: tuple[int, ...]) -> str:
    shown = ", ".join(map(str, sessions[-5:]))
    return f"{len(sessions)}: {'..., ' if len(sessions) > 5 else ''}{shown}"


def _length(decisions: list[Decision]) -> float:
    if not decisions:
        return 0.0
    first, last = decisions[0], decisions[-1]
    return max(last.time_s + last.took_s - (first.time_s - first.waited_s), 0.0)


def _promised(steps: list[Decision]) -> float | None:
    """The rates weighted by the time they were promised for."""
    rated = [(step.expected_rate, step.waited_s + step.took_s) for step in steps if step.expected_rate is not None]
    seconds = sum(seconds for _, seconds in rated)
    return round(sum(rate * seconds for rate, seconds in rated) / seconds, 4) if seconds > 0 else None


def _acceptance_at(steps: list[Decision]) -> tuple[float, ...]:
    tested, stood = [0] * POSITIONS, [0] * POSITIONS
    for step in steps:
        for position in range(min(step.tested, POSITIONS)):
            tested[position] += 1
            stood[position] += position < step.accepted
    return tuple(_share(s, t) for s, t in zip(stood, tested, strict=True) if t)


def _share(part: float, whole: float) -> float:
    return round(part / whole, 4) if whole > 0 else 0.0


def _median(values: list[float]) -> float | None:
    return round(median(values), 7) if values else None


def _ms(seconds: float | None) -> str:
    return "unknown" if seconds is None else f"{seconds * 1e3:.2f} ms"
