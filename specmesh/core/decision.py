"""What the step policy decided, as records: one per verification step, and the policy itself when it changes.

They hold counts, rates and seconds, never text or token ids, so that a log of them can be shown to anyone.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Self, get_args

from specmesh.core.pool import WHYS, Why

SCHEMA_VERSION = 1
WAIT = -1
"""In a policy: wait at this lead rather than step."""

Mode = Literal["wait", "step", "probe", "deadline"]
MODES: tuple[Mode, ...] = get_args(Mode)
Json = dict[str, object]


@dataclass(frozen=True, slots=True)
class Decision:
    """One verification step of one session.

    time_s:        when the step began, in seconds since the session opened.
    position:      committed ids before the step.
    lead:          drafts in hand when it began.
    draft_n:       drafts verified in it; at most `lead`.
    asked:         draft_n told to the drafter afterwards.
    waited_s:      seconds waited for drafts before it.
    mode:          what the rule said when the step began: "step"; "wait", it had waited and the drafts came; "probe", a
                   draft to see whether drafting pays again; "deadline", it had waited and they did not come.
    acceptance:    conditional acceptance of the first positions, as estimated then, each 0..1.
    interval_s:    estimated seconds between two drafts; None while unknown.
    round_trip_s:  median round trip to the drafter in seconds; 0 while unknown.
    restart_s:     estimated seconds from a correction to the first draft on it; None while unknown.
    expected_s:    what the cost table said that a step of this width takes.
    expected_rate: tokens per second that the policy promised; None where it promises none.
    took_s:        measured seconds of the step.
    accepted, committed: drafts that stood, and ids that the step committed.
    side, side_accepted: drafts of a second chain that were verified besides, and how many of `accepted` were these.
    """

    time_s: float
    session: int
    position: int
    lead: int
    draft_n: int
    asked: int
    waited_s: float
    mode: Mode
    acceptance: tuple[float, ...]
    interval_s: float | None
    round_trip_s: float
    restart_s: float | None
    expected_s: float
    expected_rate: float | None
    took_s: float
    accepted: int
    committed: int
    side: int = 0
    side_accepted: int = 0

    @property
    def drafted(self) -> int:
        """Drafts verified, of both chains."""
        return self.draft_n + self.side

    @property
    def tested(self) -> int:
        """Drafts compared, along the text."""
        length = self.accepted - self.side_accepted + self.side if self.side_accepted else self.draft_n
        return min(self.accepted + 1, length)

    def as_json(self) -> Json:
        """The record as a JSON object: seconds to 0.1 microseconds, rates to 4 digits."""
        return {
            "kind": "decision",
            "time_s": _seconds(self.time_s),
            "session": self.session,
            "position": self.position,
            "lead": self.lead,
            "draft_n": self.draft_n,
            "asked": self.asked,
            "waited_s": _seconds(self.waited_s),
            "mode": self.mode,
            "acceptance": [round(rate, 4) for rate in self.acceptance],
            "interval_s": _seconds(self.interval_s),
            "round_trip_s": _seconds(self.round_trip_s),
            "restart_s": _seconds(self.restart_s),
            "expected_s": _seconds(self.expected_s),
            "expected_rate": _rounded(self.expected_rate, 3),
            "took_s": _seconds(self.took_s),
            "accepted": self.accepted,
            "committed": self.committed,
            "side": self.side,
            "side_accepted": self.side_accepted,
        }

    @classmethod
    def from_json(cls, record: Mapping[str, object]) -> Self:
        """The record that `as_json` wrote, fields unknown here left out. Raises ValueError that names the field."""
        made = cls(
            time_s=_number(record, "time_s"),
            session=_count(record, "session"),
            position=_count(record, "position"),
            lead=_count(record, "lead"),
            draft_n=_count(record, "draft_n"),
            asked=_count(record, "asked"),
            waited_s=_number(record, "waited_s"),
            mode=_mode(record),
            acceptance=tuple(_numbers(record, "acceptance")),
            interval_s=_optional(record, "interval_s"),
            round_trip_s=_number(record, "round_trip_s"),
            restart_s=_optional(record, "restart_s"),
            expected_s=_number(record, "expected_s"),
            expected_rate=_optional(record, "expected_rate"),
            took_s=_number(record, "took_s"),
            accepted=_count(record, "accepted"),
            committed=_count(record, "committed"),
            side=_count(record, "side"),
            side_accepted=_count(record, "side_accepted"),
        )
        if made.accepted > made.drafted:
            raise ValueError(f"accepted is {made.accepted}, more than draft_n, {made.draft_n}, and side, {made.side}")
        return made


@dataclass(frozen=True, slots=True)
class PolicyRecord:
    """The policy of a session from `time_s` on: at a lead of leads[i] drafts, verify drafts[i] of them, or WAIT.

    `leads` and `drafts` are equally long, `leads` ascending, those below 0 before the first draft on a correction;
    between two of them the lower one's entry holds.
    rate: tokens per second that it promises.
    """

    time_s: float
    session: int
    leads: list[float]
    drafts: list[int]
    rate: float

    def as_json(self) -> Json:
        """The record as a JSON object."""
        return {
            "kind": "policy",
            "time_s": _seconds(self.time_s),
            "session": self.session,
            "leads": [round(lead, 4) for lead in self.leads],
            "drafts": list(self.drafts),
            "rate": round(self.rate, 3),
        }

    @classmethod
    def from_json(cls, record: Mapping[str, object]) -> Self:
        """The record that `as_json` wrote. Raises ValueError that names the field."""
        leads, drafts = _leads(record), record.get("drafts")
        if not isinstance(drafts, list) or not all(type(item) is int and item >= WAIT for item in drafts):
            raise ValueError(f"drafts is {_shown(drafts)}, not a list of numbers from {WAIT}")
        if len(leads) != len(drafts) or leads != sorted(leads):
            raise ValueError(f"{len(leads)} leads for {len(drafts)} drafts, or leads not ascending")
        return cls(_number(record, "time_s"), _count(record, "session"), leads, list(drafts), _number(record, "rate"))


@dataclass(frozen=True, slots=True)
class DrafterChange:
    """A session is drafted for by another drafter from `time_s` on: the how manyth that came, and why it was chosen.

    rate: tokens per second that it promised; None where nothing was known of it.
    """

    time_s: float
    session: int
    drafter: int
    why: Why
    rate: float | None

    def as_json(self) -> Json:
        """The record as a JSON object."""
        return {
            "kind": "drafter",
            "time_s": _seconds(self.time_s),
            "session": self.session,
            "drafter": self.drafter,
            "why": self.why,
            "rate": _rounded(self.rate, 3),
        }

    @classmethod
    def from_json(cls, record: Mapping[str, object]) -> Self:
        """The record that `as_json` wrote. Raises ValueError that names the field."""
        why = next((why for why in WHYS if record.get("why") == why), None)
        if why is None:
            raise ValueError(f"why is {_shown(record.get('why'))}, not one of {', '.join(WHYS)}")
        time_s, session, drafter = _number(record, "time_s"), _count(record, "session"), _count(record, "drafter")
        return cls(time_s, session, drafter, why, _optional(record, "rate"))


def header(version: str, model: str) -> Json:
    """A log's first line."""
    return {"kind": "header", "schema_version": SCHEMA_VERSION, "specmesh": version, "model": model}


def _seconds(value: float | None) -> float | None:
    return _rounded(value, 7)


def _rounded(value: float | None, digits: int) -> float | None:
    """What JSON can hold: infinity is unknown."""
    return None if value is None or not math.isfinite(value) else round(value, digits)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0


def _number(record: Mapping[str, object], name: str) -> float:
    value = record.get(name)
    if not isinstance(value, int | float) or not _is_number(value):
        raise ValueError(f"{name} is {_shown(value)}, not a number from 0")
    return float(value)


def _optional(record: Mapping[str, object], name: str) -> float | None:
    return None if name in record and record[name] is None else _number(record, name)


def _numbers(record: Mapping[str, object], name: str) -> list[float]:
    value = record.get(name)
    if not isinstance(value, list) or not all(_is_number(item) for item in value):
        raise ValueError(f"{name} is {_shown(value)}, not a list of numbers from 0")
    return [float(item) for item in value]


def _leads(record: Mapping[str, object]) -> list[float]:
    value = record.get("leads")
    if not isinstance(value, list) or not all(
        isinstance(item, int | float) and _is_number(abs(item)) for item in value
    ):
        raise ValueError(f"leads is {_shown(value)}, not a list of numbers")
    return [float(item) for item in value]


def _count(record: Mapping[str, object], name: str) -> int:
    value = record.get(name)
    if type(value) is not int or value < 0:
        raise ValueError(f"{name} is {_shown(value)}, not a whole number from 0")
    return value


def _mode(record: Mapping[str, object]) -> Mode:
    for mode in MODES:
        if record.get("mode") == mode:
            return mode
    raise ValueError(f"mode is {_shown(record.get('mode'))}, not one of {', '.join(MODES)}")


def _shown(value: object) -> str:
    return "missing" if value is None else repr(value)[:60]
