"""`specmesh stats`, `ps` and `ping`: work of daemons, daemons that run here, and round trips to peers."""

import re
import shutil
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import click

from specmesh import client as daemon
from specmesh.cli.options import json_option, option, print_json, print_result, socket_option, table
from specmesh.client import Client, printable
from specmesh.core.fields import Json, at, number_at, objects_at
from specmesh.errors import DaemonUnreachable, SpecmeshError, Starting
from specmesh.paths import candidate_sockets

ANSWER_TIMEOUT_S = 2.0

_ROWS = {
    "model": "{model.name} on {model.backend}",
    "prefix cache": "{prefix_cache.hits} sessions took {prefix_cache.tokens_saved} tokens from it, it has "
    "{prefix_cache.kept_tokens}, {offloaded_bytes} bytes offloaded",
    "draft_n": "{draft_n}",
    "busy": "{busy} of the last minute",
}
_VERIFIER_ROWS = {
    "sessions": "{sessions.live} live of {sessions.max_sessions}, {sessions.queued} queued, {sessions.opened} opened",
    "acceptance": "{acceptance.rate}, mean length {acceptance.mean_length}",
    "per position": "{acceptance.per_position}",
    "tokens/s": "{tokens_per_second}, one-token step {one_token_step_ms} ms",
    "generated": "{totals.generated_tokens} tokens in {totals.rounds} rounds",
    "drafts": "{totals.accepted} accepted of {totals.drafted}",
}
_DRAFTER_ROWS = {
    "sessions": "{sessions.live} live of {sessions.max_sessions}, {sessions.interrupted} interrupted, "
    "{sessions.opened} opened",
    "drafting": "{draft_interval_ms} ms per draft",
    "totals": "{totals.draft_tokens} drafted, {totals.accepted} accepted, {totals.committed} committed",
}
_PEER = (
    "{drafter} ({engine} {model}), round trip {round_trip_ms.p50} ms, {draft_interval_ms} ms per draft, acceptance "
    "{acceptance}, promises {promised_tokens_per_second} tokens/s, drafts for {sessions}"
)
_SESSION = (
    "session",
    "prompt_tokens",
    "generated_tokens",
    "acceptance_rate",
    "draft_n",
    "lead",
    "tokens_per_second",
    "no_drafts",
)


@click.command()
@json_option
@click.option("--watch", "live", is_flag=True, help="Show it live, until Ctrl-C.")
@option("--interval", click.FloatRange(0.1), "SECONDS", "Time between two updates of --watch.", 1.0)
@socket_option
def stats(json: bool, live: bool, interval: float, socket_path: Path | None) -> None:
    """Show what a daemon is doing."""
    if live and json:
        raise click.UsageError("--watch and --json do not go together: leave one out")
    if live:
        watch(daemon.Client(socket_path, timeout=max(3.0, 2 * interval)), interval)
        return
    snapshot = daemon.Client(socket_path).get("/stats")
    print_result(snapshot, lines(snapshot), as_json=json)


def watch(client: Client, interval: float) -> None:
    """Show the daemon and its newest sessions every `interval` seconds until interrupted; raise SpecmeshError where
    none answers at first."""
    snapshot, trouble, answered = client.get("/stats"), "", time.monotonic()
    while True:
        found = [
            {name: session.get(name) for name in _SESSION}
            for session in objects_at(snapshot, "sessions.rows")
        ]
        shown = [trouble, *lines(snapshot), "", *(table(found[::-1]) if found else [])]
        if sys.stdout.isatty():
            width, height = shutil.get_terminal_size()
            shown = [line[: width - 1] for line in shown[: height - 1]]
            click.clear()
        click.echo("\n".join(shown))
        time.sleep(interval)
        try:
            snapshot, trouble, answered = client.get("/stats"), "", time.monotonic()
        except SpecmeshError:
            trouble = f"no answer for {time.monotonic() - answered:.0f} s: waiting for the daemon to return"


def lines(snapshot: Json) -> list[str]:
    return [f"{name:<15}{value}" for name, value in rows(snapshot)]


def rows(snapshot: Json) -> list[tuple[str, str]]:
    """Return (name, value) pairs of /stats, the most interesting first."""
    role = str(snapshot.get("role"))
    if "loading" in snapshot:
        return [("role", role), _loading(snapshot)]
    templates = (
        {"role": "{role}, up {uptime_s} s"}
        | _ROWS
        | (_DRAFTER_ROWS if role == "drafter" else _VERIFIER_ROWS)
    )
    found = [(name, _filled(template, snapshot)) for name, template in templates.items()]
    found.append(
        (
            "wire",
            "encrypted, for allowed keys only" if snapshot.get("encrypted") else "not encrypted",
        )
    )
    found += [("verifier", _verifier_of(one)) for one in objects_at(snapshot, "verifiers")]
    found += [("drafter", _drafter_of(one)) for one in objects_at(snapshot, "peers")]
    if "verifiers" not in snapshot and not snapshot.get("peers"):
        return [*found, ("drafter", "none attached")]
    if snapshot.get("no_drafts"):
        found.append(("no drafts", printable(str(snapshot["no_drafts"]))))
    return found


def _loading(stats: Json) -> tuple[str, str]:
    """Return whether a daemon without its model waits or loads, and for which thing or how far."""
    if stats.get("waiting_for"):
        return "waiting", printable(str(stats["waiting_for"]))
    return "loading", f"{stats['loading']:.0%}"


def _drafter_of(one: Json) -> str:
    mute = f", drafts nothing: {one['no_drafts']}" if one.get("no_drafts") else ""
    return _filled(_PEER, one) + printable(mute)


def _verifier_of(one: Json) -> str:
    if not one.get("name"):
        return printable(f"{one.get('refusal') or 'not connected'} at {one.get('address')}")
    where = "{name} ({model}) at {address}, round trip {round_trip_ms.p50} ms"
    return _filled(f"{where}, {{load.sessions}} of {{load.max_sessions}} sessions", one)


def _filled(template: str, snapshot: Json) -> str:
    """Fill the paths in a template with the fields there, a dash for each that is missing."""

    def value(path: re.Match[str]) -> str:
        found = at(snapshot, path[1])
        return (
            "-"
            if found is None
            else printable(f"{found:.4g}" if isinstance(found, float) else str(found))
        )

    return re.sub(r"{([\w.]+)}", value, template)


# --- ps


@click.command()
@json_option
@click.pass_context
def ps(ctx: click.Context, json: bool) -> None:
    """List the daemons that run here; exit code 69 if there are none."""
    daemons = [one.as_json() for one in find()]
    if json:
        print_json({"schema_version": 1, "daemons": daemons})
    elif daemons:
        click.echo("\n".join(table(daemons)))
    if not daemons:
        click.echo(
            "specmesh: no daemon runs here: start one (specmesh verifier, specmesh drafter)",
            err=True,
        )
        ctx.exit(DaemonUnreachable.exit_code)


@dataclass(frozen=True, slots=True)
class Found:
    """A daemon at a socket. state: running, loading, starting, or that it does not answer. stats: its snapshot, empty
    where it has none yet."""

    socket: Path
    state: str
    stats: Json = field(default_factory=dict)

    @property
    def role(self) -> str:
        """verifier or drafter; from the socket's name if the daemon does not answer."""
        return str(self.stats.get("role") or self.socket.stem)

    def as_json(self) -> Json:
        return {
            "role": self.role,
            "pid": at(self.stats, "pid"),
            "state": self.state,
            "model": at(self.stats, "model.name"),
            "sessions": at(self.stats, "sessions.live"),
            "max_sessions": at(self.stats, "sessions.max_sessions"),
            "uptime_s": at(self.stats, "uptime_s"),
            "version": at(self.stats, "version"),
            "socket": str(self.socket),
            "no_drafts": at(self.stats, "no_drafts"),
        }


def find() -> list[Found]:
    found: list[Found] = []
    for path in dict.fromkeys([*Client().tried, *candidate_sockets()]):
        try:
            stats = daemon.Client(path, ANSWER_TIMEOUT_S).get("/stats")
        except SpecmeshError as error:
            if type(error) is not DaemonUnreachable:  # else nobody listens there
                found.append(
                    Found(path, "starting" if isinstance(error, Starting) else "does not answer")
                )
            continue
        state = " ".join(_loading(stats)) if "loading" in stats else "running"
        found.append(Found(path, state, stats))
    return found


# --- ping


@click.command()
@option("--count", click.IntRange(1, 100_000), "N", "Number of PINGs.", 10)
@option("--interval", click.FloatRange(0.01, 60.0), "SECONDS", "Time between two PINGs.", 0.2)
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
            for peer in objects_at(client.get("/ping", {}), "peers"):
                name, address = str(peer["peer"]), str(peer["address"])
                time_ms = None if peer["time_ms"] is None else number_at(peer, "time_ms")
                times.setdefault((name, address), []).append(time_ms)
                if not json:
                    said = "lost" if time_ms is None else f"time={time_ms:.2f} ms"
                    click.echo(printable(f"from {name} via {address}: {said}"))
    finally:
        peers = [_pinged(name, address, of) for (name, address), of in times.items()]
        if json:
            print_json({"schema_version": 1, "peers": peers})
        elif peers:
            click.echo("\n" + "\n".join(table(peers)))
    if not any(peer["answered"] for peer in peers):
        raise DaemonUnreachable(
            "no peer answered: is it running, and reachable from here? `specmesh doctor` looks"
        )


def _pinged(name: str, address: str, times_ms: list[float | None]) -> Json:
    """Sum up a peer's answers. times_ms: until each answer, None for a lost one."""
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
    }
