"""`specmesh stats`, `ps`, `ping` and `doctor`: what daemons do, which run here, who their peers are, what is wrong."""

import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import click

from specmesh import client as daemon
from specmesh.cli.options import aligned, json_option, number, print_json, print_result, socket_option
from specmesh.client import Client, Fields, Json, known_sockets, listens, starting
from specmesh.errors import DaemonUnreachable, SpecmeshError

if TYPE_CHECKING:
    from rich.console import Group

ANSWER_TIMEOUT_S = 2.0
_SESSION_COLUMNS = {
    "session": "session",
    "prompt_tokens": "prompt",
    "generated": "generated",
    "acceptance_rate": "acceptance",
    "draft_n": "draft_n",
    "lead": "lead",
    "tokens_per_second": "tokens/s",
}


@click.command()
@json_option
@click.option("--watch", "live", is_flag=True, help="Show it live, until Ctrl-C.")
@number("--interval", click.FloatRange(0.1), 1.0, "SECONDS", "Time between two updates of --watch.")
@socket_option
def stats(json: bool, live: bool, interval: float, socket_path: Path | None) -> None:
    """Show what a daemon is doing."""
    if live and json:
        raise click.UsageError("--watch and --json do not go together: leave one out")
    if live:
        watch(daemon.Client(socket_path, timeout=max(3.0, 2 * interval)), interval)
        return
    snapshot = daemon.Client(socket_path).get("/stats")
    print_result(snapshot, _row_lines(snapshot), as_json=json)


def watch(client: Client, interval: float) -> None:
    """Show the daemon every `interval` seconds until interrupted; raise SpecmeshError where none answers at first."""
    from rich.console import Console
    from rich.live import Live

    console, snapshots = Console(), _snapshots(client, interval)
    if not console.is_terminal or console.is_dumb_terminal:
        for snapshot, trouble in snapshots:
            click.echo("\n".join([*([trouble] if trouble else _row_lines(snapshot)), ""]))
        return
    with Live(console=console, auto_refresh=False, screen=True) as live:
        for snapshot, trouble in snapshots:
            live.update(screen(snapshot, trouble), refresh=True)


def _snapshots(client: Client, interval: float) -> Iterator[tuple[Json, str]]:
    """Yield the newest snapshot, and a message if the daemon does not answer now."""
    snapshot, trouble, answered = client.get("/stats"), "", time.monotonic()
    while True:
        yield snapshot, trouble
        time.sleep(interval)
        try:
            snapshot, trouble, answered = client.get("/stats"), "", time.monotonic()
        except SpecmeshError:
            trouble = f"no answer for {time.monotonic() - answered:.0f} s: waiting for the daemon to return"


def screen(snapshot: Json, trouble: str = "") -> "Group":
    """Return the rows and the sessions, the newest first; `trouble` stands on top."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table, sessions = Table.grid(padding=(0, 2)), Table(box=None, header_style="cyan", pad_edge=False)
    table.add_column(style="cyan", no_wrap=True, min_width=14)
    table.add_column(no_wrap=True, overflow="crop")
    for name, value in rows(snapshot):
        table.add_row(Text(name), Text(value))
    for title in _SESSION_COLUMNS.values():
        sessions.add_column(title, justify="right", no_wrap=True)
    for row in reversed(Fields(snapshot).parts("sessions", "rows")):
        sessions.add_row(*(_filled(f"{{{key}}}", row) for key in _SESSION_COLUMNS))
    return Group(Text(trouble, "bold red"), table, Text(), *([sessions] if sessions.rows else []))


def _row_lines(snapshot: Json) -> list[str]:
    return [f"{name:<15}{value}" for name, value in rows(snapshot)]


def rows(snapshot: Json) -> list[tuple[str, str]]:
    """Return (name, value) pairs of /stats, the most interesting first."""
    told = Fields(snapshot)
    if "loading" in snapshot:
        return [("role", told.text("role")), ("loading", f"{told.number('loading') or 0:.0%}")]
    more = {name: told.number("sessions", name) for name in ("queued", "kept", "interrupted")}
    waiting = "".join(f", {count:g} {name}" for name, count in more.items() if count)
    reuse = "{reuse.hits} sessions reused {reuse.tokens_saved} tokens"
    kept = "{reuse.kept_tokens} tokens in {reuse.kept_sequences} sequences are kept"
    return [
        ("role", f"{told.text('role')}, up {told.number('uptime_s') or 0:.0f} s"),
        ("model", _filled("{model.name} on {model.backend}", told)),
        ("sessions", _filled("{sessions.live} live of {sessions.max}, {sessions.opened} opened", told) + waiting),
        ("prefix cache", _filled(f"{reuse}, {kept}", told)),
        ("draft_n", _filled("{draft_n}", told)),
        ("wire", "encrypted, for allowed keys only" if snapshot.get("encrypted") else "not encrypted"),
        ("busy", f"{told.number('busy') or 0:.0%}"),
        *(_drafter(told) if told.text("role") == "drafter" else _verifier(told)),
    ]


def _verifier(told: Fields) -> list[tuple[str, str]]:
    positions = " ".join(f"{rate:.2f}" for rate in told.numbers("acceptance", "per_position"))
    peer = (
        "{drafter} ({engine} {model}), round trip {round_trip_ms.p50} ms, {draft_interval_ms} ms per draft, "
        "acceptance {acceptance}, promises "
        "{promised_tokens_per_second} tokens/s, drafts for {sessions}"
    )
    return [
        ("acceptance", _filled("{acceptance.total}", told)),
        ("mean length", _filled("{acceptance.mean_length}", told)),
        ("per position", positions or "-"),
        ("tokens/s", _filled("{tokens_per_second}, one-token step {one_token_step_ms} ms", told)),
        ("generated", _filled("{totals.generated} tokens in {totals.rounds} rounds", told)),
        ("drafts", _filled("{totals.accepted} accepted of {totals.drafted}", told)),
        *([("drafter", _filled(peer, one)) for one in told.parts("peers")] or [("drafter", "none attached")]),
    ]


def _drafter(told: Fields) -> list[tuple[str, str]]:
    totals = "{totals.drafted} drafted, {totals.accepted} accepted, {totals.committed} committed"
    return [
        *(("verifier", _verifier_of(one)) for one in told.parts("verifiers")),
        ("drafting", _filled("{draft_ms} ms per draft", told)),
        ("totals", _filled(totals, told)),
    ]


def _verifier_of(one: Fields) -> str:
    if not one.text("name"):
        return f"{one.text('refusal') or 'not connected'} at {one.text('address')}"
    return _filled(
        "{name} ({model}) at {address}, round trip {round_trip_ms.p50} ms, {load.sessions} of {load.max} sessions", one
    )


def _filled(template: str, told: Fields) -> str:
    """Fill the paths in a template with the fields there, a dash for each that is missing."""
    return re.sub(r"{([\w.]+)}", lambda path: told.text(*path[1].split(".")) or "-", template)


# --- ps


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
                *(_peer(one, "name") for one in stats.parts("verifiers")),
                *(_peer(one, "drafter") for one in stats.parts("peers")),
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


def _peer(peer: Fields, name: str) -> dict[str, Any]:
    state = "attached"
    if name == "name" and not peer.text("name"):
        state = "refused" if peer.text("refusal") else "away"
    return {
        "name": peer.text(name) or None,
        "state": state,
        "model": peer.text("model") or peer.text("engine") or None,
        "address": peer.text("address") or None,
    }


def _tables(daemons: list[dict[str, Any]]) -> list[str]:
    own: list[tuple[object, ...]] = [("ROLE", "PID", "MODEL", "SESSIONS", "UPTIME", "SOCKET")]
    links: list[tuple[object, ...]] = [("DAEMON", "NEIGHBOUR", "STATE", "MODEL", "ADDRESS")]
    for one in daemons:
        age, live = one["uptime_s"], one["sessions"]
        sessions = None if live is None else f"{live}/{one['max_sessions']}"
        up = None if age is None else timedelta(seconds=int(age))
        own.append((one["role"], one["pid"], one["model"] or one["state"], sessions, up, one["socket"]))
        links += [(f"{one['role']} {one['pid'] or '-'}", *near.values()) for near in one["neighbours"]]
    return [*aligned(own), *(["", *aligned(links)] if len(links) > 1 else [])]


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
    client, times = daemon.Client(socket_path), dict[tuple[str, str], list[float | None]]()
    due = time.monotonic()
    try:
        for _ in range(count):
            time.sleep(max(due - time.monotonic(), 0.0))
            due = time.monotonic() + interval
            for peer in Fields(client.get("/ping", {})).parts("peers"):
                name, address, time_ms = peer.text("peer"), peer.text("address"), peer.number("time_ms")
                times.setdefault((name, address), []).append(time_ms)
                if not json:
                    said = "lost" if time_ms is None else f"time={time_ms:.2f} ms"
                    click.echo(f"from {name} via {address}: {said}")
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


# --- doctor


@click.command("doctor")
@json_option
@click.pass_context
def doctor_command(ctx: click.Context, json: bool) -> None:
    """Check what is installed, set, running and reachable; exit code 1 if a check fails."""
    from specmesh import doctor, logs

    logs.configure("error")
    ctx.color = False if os.environ.get("NO_COLOR") else None  # click colours terminals only
    checks = doctor.examine()
    print_result(doctor.as_json(checks), doctor.lines(checks), as_json=json)
    ctx.exit(int(doctor.count(checks, "fail") > 0))
