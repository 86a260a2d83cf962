"""`specmesh demo`: the bundled target with drafts next to it alone, at a larger machine's pace.

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
from specmesh.terminal import DRAFT_COLOURS, redraws

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
    "by_source",
    "mean_acceptance_length",
    "tokens_per_second",
)

DEFAULT_PROMPT = "def read_config(path):"
REPEATING = """\
def get_name(self):
    return self.name

def get_value(self):
    return self.value

def get_path(self):
    return self.path

def get_name(self):
"""
"""A prompt that repeats itself."""

SECOND_TEXTS = {
    "remote": "with a drafter",
    "local": "with a draft model beside it",
    "suffix": "with drafts from repeated text",
    "prediction": "with a prediction",
    "none": "without drafts too",
}
"""The source of the second text's drafts, and its title."""

LEFT_OUT = 5
"""Each such line of the verifier's own text is missing in its prediction."""

Texts = tuple[GeneratedText, GeneratedText]
"""The text of the verifier alone, and that of the verifier with drafts."""


@click.command()
@click.argument("prompt", required=False)
@option(
    "--hardware",
    click.Choice([*STEPS_MS, "this"]),
    None,
    "Machine and size of the target whose step times are imitated; this: none.",
    "h100-70b",
)
@option(
    "--source",
    click.Choice([*SECOND_TEXTS]),
    None,
    "What drafts, beside text that repeats itself: a drafter (remote), a draft model in the"
    " verifier's process (local), nothing else (suffix), a prediction of the text, or nothing"
    " at all (none).",
    "remote",
)
@option("--max-tokens", click.IntRange(1, 900), "N", "Maximum number of tokens to generate.", 200)
@click.option(
    "--page/--no-page",
    default=None,
    help="Keep the pair running, with a page to chat on, until Ctrl-C"
    " (default: on a terminal, without --json).",
)
@json_option
def demo(
    prompt: str | None,
    hardware: str,
    source: str,
    max_tokens: int,
    page: bool | None,
    json: bool,
) -> None:
    """Continue PROMPT without drafts and, at the same time, with those of a drafter.

    Both verifiers use the tiny models that come with specmesh, on llama.cpp (extra `verifier`).
    They are real, and so are the daemons and the wire; only the steps are stretched to the times of
    large models. The drafts can have other sources, on one machine.

    The prediction is the verifier's own text, generated before, without each fifth line.

    On a terminal the pair then runs on, with a page on which to chat with it.
    """
    for ending in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, signal.default_int_handler)  # no daemon is left behind
    if not json:
        click.echo(explanation(hardware))
    body: Json = {
        "prompt": prompt or (REPEATING if source == "suffix" else DEFAULT_PROMPT),
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "rounds": True,
        "sources": True,
    }
    without_drafts = body | {"draft_n": 0}
    alone = GeneratedText()
    drafted = GeneratedText()
    on_terminal = sys.stdout.isatty() and not json
    has_page = on_terminal if page is None else page
    with daemons(hardware, source, has_page=has_page) as pair:
        if has_page:
            click.echo(f"Chat with the pair, in a browser: {pair.page}", err=json)
        if source == "none":
            body = without_drafts
        if source == "prediction":
            content = predicted(generate(pair.alone, without_drafts).text)
            body["prediction"] = {"type": "content", "content": content}
        # Who interrupts the demo waits for no more texts: clients that close end them.
        with ThreadPoolExecutor() as threads, pair.alone, pair.drafted:
            streams = [
                threads.submit(generate, pair.alone, without_drafts, alone),
                threads.submit(generate, pair.drafted, body, drafted),
            ]
            if on_terminal and redraws(sys.stdout):
                show((alone, drafted), streams, SECOND_TEXTS[source])
            for stream in streams:
                stream.result()
        found = result(hardware, source, alone, drafted)
        counts = {name: value for name, value in found.items() if name != "text"}
        print_result(found, columns([counts]), as_json=json)
        if has_page:
            with suppress(KeyboardInterrupt):  # the user's end of it
                click.echo(f"The pair runs on: {pair.page} (Ctrl-C ends it)", err=json)
                pair.wait()


def predicted(text: str) -> str:
    """Return a text without each fifth line: a prediction that is right in parts."""
    lines = text.splitlines(keepends=True)
    del lines[LEFT_OUT - 1 :: LEFT_OUT]
    return "".join(lines)


def explanation(hardware: str) -> str:
    real = "the models, the daemons, the wire and every token are real"
    if hardware == "this":
        return f"Nothing is stretched: {real}, and so are the times."
    steps = f"a step to {step_ms(hardware, 1):g} ms, with four drafts {step_ms(hardware, 5):.1f}"
    return f"Stretched to {hardware}: {steps}, a draft to {DRAFT_MS} ms;\n{real}."


@dataclass(frozen=True, slots=True)
class Pair:
    """The daemons of a demo, ready: a verifier alone, and one with drafts and with a page."""

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
def daemons(hardware: str, source: str, *, has_page: bool) -> Generator[Pair]:
    """Run a verifier alone and one with this source of drafts until the context ends.

    They are ready, and have new keys. Only the source `remote` has a drafter.
    """
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
        if source == "local":
            verifier += ["--draft-model", "bundled"]
        started = [
            _Started(folder / "alone", ["verifier", "--bind", f"tcp://{alone}", *options], ends),
            _Started(folder / "drafted", verifier, ends),
        ]
        if source == "remote":
            drafter = ["drafter", "--connect", f"tcp://{drafted}", *options]
            started.append(_Started(folder / "drafter", drafter, ends))
        pair = Pair(
            Client(started[0].socket), Client(started[1].socket), f"http://{served}/", started
        )
        deadline = time.monotonic() + DEMO_START_S
        while not _ready(pair, source):
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


def _ready(pair: Pair, source: str) -> bool:
    try:
        loaded_stats(pair.alone)
        return has_drafter(loaded_stats(pair.drafted)) == (source == "remote")
    except SpecmeshError:
        return False  # not yet


def show(texts: Texts, streams: list[Future[GeneratedText]], title: str) -> None:
    """Show both texts while they grow; `title` is that of the second."""
    from rich.console import Console
    from rich.live import Live

    console = Console()

    def renderable() -> "Table":
        return screen(texts, title, min(console.height - BORDERS, MOST_LINES))

    with Live(console=console, refresh_per_second=20, get_renderable=renderable):
        wait(streams)


def screen(texts: Texts, second: str, height: int) -> "Table":
    """Return the last lines of both texts, accepted drafts in the colour of their source.

    second: the title of the second text.
    """
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(expand=True)
    panels: list[Panel] = []
    for title, generated in zip(("alone", second), texts, strict=True):
        grid.add_column(ratio=1)
        text = Text()
        for piece, source in list(generated.pieces):  # another thread appends meanwhile
            text.append(piece, DRAFT_COLOURS.get(source, ""))
        lines = text.split("\n", allow_blank=True)
        tail = Text("\n", no_wrap=True).join(lines[2 - height :])
        count = counted(len(generated.ids), "token")
        panels.append(Panel(tail, title=f"{title}: {count}", height=height))
    grid.add_row(*panels)
    return grid


def result(hardware: str, source: str, alone: GeneratedText, drafted: GeneratedText) -> Json:
    """Return the comparison of both reports.

    step_ms: of one token, as the verifier alone has measured it in this run.
    """
    rate_alone = number_at(alone.report, "tokens_per_second")
    rate = number_at(drafted.report, "tokens_per_second")
    size = summed([drafted], *SIZES)
    found: Json = {
        "hardware": hardware,
        "source": source,
        "stretched": hardware != "this",
        "step_ms": round(number_at(alone.report, "one_token_step_ms"), 3),
        "text": drafted.text,
        "same_text": alone.ids == drafted.ids,
        "tokens": len(drafted.ids),
        "tokens_per_second_alone": rate_alone,
        "speedup": round(rate / rate_alone, 3) if rate_alone else None,
        "bytes_per_token": round(size / len(drafted.ids), 1),
    }
    return found | {name: drafted.report[name] for name in COUNTS}
