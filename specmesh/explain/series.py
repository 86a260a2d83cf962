"""A file of decisions as curves over time, short enough to draw."""

from dataclasses import dataclass, field

from specmesh.core.decision import Decision
from specmesh.explain.reader import DecisionFile

MOST_POINTS = 300
RATE_STEPS = 16
"""Steps that a point of the throughput looks back on, at least."""


@dataclass(slots=True)
class Series:
    """Curves with one point per step, or per group of steps where there are many, each the group's mean.

    time:       seconds; the sessions stand one after another, `borders` where one ends.
    rates:      acceptance estimated for position i; `accepted` is the share of drafts that stood, None without drafts.
    throughput: tokens per second over the last steps, `promised` the policy's; None where there is none.
    waiting:    share of the time waited.
    """

    time: list[float] = field(default_factory=list)
    lead: list[float] = field(default_factory=list)
    draft_n: list[float] = field(default_factory=list)
    asked: list[float] = field(default_factory=list)
    waiting: list[float] = field(default_factory=list)
    throughput: list[float | None] = field(default_factory=list)
    promised: list[float | None] = field(default_factory=list)
    accepted: list[float | None] = field(default_factory=list)
    rates: list[list[float | None]] = field(default_factory=list)
    borders: list[float] = field(default_factory=list)


def series(file: DecisionFile, positions: int = 4, most_points: int = MOST_POINTS) -> Series:
    """The curves of all sessions of `file`; rates for the first `positions`."""
    made = Series(rates=[[] for _ in range(positions)])
    count = sum(len(trace.decisions) for trace in file.traces)
    size = max(-(-count // most_points), 1)
    offset = 0.0
    for trace in file.traces:
        steps = trace.decisions
        if not steps:
            continue
        begin = steps[0].time_s - steps[0].waited_s
        for start in range(0, len(steps), size):
            end = min(start + size, len(steps))
            back = max(min(start, end - RATE_STEPS), 0)
            _add(made, steps[start:end], steps[back:end], offset - begin)
        offset += _end(steps[-1]) - begin
        made.borders.append(offset)
    return made


def _add(made: Series, group: list[Decision], window: list[Decision], shift: float) -> None:
    made.time.append(_end(group[-1]) + shift)
    made.lead.append(_mean([step.lead for step in group]))
    made.draft_n.append(_mean([step.draft_n for step in group]))
    made.asked.append(_mean([step.asked for step in group]))
    spent = sum(step.waited_s + step.took_s for step in group)
    made.waiting.append(sum(step.waited_s for step in group) / spent if spent > 0 else 0.0)
    drafted = sum(step.drafted for step in window)
    made.accepted.append(sum(step.accepted for step in window) / drafted if drafted else None)
    seconds = _end(window[-1]) - (window[0].time_s - window[0].waited_s)
    made.throughput.append(sum(step.committed for step in window) / seconds if seconds > 0 else None)
    made.promised.append(group[-1].expected_rate)
    for position, curve in enumerate(made.rates):
        rates = group[-1].acceptance
        curve.append(rates[position] if position < len(rates) else None)


def _end(step: Decision) -> float:
    return step.time_s + step.took_s


def _mean(values: list[int]) -> float:
    return sum(values) / len(values)
