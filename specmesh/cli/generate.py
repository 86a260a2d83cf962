"""`specmesh generate` and `chat`: text is streamed to stdout; everything else goes to stderr."""

import json as json_module
import os
import secrets
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import click

from specmesh import client as daemon
from specmesh.cli.options import (
    SECONDS,
    aligned,
    draft_n_option,
    json_option,
    option,
    request_fields,
    request_options,
)
from specmesh.client import RECONNECT_TIMEOUT, Client, GeneratedText, answer
from specmesh.core.fields import Json, at, number_at, objects_at
from specmesh.errors import RequestError, SpecmeshError


@click.command()
@click.argument("prompt", required=False)
@request_options(temperature=0, max_tokens="128")
@click.option("--stop", multiple=True, metavar="TEXT", help="End before this text.")
@click.option("--ignore-eos", is_flag=True, help="Go on after the model's end-of-text token.")
@option("--n", click.IntRange(1, 8), "N", "Number of completions to generate in parallel.", 1)
@draft_n_option
@option(
    "--logprobs",
    click.IntRange(0, 20),
    "N",
    "Add the log probability of each token and of the N most likely ones (with --json).",
)
@click.option(
    "--show-drafts",
    is_flag=True,
    help="Mark accepted drafts: green, or [[ ]] where NO_COLOR is set.",
)
@json_option
@click.option(
    "--verbose", is_flag=True, help="Print counts, times and rates to stderr, named as in --json."
)
@option(
    "--reconnect-timeout",
    SECONDS,
    "SECONDS",
    "Time to wait for a daemon that went away.",
    RECONNECT_TIMEOUT,
)
@option(
    "--resume",
    str,
    "ID",
    "Instead of PROMPT: print an interrupted completion from its beginning, and finish it. The error message of the "
    "interruption shows the ID.",
)
def generate(
    prompt: str | None,
    n: int,
    draft_n: int | str,
    show_drafts: bool,
    json: bool,
    verbose: bool,
    reconnect_timeout: float,
    resume: str | None,
    socket_path: Path | None,
    **options: object,
) -> None:
    """Generate text from PROMPT ('-' reads it from standard input)."""
    for wrong, message in (
        ((prompt is None) == (resume is None), "give either PROMPT or --resume ID"),
        (options["logprobs"] is not None and not json, "--logprobs needs --json: give both"),
        (
            n > 1 and (resume is not None or show_drafts),
            "--n works without --resume and --show-drafts",
        ),
        (resume is not None and options["model"], "--resume keeps its model: leave out --model"),
    ):
        if wrong:
            raise click.UsageError(message)
    body: Json = {
        "seed": secrets.randbits(32),
        "draft_n": draft_n,
        "rounds": show_drafts,
        **(
            {"prompt": read_stdin() if prompt == "-" else prompt}
            if resume is None
            else {"resume": {"id": resume}}
        ),
        **request_fields(options),
    }
    if n > 1:
        body["n"] = n
    texts = [GeneratedText((int(number_at(body, "seed")) + number) % 2**32) for number in range(n)]
    shows = n == 1 and not json
    try:
        with closing(answer(daemon.Client(socket_path), body, reconnect_timeout, say)) as chunks:
            for chunk in chunks:
                [choice] = objects_at(chunk, "choices")
                drafted, own = texts[int(number_at(choice, "index"))].take(chunk)
                if shows:
                    print(end=_marked(drafted) + own, flush=True)
    finally:  # whatever has come
        if shows and (texts[0].text or texts[0].finish_reason):
            print(flush=True)
        if json:
            choices = [_as_json(text) for text in texts]
            click.echo(
                json_module.dumps(
                    choices[0] if n == 1 else {"schema_version": 1, "choices": choices}
                )
            )
        for number, text in enumerate(texts if n > 1 and not json else (), 1):
            say(f"text {number} of {n}, seed {text.seed}")
            click.echo(text.text)
        for text in texts if verbose else ():
            click.echo("\n".join(aligned(text.report.items())), err=True)


def _as_json(text: GeneratedText) -> Json:
    return {
        "schema_version": 1,
        "text": text.text,
        "token_ids": text.ids,
        "prompt_token_ids": text.prompt_ids,
        "finish_reason": text.finish_reason or "interrupted",
        "generated_tokens": len(text.ids),
        "seed": text.seed,
        "logprobs": text.logprobs or None,
    } | text.report


def _marked(drafted: str) -> str:
    opening, end = ("[[", "]]") if os.environ.get("NO_COLOR") else ("\x1b[32m", "\x1b[39m")  # green
    return f"{opening}{drafted}{end}" if drafted else ""


def say(what: str) -> None:
    click.echo(f"specmesh: {what}", err=True)


def read_stdin() -> str:
    try:
        return sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise RequestError(
            f"standard input is not UTF-8 ({error}): convert it first, for example with iconv"
        ) from None


# --- chat

HELP = "/clear forgets the conversation, /bye or Ctrl-D ends, Ctrl-C stops an answer"


@click.command()
@option("--system", str, "TEXT", "System prompt of the conversation.")
@request_options(temperature=0.7, max_tokens="as the context allows")
def chat(system: str | None, socket_path: Path | None, **options: object) -> None:
    """Talk to the target model; what is piped in is one message."""
    Conversation(daemon.Client(socket_path), request_fields(options), system).run()


class Conversation:
    def __init__(self, client: Client, options: Json, system: str | None = None) -> None:
        self._client, self._options = client, options
        self._first: list[Json] = [{"role": "system", "content": system}] if system else []
        self._messages = self._first

    def run(self) -> None:
        """Talk until the user ends it; without a terminal, the whole standard input is one message. In a terminal the
        daemon's errors are printed, else raised."""
        if not sys.stdin.isatty():
            text = read_stdin().removesuffix("\n")
            if not text:
                raise RequestError("nothing was said: standard input is empty")
            self._ask(text)
            return
        with suppress(ImportError):
            import readline  # noqa: F401  # pyright: ignore[reportUnusedImport]  # input() then edits lines
        print(HELP, file=sys.stderr)
        for line in _lines():
            match line.strip():
                case "":
                    continue
                case "/bye":
                    return
                case "/clear":
                    self._messages = self._first
                case "/help":
                    print(HELP, file=sys.stderr)
                case _:
                    try:
                        self._ask(line)
                    except SpecmeshError as error:
                        say(str(error))

    def _ask(self, text: str) -> None:
        """Print the answer as it comes. The beginning of an interrupted one is kept, of what is refused nothing."""
        messages: list[Json] = [*self._messages, {"role": "user", "content": text}]
        answered, body = "", {"messages": messages} | self._options
        try:
            with closing(answer(self._client, body, RECONNECT_TIMEOUT, say)) as chunks:
                for chunk in chunks:
                    part = str(at(objects_at(chunk, "choices")[0], "delta.content") or "")
                    answered += part
                    print(end=part, flush=True)
        except KeyboardInterrupt:
            if not sys.stdin.isatty():
                raise
        print(flush=True)
        self._messages = [*messages, Json(role="assistant", content=answered)]


def _lines() -> Iterator[str]:
    """Yield what is typed, line by line; Ctrl-C drops a line."""
    while True:
        try:
            yield input(">>> ")
        except KeyboardInterrupt:
            print(file=sys.stderr)
        except EOFError:
            print(file=sys.stderr)
            return
