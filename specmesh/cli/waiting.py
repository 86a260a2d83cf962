"""The answer to a command, with the progress of everything that it waits for on stderr."""

import copy
import sys
from collections.abc import Generator
from contextlib import closing, suppress

import click

from specmesh.client import Client, answer
from specmesh.core.fields import Json, number_at, object_at
from specmesh.errors import SpecmeshError
from specmesh.terminal import Display, progress

STATS_TIMEOUT_S = 1.0


def answered(client: Client, body: Json, timeout: float) -> Generator[Json, None, None]:
    """Yield the chunks of one answer as `client.answer` does.

    Until the text begins, a terminal shows how far the model is loaded and the prompt is read.
    """
    with progress() as shown:

        def notify(reason: str) -> None:
            shown.clear()
            click.echo(f"specmesh: {reason}", err=True)

        def wait() -> None:
            if sys.stderr.isatty():
                _show_loading(client, shown)

        if sys.stderr.isatty():
            body = body | {"return_progress": True}
        with closing(answer(client, body, timeout, notify, wait)) as chunks:
            for chunk in chunks:
                _show_reading(chunk, shown)
                if chunk.get("choices"):
                    yield chunk


def _show_reading(chunk: Json, shown: Display) -> None:
    """Show the progress that a chunk reports; a chunk without any ends the display."""
    reading = object_at(chunk, "prompt_progress")
    if not reading:
        shown.clear()
        return
    done = number_at(reading, "processed")
    shown.show("reading the prompt", done, number_at(reading, "total"), "tokens")


def _show_loading(client: Client, shown: Display) -> None:
    """Show how far the daemon has loaded its model, if it reports that soon."""
    probe = copy.copy(client)
    probe.timeout = STATS_TIMEOUT_S
    with suppress(SpecmeshError):
        stats = probe.get("/stats")
        if "loading" in stats and not stats.get("waiting_for"):
            shown.show("loading the model", number_at(stats, "loading"), 1.0)
