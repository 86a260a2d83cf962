"""`specmesh ps` and `ping`: which daemons run here, whom they are connected to, and how far those are."""

import socket
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median

import click

from specmesh import client as daemon
from specmesh.api.snapshot import Fields, printable
from specmesh.cli.options import json_option, number, print_json, socket_option
from specmesh.client import Json, known_sockets, listens, starting
from specmesh.errors import DaemonUnreachable, SpecmeshError
from specmesh.ways import Way, endpoint, way

SCHEMA_VERSION = 1
ANSWER_TIMEOUT_S = 2.0


@click.command()
@json_option
@click.pass_context
def ps(ctx: click.Context, json: bool) -> None:
    """List the daemons that run here; exit code 69 where none does."""
    found = find()
    if json:
        print_json({"schema_version": SCHEMA_VERSION, "daemons": [one.as_json() for one in found]})
    elif found:
        click.echo("\n".join(lines(found)))
    if not found:
        click.echo("specmesh: no daemon runs here: start one (specmesh verifier, specmesh drafter)", err=True)
        ctx.exit(DaemonUnreachable.exit_code)


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A peer of a daemon, as the daemon tells; None for what it does not know.

    state: attached, stuck, refused or away. sessions: those that a verifier generates for, of `places`.
    """

    name: str | None
    state: str
    model: str | None
    sessions: int | None
    places: int | None
    round_trip_ms: float | None
    address: str


@dataclass(frozen=True, slots=True)
class Found:
    """A daemon at a socket. `stats` is its snapshot; None where it does not answer: because it only takes connections,
    or, if `starting`, not even those yet."""

    socket: Path
    stats: Json | None
    starting: bool = False

    @property
    def fields(self) -> Fields:
        """The fields of its snapshot, if it has one."""
        return Fields(self.stats or {})

    @property
    def role(self) -> str:
        """verifier or drafter, by its own word, else by its socket's name."""
        return self.fields.text("role") or self.socket.stem

    @property
    def model(self) -> str | None:
        """Its model's name as it is; None while it loads."""
        name = self.fields.part("model").raw.get("name")
        return str(name) if name is not None else None

    @property
    def pid(self) -> int | None:
        """Its process id; None where it does not tell."""
        return _whole(self.fields.number("pid"))

    @property
    def state(self) -> str:
        """starting, loading, running, or that it does not answer."""
        if self.stats is None:
            return "starting" if self.starting else "does not answer"
        loading = self.fields.number("loading")
        return f"loading {loading:.0%}" if loading is not None else "running"

    @property
    def neighbours(self) -> list[Neighbour]:
        """A drafter's verifiers, connected or not; a verifier's drafters."""
        return [*map(_verifier, self.fields.parts("verifiers")), *map(_drafter, self.fields.parts("peers"))]

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
            "neighbours": [asdict(one) for one in self.neighbours],
        }


def find() -> list[Found]:
    """Return the daemons at the known sockets."""
    found: list[Found] = []
    for path in known_sockets():
        if not listens(path):
            found += [Found(path, None, starting=True)] if starting(path) else []
            continue
        try:
            found.append(Found(path, daemon.Client(path, ANSWER_TIMEOUT_S).get("/stats")))
        except SpecmeshError:
            found.append(Found(path, None))
    return found


def lines(found: Iterable[Found]) -> list[str]:
    """Return a table of the daemons, and one of their neighbours if there are any."""
    found = list(found)
    told = _aligned([("ROLE", "PID", "MODEL", "SESSIONS", "UPTIME", "SOCKET"), *map(_row, found)])
    near = [_link(one, neighbour) for one in found for neighbour in one.neighbours]
    heading = ("DAEMON", "NEIGHBOUR", "STATE", "MODEL", "SESSIONS", "ROUND TRIP", "ADDRESS")
    return [*told, "", *_aligned([heading, *near])] if near else told


def _aligned(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def human_seconds(seconds: float) -> str:
    """Return a duration in its two largest units."""
    minutes, left = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    for big, small, names in ((days, hours, "dh"), (hours, minutes, "hm"), (minutes, left, "ms")):
        if big:
            return f"{big}{names[0]} {small}{names[1]}"
    return f"{left}s"


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def _verifier(told: Fields) -> Neighbour:
    """One of a drafter's verifiers."""
    away = "refused" if told.text("refusal") else "away"
    places = _whole(told.number("load", "max"))
    return Neighbour(
        told.text("name") or None,
        _state(told) if told.text("name") else away,
        told.text("model") or None,
        _whole(told.number("load", "sessions")) if places else None,
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
    sessions, uptime = one.fields.part("sessions"), one.fields.number("uptime_s")
    live, most = sessions.number("live"), sessions.number("max")
    return (
        one.role,
        str(one.pid or "-"),
        printable(one.model or one.state),
        "-" if live is None else f"{live:g}/{most or 0:g}",
        human_seconds(uptime) if uptime is not None else "-",
        str(one.socket),
    )


@click.command()
@number("--count", click.IntRange(1, 100_000), 10, "N", "Number of PINGs.")
@number("--interval", click.FloatRange(0.01, 60.0), 0.2, "SECONDS", "Time between two PINGs.")
@json_option
@socket_option
def ping(count: int, interval: float, json: bool, socket_path: Path | None) -> None:
    """Have a daemon measure the round trip to each of its peers; exit code 69 where none answers.

    Ctrl-C ends it with the summary of what came.
    """
    tallies = Tallies()
    try:
        for event in daemon.Client(socket_path).stream("/ping", {"count": count, "interval_s": interval}):
            line = tallies.add(event)
            if not json:
                click.echo(line)
    finally:
        if json:
            print_json(tallies.as_json())
        elif tallies.peers:
            click.echo("\n" + "\n".join(tally.summary() for tally in tallies.peers.values()))
    if not any(tally.answered for tally in tallies.peers.values()):
        raise DaemonUnreachable("no peer answered: is it running, and reachable from here? `specmesh doctor` looks")


@dataclass(slots=True)
class Tally:
    """The PINGs to one peer: milliseconds until each answer, None for a lost one."""

    name: str
    address: str
    way: Way
    times_ms: list[float | None] = field(default_factory=list)

    @property
    def answered(self) -> list[float]:
        """The times of those that were answered."""
        return [time for time in self.times_ms if time is not None]

    def line(self) -> str:
        """The newest one as text."""
        time_ms = self.times_ms[-1]
        said = "lost" if time_ms is None else f"time={time_ms:.2f} ms"
        return f"from {self.name} via {self.address} ({self.way}): {said}"

    @property
    def loss(self) -> float:
        """The share of lost ones."""
        return 1 - len(self.answered) / len(self.times_ms)

    def summary(self) -> str:
        """All of them as text."""
        times = self.answered
        head = f"{self.name}: {len(self.times_ms)} sent, {len(times)} answered, {self.loss:.0%} lost"
        if not times:
            return head
        return f"{head}; min/median/max = {min(times):.2f}/{median(times):.2f}/{max(times):.2f} ms"

    def as_json(self) -> Json:
        """All of them as JSON."""
        times = self.answered
        return {
            "name": self.name,
            "address": self.address,
            "way": str(self.way),
            "sent": len(self.times_ms),
            "answered": len(times),
            "loss": round(self.loss, 4),
            "min_ms": min(times, default=None),
            "median_ms": round(median(times), 4) if times else None,
            "max_ms": max(times, default=None),
            "times_ms": list(self.times_ms),
        }


class Tallies:
    """The tallies of one run, `peers` in the order in which they were first heard of."""

    def __init__(self) -> None:
        self.peers: dict[tuple[str, str], Tally] = {}

    def add(self, event: Json) -> str:
        """Count an event of the daemon's answer; return its line."""
        name, address = printable(str(event["peer"])), printable(str(event["address"]))
        if (name, address) not in self.peers:
            self.peers[name, address] = Tally(name, address, way(_resolved(endpoint(address)[0])))
        tally, time_ms = self.peers[name, address], event["time_ms"]
        tally.times_ms.append(float(time_ms) if isinstance(time_ms, int | float) else None)
        return tally.line()

    def as_json(self) -> Json:
        """What --json prints."""
        return {"schema_version": SCHEMA_VERSION, "peers": [tally.as_json() for tally in self.peers.values()]}


def _resolved(host: str) -> str:
    """The first IP address of a host; the host itself where none is found."""
    try:
        return str(socket.getaddrinfo(host, None)[0][4][0])
    except OSError:
        return host
