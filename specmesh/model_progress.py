"""A progress bar on stderr where that is a terminal, nothing elsewhere."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from specmesh.model_transfer import Advance


@contextmanager
def bar(name: str, size: int) -> Iterator[Advance]:
    """A bar for one file of `size` bytes; the function it gives is told the bytes held."""
    if not sys.stderr.isatty():
        yield lambda _held: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(name, total=size)
        yield lambda held: progress.update(task, completed=held)
