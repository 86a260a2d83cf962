"""`specmesh demo`: the bundled pair beside its target alone, each step as long as on a larger machine."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from specmesh.bench import SIZES, generate, has_drafter, loaded_stats, summed
from specmesh.cli.options import columns, json_option, option, print_result
from specmesh.client import Client, GeneratedText
from specmesh.core.fields import Json, number_at
from specmesh.errors import EngineError, SpecmeshError
from specmesh.machines import DRAFT_MS, STEPS_MS, step_ms
from specmesh.security.keys import KeyFolder

if TYPE_CHECKING:
    from rich.table import Table

START_S = 120.0
DAEMON = [
    "--model",
    "bundled",
    "--engine",
    "llama",
    "--gpu-layers",
    "0",
    "--threads",
    "1",
    "--drain",
    "0",
]


@click.command()
@click.argument("prompt", default="def read_config(path):")
@option(
    "--hardware",
    click.Choice([*STEPS_MS, "this"]),
    None,
    "Machine and size of the target whose step times are imitated; this: none.",
    "h100-70b",
)
@option("--max-tokens", click.IntRange(1, 900), "N", "Maximum number of tokens to generate.", 200)
@json_option
def demo(prompt: str, hardware: str, max_tokens: int, json: bool) -> None:
    """Continue PROMPT with a verifier alone and, at the same time, with a verifier and a drafter.

    Both use the tiny models that come with specmesh, on llama.cpp (extra `verifier`). They are real, and so are the
    three daemons and the wire; only the steps are stretched to what large models take.
    """
    for ending in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, signal.default_int_handler)  # no daemon is left behind
    if not json:
        click.echo(explanation(hardware))
    with ThreadPoolExecutor() as threads, daemons(hardware) as clients:
        body: Json = {
            "prompt": prompt,
            "max_tokens": max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "rounds": True,
        }
        texts = GeneratedText(), GeneratedText()
        streams = [
            threads.submit(generate, client, body, text)
            for client, text in zip(clients, texts, strict=True)
        ]
        if not json and sys.stdout.isatty():
            show(texts, streams)
        for stream in streams:
            stream.result()
    found = result(hardware, *texts)
    print_result(
        found,
        columns([{name: value for name, value in found.items() if name != "text"}]),
        as_json=json,
    )


def explanation(hardware: str) -> str:
    real = "the models, the daemons, the wire and every token are real"
    if hardware == "this":
        return f"Nothing is stretched: {real}, and so are the times."
    steps = f"a step to {step_ms(hardware, 1):g} ms, with four drafts {step_ms(hardware, 5):.1f}"
    return f"Stretched to {hardware}: {steps}, a draft to {DRAFT_MS} ms; {real}."


@contextmanager
def daemons(hardware: str) -> Generator[tuple[Client, Client]]:
    """A verifier alone and one with a drafter, all ready, with keys of their own; they end with the context."""
    with tempfile.TemporaryDirectory(prefix="specmesh-") as name, ExitStack() as ends:
        folder = Path(name)
        KeyFolder(folder / "keys").new()
        stretch = [] if hardware == "this" else ["--stretch", hardware]
        options = [
            *DAEMON,
            *stretch,
            "--keys",
            str(folder / "keys"),
            "--config",
            os.devnull,
            "--log-level",
            "warning",
        ]
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith("SPECMESH_")
        }
        with (
            socket.create_server(("127.0.0.1", 0)) as first,
            socket.create_server(("127.0.0.1", 0)) as second,
        ):
            alone, pair = (f"tcp://127.0.0.1:{one.getsockname()[1]}" for one in (first, second))
        running: list[tuple[subprocess.Popen[bytes], Path]] = []
        for where in (
            ["verifier", "--bind", alone],
            ["verifier", "--bind", pair],
            ["drafter", "--connect", pair],
        ):
            own = folder / str(len(running))
            command = [
                sys.executable,
                "-m",
                "specmesh",
                *where,
                "--socket",
                f"{own}.sock",
                *options,
            ]
            log = ends.enter_context(own.open("wb"))
            daemon = subprocess.Popen(  # noqa: S603  (in a session of its own: Ctrl-C ends it through us)
                command,
                stdin=subprocess.DEVNULL,
                stderr=log,
                env=environment,
                start_new_session=True,
            )
            ends.callback(daemon.wait)
            ends.callback(daemon.terminate)
            running.append((daemon, own))
        clients = Client(folder / "0.sock"), Client(folder / "1.sock")
        until = time.monotonic() + START_S
        while not _ready(*clients):
            for daemon, log_path in running:
                if daemon.poll() is not None or time.monotonic() > until:
                    said = (
                        log_path.read_text(errors="replace")
                        .strip()
                        .rpartition("\n")[2]
                        .removeprefix("specmesh: ")
                    )
                    raise EngineError(f"a daemon of the demo does not run: {said}")
            time.sleep(0.1)
        yield clients


def _ready(alone: Client, pair: Client) -> bool:
    try:
        return not has_drafter(loaded_stats(alone)) and has_drafter(loaded_stats(pair))
    except SpecmeshError:
        return False  # not yet


def show(texts: tuple[GeneratedText, GeneratedText], streams: list[Future[GeneratedText]]) -> None:
    from rich.console import Console
    from rich.live import Live

    console = Console()
    with Live(
        console=console,
        refresh_per_second=20,
        get_renderable=lambda: screen(texts, min(console.height - 4, 24)),
    ):
        wait(streams)


def screen(texts: tuple[GeneratedText, GeneratedText], height: int) -> "Table":
    """The last lines of both outputs, accepted drafts in green."""
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    grid, panels = Table.grid(expand=True), list[Panel]()
    for title, one in zip(("alone", "with a drafter"), texts, strict=True):
        grid.add_column(ratio=1)
        text = Text.assemble(
            *((piece, "green" if drafted else "") for piece, drafted in list(one.pieces))
        )
        tail = Text("\n", no_wrap=True).join(text.split("\n", allow_blank=True)[2 - height :])
        panels.append(Panel(tail, title=f"{title}: {len(one.ids)} tokens", height=height))
    grid.add_row(*panels)
    return grid


def result(hardware: str, alone: GeneratedText, pair: GeneratedText) -> Json:
    """What the two reports say. step_ms: of the verifier alone, as it was in this run."""
    counts = (
        "rounds",
        "drafted",
        "accepted",
        "acceptance_rate",
        "mean_acceptance_length",
        "tokens_per_second",
    )
    before, report = alone.report, pair.report
    rate, size = number_at(before, "tokens_per_second"), summed([pair], *SIZES)
    return {
        "schema_version": 1,
        "hardware": hardware,
        "stretched": hardware != "this",
        "step_ms": round(number_at(before, "verify_ms") / max(number_at(before, "rounds"), 1), 3),
        "text": pair.text,
        "same_text": alone.ids == pair.ids,
        "tokens": len(pair.ids),
        "tokens_per_second_alone": rate,
        "speedup": round(number_at(report, "tokens_per_second") / rate, 3) if rate else None,
        "bytes_per_token": round(size / len(pair.ids), 1),
    } | {name: report[name] for name in counts}
