"""`specmesh demo`: the bundled pair next to its target alone, at a larger machine's pace.

Then a page on which to chat with the pair.
"""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Never

import click

from specmesh.bench.texts import SIZES, generate, has_drafter, loaded_stats, summed
from specmesh.cli.options import columns, counted, json_option, option, print_result
from specmesh.client import Client, GeneratedText
from specmesh.core.fields import Json, number_at
from specmesh.errors import ConfigError, EngineError, SpecmeshError
from specmesh.machines import DRAFT_MS, STEPS_MS, step_ms
from specmesh.security.keys import KeyFolder
from specmesh.terminal import redraws

if TYPE_CHECKING:
    from rich.table import Table

DEMO_START_S = 120.0
POLL_S = 0.1
MOST_LINES = 24
BORDERS = 4  # lines of the screen that a panel cannot have
DAEMON = "--model bundled --engine llama --gpu-layers 0 --threads 1 --drain 0 --log-level warning"
TEMPLATE = "{% for message in messages %}{{ message.content }}\n{% endfor %}"
"""The chat template of the pair, which was made to continue code and has none of its own."""

COUNTS = (
    "rounds",
    "drafted",
    "accepted",
    "acceptance_rate",
    "mean_acceptance_length",
    "tokens_per_second",
)

Texts = tuple[GeneratedText, GeneratedText]
"""The text of the verifier alone, and that of the verifier with a drafter."""


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
@click.option(
    "--page/--no-page",
    default=None,
    help="Keep the pair running, with a page to chat on, until Ctrl-C"
    " (default: on a terminal, without --json).",
)
@json_option
def demo(prompt: str, hardware: str, max_tokens: int, page: bool | None, json: bool) -> None:
    """Continue PROMPT with a verifier alone and, at the same time, with a verifier and a drafter.

    Both use the tiny models that come with specmesh, on llama.cpp (extra `verifier`). They are
    real, and so are the three daemons and the wire; only the steps are stretched to the times of
    large models.

    On a terminal the pair then runs on, with a page on which to chat with it.
    """
    for ending in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, signal.default_int_handler)  # no daemon is left behind
    if not json:
        click.echo(explanation(hardware))
    body: Json = {
        "prompt": prompt,
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "rounds": True,
    }
    alone = GeneratedText()
    drafted = GeneratedText()
    on_terminal = sys.stdout.isatty() and not json
    has_page = on_terminal if page is None else page
    with daemons(hardware, has_page=has_page) as pair:
        if has_page:
            click.echo(f"Chat with the pair, in a browser: {pair.page}", err=json)
        with ThreadPoolExecutor() as threads:
            streams = [
                threads.submit(generate, pair.alone, body, alone),
                threads.submit(generate, pair.drafted, body, drafted),
            ]
            if on_terminal and redraws(sys.stdout):
                show((alone, drafted), streams)
            for stream in streams:
                stream.result()
        found = result(hardware, alone, drafted)
        counts = {name: value for name, value in found.items() if name != "text"}
        print_result(found, columns([counts]), as_json=json)
        if has_page:
            with suppress(KeyboardInterrupt):  # the user's end of it
                click.echo(f"The pair runs on: {pair.page} (Ctrl-C ends it)", err=json)
                pair.wait()


def explanation(hardware: str) -> str:
    real = "the models, the daemons, the wire and every token are real"
    if hardware == "this":
        return f"Nothing is stretched: {real}, and so are the times."
    steps = f"a step to {step_ms(hardware, 1):g} ms, with four drafts {step_ms(hardware, 5):.1f}"
    return f"Stretched to {hardware}: {steps}, a draft to {DRAFT_MS} ms;\n{real}."


@dataclass(frozen=True, slots=True)
class Pair:
    """The daemons of a demo, ready: a verifier alone, and one with a drafter and with a page."""

    alone: Client
    drafted: Client
    page: str
    """Its address, if it is served."""

    started: "Sequence[_Started]"

    def wait(self) -> Never:
        """Raise the error of a daemon as soon as it ends; a signal ends the waiting."""
        while True:
            for daemon in self.started:
                if daemon.ended():
                    raise daemon.failure()
            time.sleep(POLL_S)


@contextmanager
def daemons(hardware: str, *, has_page: bool) -> Generator[Pair]:
    """Run a verifier alone and one with a drafter, ready, with new keys, until the context ends."""
    with tempfile.TemporaryDirectory(prefix="specmesh-") as name, ExitStack() as ends:
        folder = Path(name)
        options = [*DAEMON.split(), "--keys", str(folder / "keys"), "--config", os.devnull]
        if hardware != "this":
            options += ["--stretch", hardware]
        KeyFolder(folder / "keys").new()
        alone, drafted, served = _free_addresses(3)
        page_options: list[str] = []
        if has_page:
            template = folder / "chat.jinja"
            template.write_text(TEMPLATE)
            page_options = ["--http", served, "--chat-template", str(template)]
        verifier = ["verifier", "--bind", f"tcp://{drafted}", *options, *page_options]
        started = [
            _Started(folder / "alone", ["verifier", "--bind", f"tcp://{alone}", *options], ends),
            _Started(folder / "drafted", verifier, ends),
            _Started(
                folder / "drafter", ["drafter", "--connect", f"tcp://{drafted}", *options], ends
            ),
        ]
        pair = Pair(
            Client(started[0].socket), Client(started[1].socket), f"http://{served}/", started
        )
        deadline = time.monotonic() + DEMO_START_S
        while not _ready(pair.alone, pair.drafted):
            for daemon in started:
                if daemon.ended() or time.monotonic() > deadline:
                    raise daemon.failure()
            time.sleep(POLL_S)
        yield pair


def _free_addresses(count: int) -> list[str]:
    """Return addresses of this machine, each with a port that nobody listens on."""
    addresses: list[str] = []
    with ExitStack() as listening:
        for _ in range(count):
            listener = listening.enter_context(socket.create_server(("127.0.0.1", 0)))
            host, port = listener.getsockname()
            addresses.append(f"{host}:{port}")
    return addresses


class _Started:
    """A daemon in a process and a session of its own: Ctrl-C reaches it through us only."""

    def __init__(self, path: Path, arguments: list[str], ends: ExitStack) -> None:
        self.socket = path.with_suffix(".sock")
        self._log_path = path.with_suffix(".log")
        log = ends.enter_context(self._log_path.open("wb"))
        specmesh = [sys.executable, "-m", "specmesh"]
        self._process = subprocess.Popen(  # noqa: S603  # our own program
            [*specmesh, *arguments, "--socket", str(self.socket)],
            stdin=subprocess.DEVNULL,
            stderr=log,
            env=_environment(),
            start_new_session=True,
        )
        ends.callback(self._process.wait)
        ends.callback(self._process.terminate)

    def ended(self) -> bool:
        return self._process.poll() is not None

    def failure(self) -> SpecmeshError:
        """Return the error of a daemon that does not run, with the last line of its log."""
        reason = "a daemon of the demo does not run"
        lines = self._log_path.read_text(errors="replace").strip().splitlines()
        if lines:
            last = lines[-1].removeprefix("specmesh: ")
            reason = f"{reason}: {last}"
        if self._process.poll() == ConfigError.exit_code:
            return ConfigError(reason)
        return EngineError(reason)


def _environment() -> dict[str, str]:
    """Return this process's environment without our variables, which are the user's settings."""
    variables = os.environ.items()
    return {name: value for name, value in variables if not name.startswith("SPECMESH_")}


def _ready(alone: Client, drafted: Client) -> bool:
    try:
        return not has_drafter(loaded_stats(alone)) and has_drafter(loaded_stats(drafted))
    except SpecmeshError:
        return False  # not yet


def show(texts: Texts, streams: list[Future[GeneratedText]]) -> None:
    """Show both texts while they grow."""
    from rich.console import Console
    from rich.live import Live

    console = Console()

    def renderable() -> "Table":
        return screen(texts, min(console.height - BORDERS, MOST_LINES))

    with Live(console=console, refresh_per_second=20, get_renderable=renderable):
        wait(streams)


def screen(texts: Texts, height: int) -> "Table":
    """Return the last lines of both texts, accepted drafts in green."""
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(expand=True)
    panels: list[Panel] = []
    for title, generated in zip(("alone", "with a drafter"), texts, strict=True):
        grid.add_column(ratio=1)
        text = Text()
        for piece, drafted in list(generated.pieces):
            text.append(piece, "green" if drafted else "")
        lines = text.split("\n", allow_blank=True)
        tail = Text("\n", no_wrap=True).join(lines[2 - height :])
        count = counted(len(generated.ids), "token")
        panels.append(Panel(tail, title=f"{title}: {count}", height=height))
    grid.add_row(*panels)
    return grid


def result(hardware: str, alone: GeneratedText, drafted: GeneratedText) -> Json:
    """Return the comparison of both reports. step_ms: of the verifier alone, in this run."""
    rate_alone = number_at(alone.report, "tokens_per_second")
    rate = number_at(drafted.report, "tokens_per_second")
    steps = max(number_at(alone.report, "rounds"), 1)
    size = summed([drafted], *SIZES)
    found: Json = {
        "hardware": hardware,
        "stretched": hardware != "this",
        "step_ms": round(number_at(alone.report, "verify_ms") / steps, 3),
        "text": drafted.text,
        "same_text": alone.ids == drafted.ids,
        "tokens": len(drafted.ids),
        "tokens_per_second_alone": rate_alone,
        "speedup": round(rate / rate_alone, 3) if rate_alone else None,
        "bytes_per_token": round(size / len(drafted.ids), 1),
    }
    return found | {name: drafted.report[name] for name in COUNTS}
