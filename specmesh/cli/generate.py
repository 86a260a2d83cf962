"""`specmesh generate` and `chat`. Text is streamed to stdout; messages and counts go to stderr."""

import json as json_module
import secrets
import sys
from collections.abc import Iterator
from contextlib import closing, suppress

import click

from specmesh.cli.options import (
    FILE,
    SECONDS,
    aligned,
    draft_n_option,
    draft_sources_option,
    flag,
    flattened,
    json_option,
    option,
    request_fields,
    request_options,
)
from specmesh.cli.waiting import answered
from specmesh.client import RECONNECT_TIMEOUT, Client, GeneratedText
from specmesh.core.fields import Json, at, number_at, objects_at
from specmesh.errors import RequestError, SpecmeshError
from specmesh.terminal import has_styles, is_plain, underlined_draft


@click.command()
@click.argument("prompt", required=False)
@request_options(temperature=0, max_tokens="128")
@click.option("--stop", multiple=True, metavar="TEXT", help="End before this text.")
@flag("--ignore-eos", "Go on after the model's end-of-text token.")
@option("--n", click.IntRange(1, 8), "N", "Number of completions to generate in parallel.", 1)
@draft_n_option
@draft_sources_option
@option(
    "--prediction-file",
    FILE,
    "FILE",
    "Draft from this text, which the output is expected to be close to, such as a file to edit.",
    name="prediction",
)
@option(
    "--logprobs",
    click.IntRange(0, 20),
    "N",
    "Add the log probability of each token and of the N most likely ones (with --json).",
)
@flag(
    "--show-drafts",
    "Underline accepted drafts in the colour of their source, or mark them by [[ ]].",
)
@json_option
@flag("--verbose", "Print counts, times and rates to stderr, named as in --json.")
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
    "Instead of PROMPT: print an interrupted completion from its beginning, and finish it. "
    "The error message of the interruption shows the ID.",
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
    client: Client,
    **options: object,
) -> None:
    """Generate text from PROMPT ('-' reads it from standard input)."""
    if (prompt is None) == (resume is None):
        raise click.UsageError("give either PROMPT or --resume ID")
    if options["logprobs"] is not None and not json:
        raise click.UsageError("--logprobs needs --json: give both")
    if n > 1 and (resume is not None or show_drafts):
        raise click.UsageError("--n works without --resume and --show-drafts")
    if resume is not None and options["model"]:
        raise click.UsageError("--resume keeps its model: leave out --model")
    if resume is not None and options["prediction"]:
        raise click.UsageError("--resume keeps its prediction: leave out --prediction-file")
    body: Json = {
        "seed": secrets.randbits(32),
        "draft_n": draft_n,
        "rounds": show_drafts,
        "sources": show_drafts,
        **request_fields(options),
    }
    if resume is not None:
        body["resume"] = {"id": resume}
    elif prompt == "-":
        body["prompt"] = read_stdin()
    else:
        body["prompt"] = prompt
    if n > 1:
        body["n"] = n
    seed = int(number_at(body, "seed"))
    texts = [GeneratedText(seed=(seed + number) % 2**32) for number in range(n)]
    streamed = n == 1 and not json
    try:
        with closing(answered(client, body, reconnect_timeout)) as chunks:
            for chunk in chunks:
                [choice] = objects_at(chunk, "choices")
                text = texts[int(number_at(choice, "index"))]
                drafted, own = text.take(chunk)
                if streamed:
                    _, source = text.pieces[-2]
                    print(end=_marked(drafted, source) + own, flush=True)
    finally:  # an interrupted text is shown, too
        if json:
            _print_json(texts)
        elif n > 1:
            _print_all(texts)
        elif texts[0].text or texts[0].finish_reason:
            print(flush=True)
        if verbose:
            for text in texts:
                click.echo("\n".join(aligned(flattened(text.report))), err=True)


def _print_json(texts: list[GeneratedText]) -> None:
    choices = list(map(_as_json, texts))
    result = choices[0]
    if len(choices) > 1:
        result = {"schema_version": 1, "choices": choices}
    click.echo(json_module.dumps(result))


def _print_all(texts: list[GeneratedText]) -> None:
    for number, text in enumerate(texts, 1):
        say(f"text {number} of {len(texts)}, seed {text.seed}")
        click.echo(text.text)


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


def _marked(drafted: str, source: str) -> str:
    if not drafted:
        return ""
    if not has_styles(sys.stdout):
        return f"[[{drafted}]]"
    return underlined_draft(drafted, source)


def say(message: str) -> None:
    click.echo(f"specmesh: {message}", err=True)


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
def chat(system: str | None, client: Client, **options: object) -> None:
    """Talk to the target model; piped input is one message."""
    Conversation(client, request_fields(options), system).run()


class Conversation:
    """A conversation with the target model, all of whose messages go into each request."""

    def __init__(self, client: Client, options: Json, system: str | None = None) -> None:
        self._client = client
        self._options = options
        self._first: list[Json] = []
        if system:
            self._first.append({"role": "system", "content": system})
        self._messages = self._first

    def run(self) -> None:
        """Talk until the user ends it, and print the daemon's errors.

        Without a terminal the whole standard input is one message, and errors are raised.
        """
        if not sys.stdin.isatty():
            text = read_stdin().removesuffix("\n")
            if not text:
                raise RequestError("there is no message: standard input is empty")
            self._ask(text)
            return
        _edit_lines()
        print(HELP, file=sys.stderr)
        for line in _lines():
            command = line.strip()
            if command == "/bye":
                return
            if command == "/clear":
                self._messages = self._first
            elif command == "/help":
                print(HELP, file=sys.stderr)
            elif command:
                try:
                    self._ask(line)
                except SpecmeshError as error:
                    say(str(error))

    def _ask(self, text: str) -> None:
        """Print the answer as it comes.

        The beginning of an interrupted answer is kept, a refused message is not.
        """
        messages: list[Json] = [*self._messages, {"role": "user", "content": text}]
        body = {"messages": messages} | self._options
        text_so_far = ""
        try:
            with closing(answered(self._client, body, RECONNECT_TIMEOUT)) as chunks:
                for chunk in chunks:
                    part = str(at(objects_at(chunk, "choices")[0], "delta.content") or "")
                    text_so_far += part
                    print(end=part, flush=True)
        except KeyboardInterrupt:
            if not sys.stdin.isatty():
                raise
        print(flush=True)
        self._messages = [*messages, Json(role="assistant", content=text_so_far)]


def _edit_lines() -> None:
    """Let `input` edit lines, where Python can; a plain terminal gets no control sequence of it."""
    with suppress(ImportError):
        import readline

        if is_plain():
            readline.parse_and_bind("set enable-bracketed-paste off")


def _lines() -> Iterator[str]:
    """Yield typed lines; Ctrl-C drops a line."""
    while True:
        try:
            yield input(">>> ")
        except KeyboardInterrupt:
            print(file=sys.stderr)
        except EOFError:
            print(file=sys.stderr)
            return
