"""Counters of one session and of a daemon, and the rates that follow from them.

The same in `generate --json` and `stats`: acceptance rate = accepted / drafted, where drafted counts verified drafts;
mean acceptance length = 1 + accepted / rounds, which counts the bonus token.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from itertools import pairwise
from math import exp
from typing import Annotated, NamedTuple

from specmesh.wire.messages import FinishReason

SERVED = (
    FinishReason.STOP,
    FinishReason.LENGTH,
)  # reasons with which a text ends that its client has whole


class MetricSpec(NamedTuple):
    """How /metrics shows a field. by: label that names the items of a dict or list. scale: from its unit to ours."""

    kind: str
    name: str
    help: str
    by: str = ""
    labels: Mapping[str, str] = {}
    scale: float = 1.0


counter, gauge, histogram = (
    partial(MetricSpec, kind) for kind in ("counter", "gauge", "histogram")
)


@dataclass(slots=True)
class RoundCounts:
    """What sessions and their verification rounds did; a round is a step that committed a token. A grammar's own drafts
    are counted apart. Lists are by position."""

    rounds: Annotated[
        int, counter("verification_rounds", "Steps that committed tokens, counted per session.")
    ] = 0
    rounds_with_drafts: Annotated[int, counter("spec_decode_num_drafts", "Steps with drafts.")] = 0
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
    forced_drafted: int = 0
    forced_accepted: int = 0
    prompt_tokens: Annotated[
        int, counter("prompt_tokens", "Prompt tokens of all sessions opened.")
    ] = 0
    stale_drafts: Annotated[
        int,
        counter(
            "stale_drafts", "Drafts that came too late, did not fit the text or were forbidden."
        ),
    ] = 0

    def record(
        self, drafted: int, tested: int, accepted: int, generated: int, forced: int = 0
    ) -> None:
        """Count a round that verified `drafted` drafts, the first `forced` of them a grammar's own, compared `tested`
        and committed `generated` tokens."""
        if forced:
            self.forced_drafted += forced
            self.forced_accepted += min(accepted, forced)
            drafted, tested, accepted = (
                max(count - forced, 0) for count in (drafted, tested, accepted)
            )
        self.rounds += 1
        self.rounds_with_drafts += tested > 0
        self.drafted += drafted
        self.accepted += accepted
        self.generated_tokens += generated
        for bins, size in (
            ((self.tested_at, tested), (self.accepted_at, accepted)) if tested else ()
        ):
            bins.extend([0] * (size - len(bins)))
            for index in range(size):
                bins[index] += 1

    def add(self, other: "RoundCounts") -> None:
        """Count what another has counted."""
        for one in fields(RoundCounts):
            mine: int | list[int] = getattr(self, one.name)
            theirs = getattr(other, one.name)
            if isinstance(mine, list):
                mine += [0] * (len(theirs) - len(mine))
                mine[: len(theirs)] = [a + b for a, b in zip(mine, theirs, strict=False)]
            else:
                setattr(self, one.name, mine + theirs)

    @property
    def acceptance_rate(self) -> float:
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def mean_acceptance_length(self) -> float:
        return 1 + self.accepted / self.rounds if self.rounds else 0.0

    @property
    def accept_histogram(self) -> list[int]:
        """Rounds with 0, 1, ... accepted drafts."""
        return [more - fewer for more, fewer in pairwise((self.rounds, *self.accepted_at, 0))]

    def acceptance_per_position(self) -> list[float]:
        accepted = self.accepted_at + [0] * (len(self.tested_at) - len(self.accepted_at))
        return [a / t for a, t in zip(accepted, self.tested_at, strict=True)]


@dataclass(slots=True)
class SessionTimes:
    """Times of events, and seconds spent in verification steps and waiting for drafts."""

    opened: float
    decoding: float | None = None
    first_token: float | None = None
    last_token: float | None = None
    verify: float = 0.0
    wait: float = 0.0

    def generating(self, now: float) -> float:
        """Seconds from the first verification step to the newest token, or `now` before that."""
        end = now if self.last_token is None else self.last_token
        return 0.0 if self.decoding is None else end - self.decoding


class RecentSamples:
    """The newest samples, for medians and percentiles over a recent window."""

    def __init__(self, window: int = 256) -> None:
        self._samples: deque[float] = deque(maxlen=window)

    def record(self, value: float) -> None:
        self._samples.append(value)

    def percentile(self, percent: int) -> float | None:
        """The sample below which so many percent of the window lie (nearest rank); None when empty."""
        ordered, at = sorted(self._samples), percent * len(self._samples) // 100
        return ordered[min(at, len(ordered) - 1)] if ordered else None

    def percentiles_ms(self, *percents: int) -> dict[str, float | None]:
        """The same of seconds, in milliseconds, by name."""
        return {f"p{each}": milliseconds(self.percentile(each)) for each in percents}


# seconds: once per token or frame
SHORT = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
# seconds: once per request
LONG = (
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    25.0,
    60.0,
    120.0,
    300.0,
    600.0,
)


@dataclass(slots=True)
class Histogram:
    """counts: samples up to each of the ascending `bounds`, then all of them."""

    bounds: Sequence[float]
    counts: list[int] = field(default_factory=list)
    sum: float = 0.0

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    def record(self, value: float, times: int = 1) -> None:
        """Add `times` samples of this value; below 0 counts as 0, so that the sum never falls."""
        value = max(value, 0.0)
        for at in range(bisect_left(self.bounds, value), len(self.counts)):
            self.counts[at] += times
        self.sum += value * times


class BusyShare:
    """How much an engine worked of late: a mean in which a second counts half after 40."""

    MEMORY = 60.0

    def __init__(self, now: float) -> None:
        self._share, self._since = 0.0, now

    def record(self, now: float, seconds: float) -> None:
        """Count work that ends now."""
        self._share, self._since = self.share(now) + seconds / self.MEMORY, max(now, self._since)

    def share(self, now: float) -> float:
        return min(self._share * exp(min(self._since - now, 0.0) / self.MEMORY), 1.0)


class Throughput:
    """Tokens per second over the recent steps, idle time left out."""

    def __init__(self) -> None:
        self._steps: deque[tuple[int, float]] = deque(maxlen=256)
        self._last_end: float | None = None
        self.pauses = RecentSamples(1024)

    def record(self, tokens: int, start: float, end: float) -> None:
        """Count a step that committed `tokens`; the pause before it counts as its time, and is kept in `pauses`."""
        if self._last_end is not None:
            self.pauses.record(start - self._last_end)
        self._steps.append((tokens, end - (start if self._last_end is None else self._last_end)))
        self._last_end = end

    def idle(self) -> None:
        """Note that nothing is generated: the time until the next step is nobody's."""
        self._last_end = None

    def per_second(self) -> float:
        seconds = sum(duration for _, duration in self._steps)
        return sum(tokens for tokens, _ in self._steps) / seconds if seconds > 0 else 0.0


def milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1e3, 4)
