"""`specmesh ps` and `ping`: which daemons run here, whom they are connected to, and how far those are."""

import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import click

from specmesh import client as daemon
from specmesh.cli.options import json_option, number, print_json, socket_option
from specmesh.client import Fields, Json, known_sockets, listens, printable, starting
from specmesh.errors import DaemonUnreachable, SpecmeshError
from specmesh.security.addresses import endpoint, way

SCHEMA_VERSION = 1
ANSWER_TIMEOUT_S = 2.0


@click.command()
@json_option
@click.pass_context
def ps(ctx: click.Context, json: bool) -> None:
    """List the daemons that run here; exit code 69 if there are none."""
    found = find()
    if json:
        print_json({"schema_version": SCHEMA_VERSION, "daemons": [one.as_json() for one in found]})
    elif found:
        click.echo("\n".join(_tables(found)))
    if not found:
        click.echo("specmesh: no daemon runs here: start one (specmesh verifier, specmesh drafter)", err=True)
        ctx.exit(DaemonUnreachable.exit_code)


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
    def state(self) -> str:
        """starting, loading, running, or that it does not answer."""
        if self.stats is None:
            return "starting" if self.starting else "does not answer"
        loading = self.fields.number("loading")
        return f"loading {loading:.0%}" if loading is not None else "running"

    def as_json(self) -> Json:
        """One row of --json."""
        told = self.fields
        return {
            "role": self.role,
            "pid": _whole(told.number("pid")),
            "state": self.state,
            "model": self.model,
            "sessions": _whole(told.number("sessions", "live")),
            "max_sessions": _whole(told.number("sessions", "max")),
            "uptime_s": told.number("uptime_s"),
            "version": told.text("version") or None,
            "socket": str(self.socket),
            "neighbours": [*map(_verifier, told.parts("verifiers")), *map(_drafter, told.parts("peers"))],
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


def _verifier(told: Fields) -> Json:
    """One of a drafter's verifiers; its sessions are those that it generates for, of `places`."""
    away = "refused" if told.text("refusal") else "away"
    places = _whole(told.number("load", "max"))
    return {
        "name": told.text("name") or None,
        "state": _attached(told) if told.text("name") else away,
        "model": told.text("model") or None,
        "sessions": _whole(told.number("load", "sessions")) if places else None,
        "places": places,
        "round_trip_ms": told.number("round_trip_ms", "p50"),
        "address": told.text("address"),
    }


def _drafter(told: Fields) -> Json:
    """One of a verifier's drafters."""
    return {
        "name": told.text("drafter") or None,
        "state": _attached(told),
        "model": told.text("model") or told.text("engine") or None,
        "sessions": None,
        "places": None,
        "round_trip_ms": told.number("round_trip_ms", "p50"),
        "address": told.text("address"),
    }


def _attached(told: Fields) -> str:
    return "stuck" if told.raw.get("stuck") else "attached"


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def _tables(found: Iterable[Found]) -> list[str]:
    """A table of the daemons, and one of their neighbours if there are any."""
    daemons = [("ROLE", "PID", "MODEL", "SESSIONS", "UPTIME", "SOCKET")]
    links = [("DAEMON", "NEIGHBOUR", "STATE", "MODEL", "SESSIONS", "ROUND TRIP", "ADDRESS")]
    for one in found:
        told, uptime = one.as_json(), one.fields.number("uptime_s")
        daemons.append(
            (
                one.role,
                _cell(told["pid"]),
                printable(one.model or one.state),
                _share(told["sessions"], told["max_sessions"]),
                "-" if uptime is None else human_seconds(uptime),
                str(one.socket),
            )
        )
        for near in one.as_json()["neighbours"]:  # type: ignore[attr-defined]
            trip = near["round_trip_ms"]
            links.append(
                (
                    f"{one.role} {told['pid']}",
                    *(_cell(near[key]) for key in ("name", "state", "model")),
                    _share(near["sessions"], near["places"]),
                    "-" if trip is None else f"{trip:.3g} ms",
                    _cell(near["address"]),
                )  # type: ignore[arg-type]
            )
    return [*_aligned(daemons), *(["", *_aligned(links)] if len(links) > 1 else [])]


def _cell(value: object) -> str:
    return str(value or "-")


def _share(sessions: object, most: object) -> str:
    return "-" if sessions is None else f"{sessions}/{most}"


def _aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
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


@click.command()
@number("--count", click.IntRange(1, 100_000), 10, "N", "Number of PINGs.")
@number("--interval", click.FloatRange(0.01, 60.0), 0.2, "SECONDS", "Time between two PINGs.")
@json_option
@socket_option
def ping(count: int, interval: float, json: bool, socket_path: Path | None) -> None:
    """Have a daemon measure the round trip to each of its peers; exit code 69 if none answers.

    Ctrl-C ends it with the summary so far.
    """
    tallies: dict[tuple[str, str], Tally] = {}
    try:
        for event in daemon.Client(socket_path).stream("/ping", {"count": count, "interval_s": interval}):
            name, address = printable(str(event["peer"])), printable(str(event["address"]))
            line = tallies.setdefault((name, address), Tally(name, address)).add(event["time_ms"])
            if not json:
                click.echo(line)
    finally:
        if json:
            peers = [tally.as_json() for tally in tallies.values()]
            print_json({"schema_version": SCHEMA_VERSION, "peers": peers})
        elif tallies:
            click.echo("\n" + "\n".join(tally.summary() for tally in tallies.values()))
    if not any(tally.answered for tally in tallies.values()):
        raise DaemonUnreachable("no peer answered: is it running, and reachable from here? `specmesh doctor` looks")


@dataclass(slots=True)
class Tally:
    """The PINGs to one peer: milliseconds until each answer, None for a lost one."""

    name: str
    address: str
    way: str = ""
    times_ms: list[float | None] = field(default_factory=list)

    def add(self, time_ms: object) -> str:
        """Count an answer; return its line."""
        self.way = self.way or str(way(_resolved(endpoint(self.address)[0])))
        self.times_ms.append(float(time_ms) if isinstance(time_ms, int | float) else None)
        said = f"time={time_ms:.2f} ms" if isinstance(time_ms, int | float) else "lost"
        return f"from {self.name} via {self.address} ({self.way}): {said}"

    @property
    def answered(self) -> list[float]:
        """The times of those that were answered."""
        return [time for time in self.times_ms if time is not None]

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
            "way": self.way,
            "sent": len(self.times_ms),
            "answered": len(times),
            "loss": round(self.loss, 4),
            "min_ms": min(times, default=None),
            "median_ms": round(median(times), 4) if times else None,
            "max_ms": max(times, default=None),
            "times_ms": list(self.times_ms),
        }


def _resolved(host: str) -> str:
    """The first IP address of a host; the host itself where none is found."""
    try:
        return str(socket.getaddrinfo(host, None)[0][4][0])
    except OSError:
        return host
