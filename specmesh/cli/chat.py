"""`specmesh chat`: a conversation in the terminal. Answers go to stdout, everything else to stderr."""

import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path

import click

from specmesh import client as daemon
from specmesh.cli.generate import read_stdin, say, say_waiting
from specmesh.cli.options import COUNT, request_options, without_none
from specmesh.client import RECONNECT_TIMEOUT, Client, Json, answer
from specmesh.errors import RequestError, SpecmeshError

HELP = "/clear forgets the conversation, /bye or Ctrl-D ends, Ctrl-C stops an answer"


@dataclass(slots=True)
class Conversation:
    """The conversation so far; raw: a text that the model continues, without a chat template."""

    system: str | None = None
    raw: bool = False
    messages: list[Json] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.messages = [{"role": "system", "content": self.system}] if self.system else []

    def said(self, text: str) -> Json:
        """Add the user's message; return the fields of the request."""
        self.messages.append({"role": "user", "content": text})
        if self.raw:
            return {"prompt": "".join(str(message["content"]) for message in self.messages)}
        return {"messages": self.messages}


@click.command()
@click.option("--system", metavar="TEXT", help="System prompt of the conversation.")
@click.option("--raw", is_flag=True, help="Use no chat template: the model continues the text itself.")
@click.option("--max-tokens", type=COUNT, metavar="N", help="Maximum number of tokens per answer.")
@request_options(temperature=0.7)
def chat(
    system: str | None,
    raw: bool,
    max_tokens: int | None,
    sampling: Json,
    more: Json,
    socket_path: Path | None,
) -> None:
    """Talk to the target model; what is piped in is one message."""
    if system and raw:
        raise click.UsageError("--system needs a chat template, and --raw uses none")
    options = sampling | more | without_none({"max_tokens": max_tokens})
    run(daemon.Client(socket_path, waits=say_waiting), Conversation(system, raw), options)


def run(client: Client, conversation: Conversation, options: Json) -> None:
    """Talk until the user ends it; without a terminal, the whole standard input is one message.

    In a terminal the daemon's errors are printed, else raised.
    """
    if not sys.stdin.isatty():
        text = read_stdin().removesuffix("\n")
        if not text:
            raise RequestError("nothing was said: standard input is empty")
        _answer(client, conversation, conversation.said(text) | options)
        return
    with suppress(ImportError):
        import readline  # noqa: F401  (input() then edits lines and remembers them)
    print(HELP, file=sys.stderr)
    for line in _lines():
        match line.strip():
            case "":
                continue
            case "/bye" | "/exit" | "/quit":
                return
            case "/clear":
                conversation.clear()
            case "/?" | "/help":
                print(HELP, file=sys.stderr)
            case _:
                before = list(conversation.messages)
                try:
                    _answer(client, conversation, conversation.said(line) | options)
                except SpecmeshError as error:  # what was refused is no part of the conversation
                    conversation.messages = before
                    say(str(error))


def _lines() -> Iterator[str]:
    """Yield what is typed, line by line; Ctrl-C drops a line."""
    while True:
        try:
            if not sys.stdout.isatty():
                print(">>> ", end="", file=sys.stderr, flush=True)
            yield input(">>> " if sys.stdout.isatty() else "")
        except KeyboardInterrupt:
            print(file=sys.stderr)
        except EOFError:
            print(file=sys.stderr)
            return


def _answer(client: Client, conversation: Conversation, body: Json) -> None:
    """Print an answer as it comes; the conversation keeps the beginning of an interrupted one."""
    text = ""
    try:
        with closing(answer(client, body, RECONNECT_TIMEOUT)) as chunks:
            for chunk in chunks:
                part = _text(chunk)
                text += part
                sys.stdout.write(part)
                sys.stdout.flush()
    except KeyboardInterrupt:
        if not sys.stdin.isatty():
            raise
    print(flush=True)
    conversation.messages.append({"role": "assistant", "content": text})


def _text(chunk: Json) -> str:
    choice: Json = chunk["choices"][0]  # type: ignore[index]
    delta = choice.get("delta")
    return str(delta.get("content") or "") if isinstance(delta, dict) else str(choice["text"])
