"""`specmesh plan`: what so many users of one verifier would get, with drafts and without; where drafts stop paying."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from random import Random

from specmesh.core.forecast import Forecast, Site, Texts, forecast

PAYS = 1.02
"""Drafts pay where they make everything this many times as fast: simulations of the same thing differ by 1 %."""

SEED = 1


@dataclass(frozen=True, slots=True)
class Level:
    """So many users, with drafts and without."""

    drafting: Forecast
    alone: Forecast

    @property
    def users(self) -> int:
        """How many."""
        return self.alone.users

    @property
    def speedup(self) -> float:
        """All tokens per second with drafts over those without."""
        return self.drafting.total / self.alone.total

    def as_json(self) -> dict[str, object]:
        """The level as a JSON object."""
        told = {name: _told(one) for name, one in (("drafting", self.drafting), ("alone", self.alone))}
        return {"users": self.users, "speedup": round(self.speedup, 4), **told}


def _told(one: Forecast) -> dict[str, object]:
    rounded = {name: value if value is None else round(value, 4) for name, value in asdict(one).items()}
    del rounded["users"]
    return rounded | {"fairness": round(one.slowest / one.mean, 4) if one.mean else 0.0}


@dataclass(frozen=True, slots=True)
class Plan:
    """What was simulated, and what came of it, fewest users first."""

    site: Site
    texts: Texts
    levels: Sequence[Level]

    @property
    def pays_up_to(self) -> int | None:
        """The most users of those simulated with whom, and with all fewer, drafts pay; None where never."""
        most = None
        for level in self.levels:
            if level.speedup < PAYS:
                break
            most = level.users
        return most

    @property
    def stops_at(self) -> int | None:
        """The fewest users with whom drafts do not pay; None where they always do."""
        return next((level.users for level in self.levels if level.speedup < PAYS), None)

    def as_json(self) -> dict[str, object]:
        """What `--json` prints."""
        site, texts = self.site, self.texts
        return {
            "schema_version": 1,
            "step_ms": round(site.costs.seconds(1) * 1e3, 4),
            "draft_ms": site.draft * 1e3,
            "round_trip_ms": site.round_trip * 1e3,
            "pause_ms": site.pause * 1e3,
            "alpha": site.alpha,
            "drafters": site.drafters,
            "max_sessions": site.places,
            "prompt_tokens": texts.prompt,
            "tokens": texts.tokens,
            "levels": [level.as_json() for level in self.levels],
            "drafting_pays_up_to": self.pays_up_to,
            "drafting_stops_paying_at": self.stops_at,
        }

    def lines(self) -> list[str]:
        """The same for people."""
        site, texts = self.site, self.texts
        drafters = "a drafter for each user" if site.drafters is None else f"drafters {site.drafters}"
        times = f"one row {site.costs.seconds(1) * 1e3:.3g} ms, a draft {site.draft * 1e3:.3g} ms, "
        way = f"round trip {site.round_trip * 1e3:.3g} ms, {site.alpha:.0%} of drafts stand; {drafters}"
        what = f"texts of {texts.tokens} tokens after prompts of {texts.prompt}, one after the other; simulated"
        return [times + way, what, "", _HEADINGS, *map(_line, self.levels), _MEANING, "", self._verdict()]

    def _verdict(self) -> str:
        if self.stops_at is None:
            return f"Drafting pays with all these numbers of users, up to {self.pays_up_to}."
        if self.pays_up_to is None:
            return f"Drafting does not pay, not with {self.stops_at} either."
        return f"Drafting pays up to {self.pays_up_to} users, and stops paying by {self.stops_at}."


_HEADINGS = (
    f"{'users':>6}{'tokens/s':>10}{'each':>8}{'slowest':>9}{'alone':>10}{'each':>8}{'speed-up':>10}"
    f"{'drafts':>8}{'accept':>8}{'rows':>7}"
)
_MEANING = "each, slowest: tokens/s of a user; drafts: verified per token; rows: of a step with drafts"


def _line(level: Level) -> str:
    ours, alone = level.drafting, level.alone
    acceptance = "-" if ours.acceptance is None else f"{ours.acceptance:.0%}"
    return (
        f"{level.users:>6}{ours.total:>10.1f}{ours.mean:>8.2f}{ours.slowest:>9.2f}{alone.total:>10.1f}"
        f"{alone.mean:>8.2f}{f'{level.speedup:.2f}x':>10}{ours.drafts:>8.2f}{acceptance:>8}{ours.rows:>7.1f}"
    )


def simulate(site: Site, texts: Texts, users: Sequence[int], advance: Callable[[], None]) -> Plan:
    """Simulate each number of users, with drafts as `texts` has it and without, calling `advance` after each."""
    levels = []
    for count in sorted(users):
        found = []
        for one in (texts, replace(texts, draft_n=0)):
            found.append(forecast(site, one, count, Random(SEED).random))  # noqa: S311 - luck, not a secret
            advance()
        levels.append(Level(*found))
    return Plan(site, texts, levels)
