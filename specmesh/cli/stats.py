"""`specmesh stats`: what a daemon is doing, as lines, as JSON, or live."""

import re
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from specmesh import client as daemon
from specmesh.cli.options import json_option, number, print_result, socket_option
from specmesh.client import Client, Fields, Json, printable
from specmesh.errors import SpecmeshError

if TYPE_CHECKING:
    from rich.console import Group

_MARKS, _ASCII_MARKS = " ▁▂▃▄▅▆▇█", " .:-=+*#@"
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
@click.option("--watch", "live", is_flag=True, help="Show it live, or a line at a time where stdout is no terminal.")
@number("--interval", click.FloatRange(0.1), 1.0, "SECONDS", "Time between two updates of --watch.")
@socket_option
@click.pass_context
def stats(ctx: click.Context, json: bool, live: bool, interval: float, socket_path: Path | None) -> None:
    """Show what a daemon is doing."""
    if not live and ctx.get_parameter_source("interval") is ParameterSource.COMMANDLINE:
        raise click.UsageError("--interval needs --watch: give both")
    if live and json:
        raise click.UsageError("--watch and --json do not go together: leave one out")
    if live:
        watch(daemon.Client(socket_path, timeout=max(3.0, 2 * interval)), interval)
        return
    snapshot = daemon.Client(socket_path).get("/stats")
    print_result(snapshot, (f"{name:<15}{value}" for name, value in rows(snapshot)), as_json=json)


# --- live


def watch(client: Client, interval: float) -> None:
    """Show the daemon every `interval` seconds until interrupted; raise SpecmeshError where none answers at first."""
    from rich.console import Console
    from rich.live import Live

    console, snapshots = Console(), _snapshots(client, interval)
    if not sys.stdout.isatty() or console.is_dumb_terminal:
        for snapshot, trouble in snapshots:
            click.echo(f"{time.strftime('%H:%M:%S')} {trouble or one_line(snapshot)}")
        return
    marks = _ASCII_MARKS if console.options.ascii_only else _MARKS
    with Live(console=console, auto_refresh=False, screen=True) as live:
        for snapshot, trouble in snapshots:
            live.update(screen(snapshot, console.width, trouble, marks), refresh=True)


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


def screen(snapshot: Json, width: int, trouble: str = "", marks: str = _MARKS) -> "Group":
    """Return the rows, curves of the last minute, and the sessions, the newest first; `trouble` stands on top."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    told = Fields(snapshot)
    table, sessions = Table.grid(padding=(0, 2)), Table(box=None, header_style="cyan", pad_edge=False)
    table.add_column(style="cyan", no_wrap=True, min_width=14)
    table.add_column(no_wrap=True, overflow="crop")
    for name, value in rows(snapshot):
        table.add_row(Text(name), Text(value))
    for name, values, top in _curves(told):
        table.add_row(Text(name), Text(_spark(values, top, width - 20, marks), "green"))
    for title in _SESSION_COLUMNS.values():
        sessions.add_column(title, justify="right", no_wrap=True)
    for row in reversed(told.parts("sessions", "rows")):
        sessions.add_row(*(_short(row.number(key)) for key in _SESSION_COLUMNS))
    return Group(Text(trouble, "bold red"), table, Text(), *([sessions] if sessions.rows else []))


def one_line(snapshot: Json) -> str:
    told = Fields(snapshot)
    if "loading" in snapshot:
        return f"{told.text('role')} loading {told.number('loading') or 0:.0%}"
    (share, _, _), (pace, values, _) = _curves(told)
    drafted, accepted = (sum(told.numbers("last_minute", kind)) for kind in ("drafted", "accepted"))
    parts = [
        _filled("{role} {model.name}, sessions {sessions.live}", told),
        f"{pace} {_short(next(reversed(values), None))}",
        f"{share} {f'{accepted / drafted:.0%}' if drafted else '-'}",
        _filled("draft_n {draft_n}", told),
        f"round trip {_short(told.number('round_trip_ms', 'p50'))} ms",
        *(f"{name} busy" for name in _busy(told)),
    ]
    return ", ".join(parts)


def _curves(told: Fields) -> tuple[tuple[str, list[float], float], tuple[str, list[float], float]]:
    """Acceptance and pace per second of the last minute: name, values, the top of the scale."""
    drafted, accepted, generated = (told.numbers("last_minute", kind) for kind in ("drafted", "accepted", "generated"))
    rates = [a / d if d else 0.0 for a, d in zip(accepted, drafted, strict=False)]
    name, pace = ("drafts/s", drafted) if told.text("role") == "drafter" else ("tokens/s", generated)
    return ("acceptance", rates, 1.0), (name, pace, max(pace, default=0.0))


def _spark(values: Sequence[float], top: float, width: int, marks: str) -> str:
    """The newest values that fit, a mark each; nothing for 0."""
    most = len(marks) - 1
    newest = values[-width:] if width > 0 else ()
    return "".join(marks[min(max(round(value / top * most), 1), most)] if value > 0 else marks[0] for value in newest)


# --- rows


def rows(snapshot: Json) -> list[tuple[str, str]]:
    """Return (name, value) pairs, the most interesting first."""
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
        ("round trip", _filled("p50 {round_trip_ms.p50} ms, p99 {round_trip_ms.p99} ms", told)),
        ("bytes/accepted", _filled("{bytes_per_accepted_token}", told)),
        ("wire", "encrypted, for allowed keys only" if snapshot.get("encrypted") else "not encrypted"),
        ("busy", ", ".join(_busy(told))),
        *(_drafter(told) if told.text("role") == "drafter" else _verifier(told)),
    ]


def _verifier(told: Fields) -> list[tuple[str, str]]:
    positions = " ".join(f"{rate:.2f}" for rate in told.numbers("acceptance", "per_position"))
    rates = [row.number("tokens_per_second") or 0.0 for row in told.parts("sessions", "rows")]
    step = told.number("one_token_step_ms")
    speedup = f"{sum(rates) / len(rates) * step / 1e3:.2f}x" if rates and step else "-"
    peer = (
        "{drafter} ({engine} {model}), {draft_interval_ms} ms per draft, acceptance {acceptance}, promises "
        "{promised_tokens_per_second} tokens/s, drafts for {sessions}"
    )
    return [
        ("acceptance", _filled("rolling {acceptance.rolling}, total {acceptance.total}", told)),
        ("mean length", _filled("{acceptance.mean_length}", told)),
        ("per position", positions or "-"),
        ("tokens/s", _filled("{tokens_per_second}, one-token step {one_token_step_ms} ms", told)),
        ("speed-up", f"{speedup} over the one-token step"),
        ("generated", _filled("{totals.generated} tokens in {totals.rounds} rounds", told)),
        ("drafts", _filled("{totals.accepted} accepted of {totals.drafted}", told)),
        *([("drafter", _filled(peer, one)) for one in told.parts("peers")] or [("drafter", "none attached")]),
    ]


def _drafter(told: Fields) -> list[tuple[str, str]]:
    several = told.parts("verifiers")
    one = _where(told.part("verifier"), told.text("refusal"))
    totals = "{totals.drafted} drafted, {totals.accepted} accepted, {totals.committed} committed"
    return [
        *(("verifier", text) for text in (map(_one_of, several) if len(several) > 1 else [one])),
        ("drafting", _filled("{draft_ms} ms per draft", told)),
        ("totals", _filled(totals, told)),
    ]


def _where(verifier: Fields, refusal: str) -> str:
    return _filled("{name} ({model})", verifier) if verifier.text("name") else refusal or "not connected"


def _one_of(verifier: Fields) -> str:
    told = _where(verifier, verifier.text("refusal")) + _filled(" at {address}", verifier)
    if not verifier.text("name"):
        return told
    known = verifier.number("load", "max")
    load = "{load.sessions} of {load.max} sessions" if known else "its load unknown"
    own = f"{verifier.number('sessions', 'own') or 0:g} ours"
    return ", ".join([told, _filled(load, verifier), own, _filled("{round_trip_ms.p50} ms away", verifier)])


def _busy(told: Fields) -> list[str]:
    """Return each side's busy share of the last minute, after its name."""
    shares = told.by_name("busy") | told.by_name("busy", "drafters")
    return [f"{printable(name)} {share:.0%}" for name, share in shares.items()]


def _filled(template: str, told: Fields) -> str:
    """Fill the paths in a template with the fields there, a dash for each that is missing."""
    return re.sub(r"{([\w.]+)}", lambda path: told.text(*path[1].split(".")) or "-", template)


def _short(value: float | None) -> str:
    if value is None:
        return "-"
    return str(int(value)) if value == int(value) else f"{value:.2f}" if value < 100 else f"{value:.1f}"
