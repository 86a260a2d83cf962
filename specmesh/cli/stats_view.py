"""`specmesh stats --watch`: what a daemon does now, redrawn on a terminal, a line at a time elsewhere."""

import sys
import time
from collections.abc import Iterator

from rich.console import Console
from rich.live import Live

from specmesh.cli.stats_screen import BLOCKS, PLAIN, one_line, screen
from specmesh.client import Client, Json
from specmesh.errors import SpecmeshError


def watch(client: Client, interval: float) -> None:
    """Show the daemon every `interval` seconds until interrupted; raises SpecmeshError where none answers at first."""
    console = Console()
    if sys.stdout.isatty() and not console.is_dumb_terminal:
        _draw(console, _told(client, interval))
    else:
        for snapshot, trouble in _told(client, interval):
            print(time.strftime("%H:%M:%S"), trouble or one_line(snapshot), flush=True)


def _draw(console: Console, told: Iterator[tuple[Json, str]]) -> None:
    snapshot, trouble = next(told)
    marks = PLAIN if console.options.ascii_only else BLOCKS
    with Live(console=console, auto_refresh=False, screen=True) as live:
        while True:
            live.update(screen(snapshot, *console.size, trouble, marks), refresh=True)
            snapshot, trouble = next(told)


def _told(client: Client, interval: float) -> Iterator[tuple[Json, str]]:
    """The newest snapshot, and what is wrong where it is not new: a daemon that went away may come back."""
    snapshot, trouble, answered = client.get("/stats"), "", time.monotonic()
    while True:
        yield snapshot, trouble
        time.sleep(interval)
        try:
            snapshot, trouble, answered = client.get("/stats"), "", time.monotonic()
        except SpecmeshError:
            trouble = f"no answer for {time.monotonic() - answered:.0f} s: waiting for the daemon to return"
