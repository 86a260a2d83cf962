"""`specmesh ps`, `ping` and `doctor`: which daemons run here, whom they are connected to, and what is wrong."""

import os
import socket
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import click

from specmesh import client as daemon
from specmesh.cli.options import aligned, json_option, number, overlap_option, print_json, print_result, socket_option
from specmesh.client import Fields, known_sockets, listens, starting
from specmesh.errors import DaemonUnreachable, SpecmeshError
from specmesh.paths import bundled
from specmesh.security import Way, endpoint, way

ANSWER_TIMEOUT_S = 2.0


@click.command()
@json_option
@click.pass_context
def ps(ctx: click.Context, json: bool) -> None:
    """List the daemons that run here; exit code 69 if there are none."""
    found = find()
    if json:
        print_json({"schema_version": 1, "daemons": [one.as_json() for one in found]})
    elif found:
        click.echo("\n".join(_tables([one.as_json() for one in found])))
    if not found:
        click.echo("specmesh: no daemon runs here: start one (specmesh verifier, specmesh drafter)", err=True)
        ctx.exit(DaemonUnreachable.exit_code)


@dataclass(frozen=True, slots=True)
class Found:
    """A daemon at a socket. state: running, loading, starting, or that it does not answer. fields: its snapshot, empty
    where it has none yet."""

    socket: Path
    state: str
    fields: Fields = field(default_factory=lambda: Fields({}))

    @property
    def role(self) -> str:
        """verifier or drafter; from the socket's name if the daemon does not answer."""
        return self.fields.text("role") or self.socket.stem

    @property
    def model(self) -> str | None:
        return self.fields.text("model", "name") or None

    def as_json(self) -> dict[str, Any]:
        stats = self.fields
        return {
            "role": self.role,
            "pid": stats.number("pid"),
            "state": self.state,
            "model": self.model,
            "sessions": stats.number("sessions", "live"),
            "max_sessions": stats.number("sessions", "max"),
            "uptime_s": stats.number("uptime_s"),
            "version": stats.text("version") or None,
            "socket": str(self.socket),
            "neighbours": [
                *(_peer(one, "name", one.part("load")) for one in stats.parts("verifiers")),
                *(_peer(one, "drafter", Fields({})) for one in stats.parts("peers")),
            ],
        }


def find() -> list[Found]:
    found: list[Found] = []
    for path in known_sockets():
        if not listens(path):
            found += [Found(path, "starting")] if starting(path) else []
            continue
        try:
            stats = Fields(daemon.Client(path, ANSWER_TIMEOUT_S).get("/stats"))
        except SpecmeshError:
            found.append(Found(path, "does not answer"))
            continue
        loading = stats.number("loading")
        found.append(Found(path, "running" if loading is None else f"loading {loading:.0%}", stats))
    return found


def _peer(peer: Fields, name: str, load: Fields) -> dict[str, Any]:
    """Return a peer of a daemon; sessions and places: of a verifier that has told its load."""
    state = "stuck" if peer.raw.get("stuck") else "attached"
    if name == "name" and not peer.text("name"):
        state = "refused" if peer.text("refusal") else "away"
    places = load.number("max")
    return {
        "name": peer.text(name) or None,
        "state": state,
        "model": peer.text("model") or peer.text("engine") or None,
        "sessions": load.number("sessions") if places else None,
        "places": places,
        "round_trip_ms": peer.number("round_trip_ms", "p50"),
        "address": peer.text("address"),
    }


def _tables(daemons: Iterable[dict[str, Any]]) -> list[str]:
    own: list[tuple[object, ...]] = [("ROLE", "PID", "MODEL", "SESSIONS", "UPTIME", "SOCKET")]
    heading = ("DAEMON", "NEIGHBOUR", "STATE", "MODEL", "SESSIONS", "ROUND TRIP", "ADDRESS")
    links: list[tuple[object, ...]] = [heading]
    for one in daemons:
        who, age = f"{one['role']} {one['pid'] or '-'}", one["uptime_s"]
        sessions = _share(one["sessions"], one["max_sessions"])
        up = None if age is None else timedelta(seconds=int(age))
        own.append((one["role"], one["pid"], one["model"] or one["state"], sessions, up, one["socket"]))
        for near in one["neighbours"]:
            trip = None if near["round_trip_ms"] is None else f"{near['round_trip_ms']:.3g} ms"
            sessions = _share(near["sessions"], near["places"])
            links.append((who, near["name"], near["state"], near["model"], sessions, trip, near["address"] or None))
    return [*aligned(own), *(["", *aligned(links)] if len(links) > 1 else [])]


def _share(sessions: object, most: object) -> str | None:
    return None if sessions is None else f"{sessions}/{most}"


# --- ping


@click.command()
@number("--count", click.IntRange(1, 100_000), 10, "N", "Number of PINGs.")
@number("--interval", click.FloatRange(0.01, 60.0), 0.2, "SECONDS", "Time between two PINGs.")
@json_option
@socket_option
def ping(count: int, interval: float, json: bool, socket_path: Path | None) -> None:
    """Have a daemon measure the round trip to each of its peers; exit code 69 if none answers.

    Ctrl-C ends it with the summary so far.
    """
    times: dict[tuple[str, str], list[float | None]] = {}
    try:
        for event in map(Fields, daemon.Client(socket_path).stream("/ping", {"count": count, "interval_s": interval})):
            name, address, time_ms = event.text("peer"), event.text("address"), event.number("time_ms")
            times.setdefault((name, address), []).append(time_ms)
            if not json:
                said = "lost" if time_ms is None else f"time={time_ms:.2f} ms"
                click.echo(f"from {name} via {address} ({way_to(address)}): {said}")
    finally:
        peers = [_pinged(name, address, of) for (name, address), of in times.items()]
        if json:
            print_json({"schema_version": 1, "peers": peers})
        elif peers:
            click.echo("\n" + "\n".join(map(_summary, peers)))
    if not any(peer["answered"] for peer in peers):
        raise DaemonUnreachable("no peer answered: is it running, and reachable from here? `specmesh doctor` looks")


def _pinged(name: str, address: str, times_ms: list[float | None]) -> dict[str, Any]:
    """Return what --json prints of a peer. times_ms: until each answer, None for a lost one."""
    answered = [time for time in times_ms if time is not None]
    return {
        "name": name,
        "address": address,
        "way": str(way_to(address)),
        "sent": len(times_ms),
        "answered": len(answered),
        "loss": round(1 - len(answered) / len(times_ms), 4),
        "min_ms": min(answered, default=None),
        "median_ms": round(median(answered), 4) if answered else None,
        "max_ms": max(answered, default=None),
        "times_ms": times_ms,
    }


def _summary(peer: dict[str, Any]) -> str:
    form = "{name}: {sent} sent, {answered} answered, {loss:.0%} lost"
    if peer["answered"]:
        form += "; min/median/max = {min_ms:.2f}/{median_ms:.2f}/{max_ms:.2f} ms"
    return form.format(**peer)


@cache
def way_to(address: str) -> Way:
    """Return where an address leads; the class of its host's first IP address, or of the name if it is not found."""
    host, port = endpoint(address)
    with suppress(OSError, UnicodeError):  # the second for what cannot be a name at all
        host = str(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][4][0])
    return way(host)


# --- doctor


@click.command("doctor")
@click.option("--model", metavar="PATH", help="Draft model to compare: a GGUF file or Hugging Face directory.")
@click.option("--against", metavar="PATH", help="Target model to compare it with, likewise.")
@overlap_option
@json_option
@click.pass_context
def doctor_command(
    ctx: click.Context, model: str | None, against: str | None, min_vocab_overlap: float, json: bool
) -> None:
    """Check this machine, its settings, services, daemons and their links; exit code 1 if a check fails.

    With --model and --against: compare two models' vocabularies, as a drafter does; exit code 1 if they do not fit.
    """
    from specmesh import doctor, logs

    logs.configure("error", "auto")
    if model is None and against is None:
        ctx.color = False if os.environ.get("NO_COLOR") else None  # click colours terminals only
        checks = doctor.examine()
        print_result(checks.as_json(), checks.lines(), as_json=json)
        ctx.exit(int(bool(checks.counts[doctor.Status.FAIL])))
    if model is None or against is None:
        raise click.UsageError("--model and --against go together")
    draft = Path(bundled("drafter.gguf") if model == "bundled" else model)
    target = Path(bundled("target.gguf") if against == "bundled" else against)
    found = doctor.compare(draft, target, min_vocab_overlap)
    print_result(found, doctor.comparison_lines(found), as_json=json)
    ctx.exit(int(not found["usable"]))
