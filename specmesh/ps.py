"""`specmesh ps`: the daemons that answer at the sockets where they usually are."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from specmesh.client import Client, Json, known_sockets, listens, starting
from specmesh.errors import SpecmeshError
from specmesh.snapshot import Fields, printable

SCHEMA_VERSION = 1
PATIENCE = 2.0
"""Seconds that a daemon may take to answer."""


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
    """A heading and an aligned line for each daemon."""
    rows = [("ROLE", "PID", "MODEL", "SESSIONS", "UPTIME", "SOCKET"), *map(_row, found)]
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
