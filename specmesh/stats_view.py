"""`specmesh stats --watch`: the snapshot as a live table."""

import time

from rich.console import Console
from rich.live import Live
from rich.table import Table

from specmesh.client import Client, Json
from specmesh.stats_lines import lines, rows

INTERVAL = 0.5


def watch(client: Client) -> None:
    """Refresh until interrupted; where stdout is no terminal, print one snapshot."""
    console = Console()
    if not console.is_terminal:
        print("\n".join(lines(client.get("/stats"))))
        return
    with Live(_table(client.get("/stats")), console=console, auto_refresh=False) as live:
        while True:
            time.sleep(INTERVAL)
            live.update(_table(client.get("/stats")), refresh=True)


def _table(snapshot: Json) -> Table:
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold cyan", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows(snapshot):
        table.add_row(name, value)
    return table
