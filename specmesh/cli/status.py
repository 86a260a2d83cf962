"""`specmesh stats`, `ps` and `ping`: the state of daemons and their peers."""

import re
import shutil
import sys
import textwrap
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import NoReturn

import click

from specmesh import client as daemon
from specmesh.cli.options import (
    client_option,
    counted,
    flag,
    json_option,
    option,
    print_result,
    stacked,
    table,
)
from specmesh.client import Client, printable
from specmesh.core.fields import Json, at, is_list, number_at, object_at, objects_at
from specmesh.errors import DaemonUnreachable, SpecmeshError, Starting
from specmesh.paths import candidate_sockets
from specmesh.terminal import redraws

ANSWER_TIMEOUT_S = 2.0
WATCH_TIMEOUT_S = 3.0
APPENDED_S = 5.0
"""Seconds between two updates of --watch where a terminal only gets new lines."""

NAME_CELLS = 15
"""Width of the names of rows."""

_ROWS = {
    "role": "{role}, up {uptime_s} s",
    "model": "{model.name} on {model.backend}",
    "prefix cache": "saved {prefix_cache.tokens_saved:token} in {prefix_cache.hits:session}, "
    "keeps {prefix_cache.kept_tokens:token}, {offloaded_bytes:byte} offloaded",
    "draft_n": "{draft_n}",
    "busy": "{busy:%} of the last minute",
}
_VERIFIER_ROWS = {
    "sessions": "{sessions.live} of at most {sessions.max_sessions} run, {sessions.queued} queued, "
    "{sessions.opened} opened so far",
    "generated": "{totals.generated_tokens:token} in {totals.rounds:round}",
    "acceptance": "{totals.accepted} of {totals.drafted:draft}, rate {acceptance.rate}, "
    "{acceptance.mean_length} tokens a round",
    "per position": "{acceptance.per_position}",
    "kv cache": "{kv_cache.used} of {kv_cache.cells:token} in use, {kv_cache.setbacks:session} "
    "set back so far",
    "speed": "{tokens_per_second} tokens/s, one-token step {one_token_step_ms} ms",
}
_DRAFTER_ROWS = {
    "sessions": "{sessions.live} of at most {sessions.max_sessions} run, "
    "{sessions.interrupted} interrupted, {sessions.opened} opened so far",
    "drafting": "{draft_interval_ms} ms per draft",
    "totals": "{totals.draft_tokens:token} drafted, {totals.accepted} accepted, "
    "{totals.committed} committed, {totals.read} read",
    "window": "{window.size:token}, {window.takeovers} read ahead, {window.held_up:round} held up",
}
_PEER = (
    "{drafter} ({engine} {model}), drafts for {sessions:session}, round trip {round_trip_ms.p50} ms"
    ", {draft_interval_ms} ms per draft, acceptance {acceptance_rate}"
    ", expected rate {promised_tokens_per_second} tokens/s"
)
_VERIFIER = (
    "{name} ({model}) at {address}, round trip {round_trip_ms.p50} ms"
    ", {load.sessions} of at most {load.max_sessions:session}"
)
_FIELD = re.compile(r"{([\w.]+)(?::([\w%]+))?}")
"""A field of a template: {path}, or {path:noun} for a number with its noun, or {path:%}."""

_SESSION_COLUMNS = (
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
@flag("--watch", "Show it again and again, until Ctrl-C.")
@option(
    "--interval",
    click.FloatRange(0.1),
    "SECONDS",
    "Time between two updates of --watch.",
    shown=f"1, or {APPENDED_S:g} on a terminal to which lines are only appended",
)
@client_option
def stats(json: bool, watch: bool, interval: float | None, client: Client) -> None:
    """Show the state of a daemon.

    acceptance: accepted drafts of those that were tested, and the mean number of tokens that a
    round adds to a text. per position: the same rate for the first, second, ... draft of a round.
    by source: accepted drafts of those that were verified, of each source of drafts.
    """
    if watch and json:
        raise click.UsageError("--watch and --json do not go together: leave one out")
    if watch:
        screen = Screen()
        interval = interval or screen.interval
        client.timeout = max(WATCH_TIMEOUT_S, 2 * interval)
        show_repeatedly(client, interval, screen)
    snapshot = client.get("/stats")
    print_result(snapshot, lines(snapshot), as_json=json)


class Screen:
    """The place that `stats --watch` writes to.

    A terminal is drawn again each time, as far as its width and height go. A terminal that is not
    to be redrawn gets the lines that changed, a file or a pipe all lines.
    """

    def __init__(self) -> None:
        self._redraws = redraws(sys.stdout)
        self._appends = sys.stdout.isatty() and not self._redraws
        self._before: list[str] = []

    @property
    def interval(self) -> float:
        """Return the seconds between two updates, if the user gives none."""
        return APPENDED_S if self._appends else 1.0

    def show(self, lines: list[str], sessions: list[Json]) -> None:
        """Show the lines of a snapshot above the table of its sessions."""
        if not sys.stdout.isatty():
            click.echo("\n".join([*lines, "", *table(sessions)]))
            return
        width, height = shutil.get_terminal_size()
        shown = [*lines, "", *_fitting_table(sessions, width)]
        if self._appends:
            changed = [line for line in shown if line and line not in self._before]
            self._before = shown
            click.echo("\n".join(folded(changed, width)))
            return
        click.clear()
        click.echo("\n".join(_cropped(folded(shown, width), width, height)))


def _fitting_table(rows: list[Json], width: int) -> list[str]:
    """Return a table, with a heading of several lines if it is too wide for a terminal."""
    wide = table(rows)
    if max(map(len, wide), default=0) < width:
        return wide
    return stacked(rows)


def folded(lines: Iterable[str], width: int) -> list[str]:
    """Return lines of a terminal that is so wide; what does not fit goes on below its text."""
    if width <= 2 * NAME_CELLS:
        return list(lines)
    fold = textwrap.TextWrapper(width - 1, subsequent_indent=" " * NAME_CELLS)
    shown: list[str] = []
    for line in lines:
        shown += fold.wrap(line) or [""]
    return shown


def _cropped(lines: list[str], width: int, height: int) -> list[str]:
    """Return the lines that a terminal has room for; the last one counts the others."""
    room = height - 1
    missing = len(lines) - room
    if missing > 0:
        lines = [*lines[: room - 1], f"({counted(missing + 1, 'more line')}: enlarge the window)"]
    return [line[: width - 1] for line in lines]


def show_repeatedly(client: Client, interval: float, screen: Screen) -> NoReturn:
    """Show the daemon and its newest sessions every `interval` seconds until interrupted.

    Raise SpecmeshError if the daemon does not answer the first time.
    """
    snapshot = client.get("/stats")
    answered = time.monotonic()
    trouble = ""
    while True:
        screen.show([trouble, *lines(snapshot)], _session_rows(snapshot))
        time.sleep(interval)
        try:
            snapshot = client.get("/stats")
        except SpecmeshError:
            silence = time.monotonic() - answered
            trouble = f"no answer for {silence:.0f} s: waiting for the daemon to return"
        else:
            answered = time.monotonic()
            trouble = ""


def _session_rows(snapshot: Json) -> list[Json]:
    """Return the rows of the table of sessions, the newest first."""
    rows: list[Json] = []
    for session in reversed(objects_at(snapshot, "sessions.rows")):
        rows.append({name: session.get(name) for name in _SESSION_COLUMNS})
    return rows


def lines(snapshot: Json) -> list[str]:
    return [f"{name:<{NAME_CELLS}}{value}" for name, value in rows(snapshot)]


def rows(snapshot: Json) -> Iterator[tuple[str, str]]:
    """Yield (name, text) pairs of /stats, the most interesting first.

    A row without any value is left out.
    """
    role = str(snapshot.get("role"))
    if "loading" in snapshot:
        yield "role", role
        yield _loading(snapshot)
        return
    templates = _ROWS | (_DRAFTER_ROWS if role == "drafter" else _VERIFIER_ROWS)
    for name, template in templates.items():
        text = _filled(template, snapshot)
        if text:
            yield name, text
    sources = _sources_text(snapshot)
    if sources:
        yield "by source", sources
    if snapshot.get("encrypted"):
        yield "wire", "encrypted, for allowed keys only"
    else:
        yield "wire", "not encrypted"
    for verifier in objects_at(snapshot, "verifiers"):
        yield "verifier", _verifier_text(verifier)
    drafters = objects_at(snapshot, "peers")
    for drafter in drafters:
        yield "drafter", _drafter_text(drafter)
    if "verifiers" not in snapshot and not drafters:
        yield "drafter", "none attached"
    elif snapshot.get("no_drafts"):
        yield "no drafts", printable(str(snapshot["no_drafts"]))


def _sources_text(snapshot: Json) -> str:
    """Return the drafts accepted and verified of each source, the busiest first; "" without any."""
    counts: list[tuple[float, float, str]] = []
    for source in object_at(snapshot, "totals.drafted_by_source"):
        drafted = number_at(snapshot, f"totals.drafted_by_source.{source}", 0)
        accepted = number_at(snapshot, f"totals.accepted_by_source.{source}", 0)
        counts.append((drafted, accepted, source))
    counts.sort(reverse=True)
    parts = [f"{source} {accepted:.0f} of {drafted:.0f}" for drafted, accepted, source in counts]
    return printable(", ".join(parts))


def _loading(stats: Json) -> tuple[str, str]:
    """Return the state of a daemon without a model, and its progress or the thing it waits for."""
    if stats.get("waiting_for"):
        return "waiting", printable(str(stats["waiting_for"]))
    return "loading", f"{stats['loading']:.0%}"


def _drafter_text(drafter: Json) -> str:
    text = _filled(_PEER, drafter)
    if drafter.get("no_drafts"):
        text += printable(f", drafts nothing: {drafter['no_drafts']}")
    return text


def _verifier_text(verifier: Json) -> str:
    if not verifier.get("name"):
        state = verifier.get("refusal") or "not connected"
        return printable(f"{state} at {verifier.get('address')}")
    return _filled(_VERIFIER, verifier)


def _filled(template: str, snapshot: Json) -> str:
    """Return a template with its fields filled in.

    A part between two commas is left out if the snapshot has no value for one of its fields.
    """
    parts: list[str] = []
    for part in template.split(", "):
        values = [at(snapshot, path) for path, _ in _FIELD.findall(part)]
        if None not in values and [] not in values:
            parts.append(_FIELD.sub(lambda match: _field_text(match, snapshot), part))
    return ", ".join(parts)


def _field_text(match: re.Match[str], snapshot: Json) -> str:
    value = at(snapshot, match[1])
    kind = match[2]
    if kind == "%" and isinstance(value, int | float):
        return f"{100 * value:.3g} %"
    if kind is not None and isinstance(value, int):
        return counted(value, kind)
    if is_list(value):
        return " ".join(map(_number_text, value))
    return printable(_number_text(value))


def _number_text(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


# --- ps


@click.command()
@json_option
@click.pass_context
def ps(ctx: click.Context, json: bool) -> None:
    """List the daemons that run here; exit code 69 if there are none."""
    daemons = [found.as_json() for found in find()]
    print_result({"daemons": daemons}, table(daemons), as_json=json)
    if not daemons:
        click.echo(
            "specmesh: no daemon runs here: start one (specmesh verifier, specmesh drafter)",
            err=True,
        )
        ctx.exit(DaemonUnreachable.exit_code)


@dataclass(frozen=True, slots=True)
class Found:
    """A daemon at a socket.

    state: "running", "loading", "waiting", "starting" or "does not answer"; the second and third
        with the progress or the reason.
    stats: the daemon's snapshot; empty if there is none yet.
    """

    socket: Path
    state: str
    stats: Json = field(default_factory=dict)

    @property
    def role(self) -> str:
        """The role of the daemon, taken from the socket's name if the daemon does not answer."""
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
    """Return the daemons at all sockets at which one may listen."""
    found: list[Found] = []
    for path in dict.fromkeys([*daemon.local_sockets().paths, *candidate_sockets()]):
        try:
            stats = daemon.Client(path, ANSWER_TIMEOUT_S).get("/stats")
        except Starting:
            found.append(Found(path, "starting"))
        except SpecmeshError as error:
            # Nobody listens there if it is this very error; subclasses have other reasons.
            if type(error) is not DaemonUnreachable:
                found.append(Found(path, "does not answer"))
        else:
            state = "running"
            if "loading" in stats:
                state = " ".join(_loading(stats))
            found.append(Found(path, state, stats))
    return found


# --- ping

RoundTrips = dict[tuple[str, str], list[float | None]]
"""Milliseconds until each answer by the peer's name and address, None for a lost one."""


@click.command()
@option("--count", click.IntRange(1, 100_000), "N", "Number of PINGs.", 10)
@option("--interval", click.FloatRange(0.01, 60.0), "SECONDS", "Time between two PINGs.", 0.2)
@json_option
@client_option
def ping(count: int, interval: float, json: bool, client: Client) -> None:
    """Have a daemon measure the round trip to each of its peers; exit code 69 if none answers.

    Ctrl-C ends it with the summary so far.
    """
    times: RoundTrips = {}
    due = time.monotonic()
    try:
        for _ in range(count):
            time.sleep(max(due - time.monotonic(), 0.0))
            due = time.monotonic() + interval
            _ping_once(client, times, shown=not json)
    finally:
        peers = [_pinged(name, address, answers) for (name, address), answers in times.items()]
        if json or peers:
            print_result({"peers": peers}, ["", *table(peers)], as_json=json)
    if not any(peer["answered"] for peer in peers):
        raise DaemonUnreachable(
            "no peer answered: is it running, and reachable from here? `specmesh doctor` looks"
        )


def _ping_once(client: Client, times: RoundTrips, *, shown: bool) -> None:
    for peer in objects_at(client.get("/ping", {}), "peers"):
        name = str(peer["peer"])
        address = str(peer["address"])
        time_ms = None if peer["time_ms"] is None else number_at(peer, "time_ms")
        times.setdefault((name, address), []).append(time_ms)
        if shown:
            result = "lost" if time_ms is None else f"time={time_ms:.2f} ms"
            click.echo(printable(f"from {name} via {address}: {result}"))


def _pinged(name: str, address: str, times_ms: list[float | None]) -> Json:
    """Return the summary of a peer's answers."""
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
