"""Counters of one session and of a daemon, and the rates that follow from them.

They are the same in `generate --json` and `stats`:

- acceptance rate = accepted / drafted, over verified drafts;
- mean acceptance length = 1 + accepted / rounds, the bonus token included.

An example. In three rounds 4 drafts are verified each, and 4, 1 and 0 of them accepted:

| number | value | why |
|---|---|---|
| drafted | 12 | all of a step's drafts were computed |
| tested | 4 + 2 + 1 | drafts behind the first wrong one were not compared |
| accepted | 5 | |
| generated tokens | 8 | each round has one of the target's own |
| acceptance rate | .42 | 5 / 12: what a draft's computation brought |
| mean acceptance length | 2.67 | 8 / 3: tokens of a step |
| acceptance per position | 2/3, 1/2, 1/1, 1/1 | accepted / tested: how good the drafter is |
"""

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from itertools import pairwise, zip_longest
from math import exp
from typing import Annotated, NamedTuple

from specmesh.core.rounds import Round
from specmesh.wire.messages import FinishReason

SERVED = (FinishReason.STOP, FinishReason.LENGTH)
"""Reasons with which a text ends that its client has as a whole."""


class MetricSpec(NamedTuple):
    """How /metrics shows a field.

    by: label of the items of a dict or list. scale: from the field's unit to the metric's.
    """

    kind: str
    name: str
    help: str
    by: str = ""
    labels: Mapping[str, str] = {}
    scale: float = 1.0


counter = partial(MetricSpec, "counter")
gauge = partial(MetricSpec, "gauge")
histogram = partial(MetricSpec, "histogram")


def _add_positions(counts: list[int], more: Sequence[int]) -> None:
    """Add counts by position; the list grows as far as needed."""
    counts += [0] * (len(more) - len(counts))
    for position, count in enumerate(more):
        counts[position] += count


@dataclass(slots=True, kw_only=True)
class RoundCounts:
    """Counts of sessions and their rounds: steps that committed a token.

    drafted, accepted, and the lists by position leave out the drafts of exact sources, such as a
    grammar's: they are accepted for certain. The tables by source have all.
    """

    rounds: Annotated[
        int, counter("verification_rounds", "Steps that committed tokens, counted per session.")
    ] = 0
    rounds_with_drafts: Annotated[
        int,
        counter(
            "spec_decode_num_drafts", "Steps that compared a draft; those of exact sources aside."
        ),
    ] = 0
    drafted: Annotated[int, counter("spec_decode_num_draft_tokens", "Drafts verified.")] = 0
    accepted: Annotated[int, counter("spec_decode_num_accepted_tokens", "Drafts accepted.")] = 0
    generated_tokens: Annotated[int, counter("generation_tokens", "Tokens generated.")] = 0
    tested_at: Annotated[
        list[int],
        counter("spec_decode_num_tested_tokens_per_pos", "Drafts compared.", by="position"),
    ] = field(default_factory=list)
    accepted_at: Annotated[
        list[int],
        counter("spec_decode_num_accepted_tokens_per_pos", "Drafts accepted.", by="position"),
    ] = field(default_factory=list)
    drafted_by_source: Annotated[
        Counter[str],
        counter("draft_tokens_by_source", "Drafts verified, of each source.", by="source"),
    ] = field(default_factory=Counter)
    accepted_by_source: Annotated[
        Counter[str],
        counter("accepted_tokens_by_source", "Drafts accepted, of each source.", by="source"),
    ] = field(default_factory=Counter)
    prompt_tokens: Annotated[
        int, counter("prompt_tokens", "Prompt tokens of all sessions opened.")
    ] = 0
    stale_drafts: Annotated[
        int,
        counter(
            "stale_drafts", "Drafts that came too late, did not fit the text or were forbidden."
        ),
    ] = 0

    def record(self, done: Round) -> None:
        """Count a round."""
        self.rounds += 1
        self.generated_tokens += done.generated
        drafted = 0
        tested = 0
        accepted = 0
        for drafts in done.by_source:
            self.drafted_by_source[drafts.source] += drafts.drafted
            self.accepted_by_source[drafts.source] += drafts.accepted
            if not drafts.exact:
                # A grammar's drafts would lift the rate of a drafter that is wrong in all others.
                drafted += drafts.drafted
                tested += drafts.tested
                accepted += drafts.accepted
        self.drafted += drafted
        self.accepted += accepted
        if tested:
            # Drafts behind a rejected one were verified, but not compared: they show nothing about
            # their positions.
            self.rounds_with_drafts += 1
            _add_positions(self.tested_at, [1] * tested)
            _add_positions(self.accepted_at, [1] * accepted)

    def add(self, other: "RoundCounts") -> None:
        """Count everything that another has counted."""
        for counted in fields(RoundCounts):
            own: int | list[int] | Counter[str] = getattr(self, counted.name)
            more = getattr(other, counted.name)
            if isinstance(own, list):
                _add_positions(own, more)
            elif isinstance(own, Counter):
                own.update(more)
            else:
                setattr(self, counted.name, own + more)

    def by_source(self) -> dict[str, dict[str, int]]:
        """Return the drafts verified and accepted, by source."""
        table: dict[str, dict[str, int]] = {}
        for source, drafted in self.drafted_by_source.items():
            accepted = self.accepted_by_source[source]
            table[source] = {"drafted": drafted, "accepted": accepted}
        return table

    @property
    def acceptance_rate(self) -> float:
        """Return accepted / drafted; 0 without drafts."""
        return ratio(self.accepted, self.drafted)

    @property
    def mean_acceptance_length(self) -> float:
        """Return the tokens of a round, on average; 0 without rounds."""
        if not self.rounds:
            return 0.0
        return 1 + self.accepted / self.rounds

    @property
    def accept_histogram(self) -> list[int]:
        """Return the numbers of rounds with 0, 1, ... accepted drafts."""
        # A round with two accepted drafts counts at both positions. So the differences are the
        # rounds with just as many.
        at_least = (self.rounds, *self.accepted_at, 0)
        return [rounds - more for rounds, more in pairwise(at_least)]

    def acceptance_per_position(self) -> list[float]:
        """Return accepted / compared drafts by position in their rounds."""
        counts = zip_longest(self.accepted_at, self.tested_at, fillvalue=0)
        return [accepted / tested for accepted, tested in counts]


@dataclass(slots=True, kw_only=True)
class SessionTimes:
    """When events of a session happened, and the seconds that it spent.

    opened, decoding, first_token, last_token: times; `decoding` is the first verification step.
    verify, wait: seconds in verification steps, and waiting for drafts.
    """

    opened: float
    decoding: float | None = None
    first_token: float | None = None
    last_token: float | None = None
    verify: float = 0.0
    wait: float = 0.0

    def generating(self, now: float) -> float:
        """Return the seconds from the first verification step to the newest token.

        Before a first token they count until `now`.
        """
        if self.decoding is None:
            return 0.0
        if self.last_token is not None:
            now = self.last_token
        return now - self.decoding


class RecentSamples:
    """The newest samples, for percentiles over a recent window."""

    def __init__(self, window: int = 256) -> None:
        self._samples: deque[float] = deque(maxlen=window)

    def record(self, value: float) -> None:
        """Add a sample."""
        self._samples.append(value)

    def percentile(self, percent: int) -> float | None:
        """Return the sample below which so many percent of the window lie; None without samples.

        It is the nearest rank.
        """
        if not self._samples:
            return None
        ordered = sorted(self._samples)
        rank = percent * len(ordered) // 100
        return ordered[min(rank, len(ordered) - 1)]

    def percentiles_ms(self, *percents: int) -> dict[str, float | None]:
        """Return percentiles of seconds, in milliseconds, by name."""
        return {f"p{percent}": milliseconds(self.percentile(percent)) for percent in percents}


SHORT = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
"""Bounds in seconds for durations of a token or frame."""
LONG = (
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 60.0, 120.0, 300.0, 600.0,
)  # fmt: skip
"""Bounds in seconds for durations of a request."""


@dataclass(slots=True)
class Histogram:
    """A histogram of Prometheus' kind.

    bounds: ascending. counts: samples up to each of the bounds, then all of them.
    """

    bounds: Sequence[float]
    counts: list[int] = field(default_factory=list)
    sum: float = 0.0

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    def record(self, value: float, times: int = 1) -> None:
        """Add `times` samples of a value; less than 0 counts as 0, so that the sum never falls."""
        value = max(value, 0.0)
        for index in range(bisect_left(self.bounds, value), len(self.counts)):
            self.counts[index] += times
        self.sum += value * times


class BusyShare:
    """How much an engine worked of late: a mean in which a second counts half after 40."""

    MEMORY = 60.0

    def __init__(self, now: float) -> None:
        self._share = 0.0  # as of `_since`
        self._since = now

    def record(self, now: float, seconds: float) -> None:
        """Count work that ends now."""
        self._share = self.share(now) + seconds / self.MEMORY
        self._since = max(now, self._since)

    def share(self, now: float) -> float:
        """Return the share of time, 0 to 1."""
        age = max(now - self._since, 0.0)
        return min(self._share * exp(-age / self.MEMORY), 1.0)


class Throughput:
    """Tokens per second over the recent steps, idle time left out.

    pauses: seconds between steps.
    """

    def __init__(self) -> None:
        self.pauses = RecentSamples(1024)
        self._steps: deque[tuple[int, float]] = deque(maxlen=256)  # tokens and seconds of each
        self._last_end: float | None = None  # unless nothing was generated since

    def record(self, tokens: int, start: float, end: float) -> None:
        """Count a step that committed `tokens`, with the pause before it."""
        begin = start
        if self._last_end is not None:
            begin = self._last_end
            self.pauses.record(start - begin)
        self._steps.append((tokens, end - begin))
        self._last_end = end

    def idle(self) -> None:
        """Note that nothing is generated: the time until the next step counts for none."""
        self._last_end = None

    def per_second(self) -> float:
        """Return the tokens per second; 0 without steps."""
        tokens = 0
        seconds = 0.0
        for step_tokens, step_seconds in self._steps:
            tokens += step_tokens
            seconds += step_seconds
        return ratio(tokens, seconds)


def ratio(count: int, of: float) -> float:
    """Return count / of; 0 if that is not above 0."""
    return count / of if of > 0 else 0.0


def milliseconds(seconds: float | None) -> float | None:
    """Return seconds in milliseconds, rounded; None stays None."""
    return None if seconds is None else round(seconds * 1e3, 4)
