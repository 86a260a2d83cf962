"""`specmesh ps`: the daemons that answer at the known sockets, and whom each of them has on its wire."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from specmesh.client import Client, Json, known_sockets, listens, starting
from specmesh.errors import SpecmeshError
from specmesh.snapshot import Fields, printable

SCHEMA_VERSION = 1
PATIENCE = 2.0
"""Seconds that a daemon may take to answer."""


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A daemon at the other end of one's wire, as that one tells; None for what it does not know.

    state: attached, stuck, refused or away. sessions: those that a verifier generates for, of `places`.
    """

    name: str | None
    state: str
    model: str | None
    sessions: int | None
    places: int | None
    round_trip_ms: float | None
    address: str

    def as_json(self) -> Json:
        """One of the neighbours in --json."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Found:
    """A daemon at a socket; `stats` is its snapshot, None where it does not answer: because it takes connections only,
    or, if `starting`, not even those yet."""

    socket: Path
    stats: Json | None
    starting: bool = False

    @property
    def fields(self) -> Fields:
        """The fields of its snapshot; none of them is there where it told nothing."""
        return Fields(self.stats or {})

    @property
    def role(self) -> str:
        """verifier or drafter, by its own word, else by its socket's name."""
        return self.fields.text("role") or self.socket.stem

    @property
    def pid(self) -> int | None:
        """Its process id; None where it does not tell."""
        return _whole(self.fields.number("pid"))

    @property
    def model(self) -> str | None:
        """Its model's name, as it says it; None while it loads."""
        name = self.fields.part("model").raw.get("name")
        return str(name) if name is not None else None

    @property
    def state(self) -> str:
        """running, loading, starting, or that it does not answer."""
        if self.starting:
            return "starting"
        if self.stats is None:
            return "does not answer"
        loading = self.fields.number("loading")
        return f"loading {loading:.0%}" if loading is not None else "running"

    @property
    def neighbours(self) -> list[Neighbour]:
        """A drafter's verifiers, there or not; a verifier's drafters."""
        return [_verifier(one) for one in self.fields.parts("verifiers")] + [
            _drafter(one) for one in self.fields.parts("peers")
        ]

    def as_json(self) -> Json:
        """One row of --json."""
        sessions = self.fields.part("sessions")
        return {
            "role": self.role,
            "pid": self.pid,
            "state": self.state,
            "model": self.model,
            "sessions": _whole(sessions.number("live")),
            "max_sessions": _whole(sessions.number("max")),
            "uptime_s": self.fields.number("uptime_s"),
            "version": self.fields.text("version") or None,
            "socket": str(self.socket),
            "neighbours": [one.as_json() for one in self.neighbours],
        }


def find(paths: Iterable[Path] | None = None) -> list[Found]:
    """The daemons at these sockets, by default at all known ones."""
    found: list[Found] = []
    for path in known_sockets() if paths is None else paths:
        if not listens(path):
            if starting(path):
                found.append(Found(path, None, starting=True))
            continue
        try:
            found.append(Found(path, Client(path, PATIENCE).get("/stats")))
        except SpecmeshError:
            found.append(Found(path, None))
    return found


def as_json(found: Iterable[Found]) -> Json:
    """What --json prints."""
    return {"schema_version": SCHEMA_VERSION, "daemons": [one.as_json() for one in found]}


def lines(found: Iterable[Found]) -> list[str]:
    """A heading and an aligned line for each daemon; then the same for their neighbours, if there are any."""
    found = list(found)
    told = _aligned([("ROLE", "PID", "MODEL", "SESSIONS", "UPTIME", "SOCKET"), *map(_row, found)])
    near = [_link(one, neighbour) for one in found for neighbour in one.neighbours]
    heading = ("DAEMON", "NEIGHBOUR", "STATE", "MODEL", "SESSIONS", "ROUND TRIP", "ADDRESS")
    return [*told, "", *_aligned([heading, *near])] if near else told


def _aligned(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def human_seconds(seconds: float) -> str:
    """A duration in its two largest units."""
    minutes, left = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    for big, small, names in ((days, hours, "dh"), (hours, minutes, "hm"), (minutes, left, "ms")):
        if big:
            return f"{big}{names[0]} {small}{names[1]}"
    return f"{left}s"


def _whole(number: float | None) -> int | None:
    return None if number is None else int(number)


def _verifier(told: Fields) -> Neighbour:
    """One of a drafter's verifiers."""
    away = "refused" if told.text("refusal") else "away"
    load = told.part("load")
    places = _whole(load.number("max"))
    return Neighbour(
        told.text("name") or None,
        _state(told) if told.text("name") else away,
        told.text("model") or None,
        _whole(load.number("sessions")) if places else None,
        places,
        told.number("round_trip_ms", "p50"),
        told.text("address"),
    )


def _drafter(told: Fields) -> Neighbour:
    """One of a verifier's drafters."""
    model, trip = told.text("model") or told.text("engine") or None, told.number("round_trip_ms", "p50")
    return Neighbour(told.text("drafter") or None, _state(told), model, None, None, trip, told.text("address"))


def _state(told: Fields) -> str:
    return "stuck" if told.raw.get("stuck") else "attached"


def _link(one: Found, near: Neighbour) -> tuple[str, ...]:
    return (
        f"{one.role} {one.pid}",
        near.name or "-",
        near.state,
        near.model or "-",
        f"{near.sessions}/{near.places}" if near.places else "-",
        f"{near.round_trip_ms:.3g} ms" if near.round_trip_ms is not None else "-",
        near.address or "-",
    )


def _row(one: Found) -> tuple[str, ...]:
    told = one.as_json()
    uptime = one.fields.number("uptime_s")
    return (
        one.role,
        str(one.pid or "-"),
        printable(one.model or one.state),
        "-" if told["sessions"] is None else f"{told['sessions']}/{told['max_sessions']}",
        human_seconds(uptime) if uptime is not None else "-",
        str(one.socket),
    )
