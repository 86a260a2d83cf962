"""`specmesh generate` and `chat`: text is streamed to stdout; everything else goes to stderr."""

import json as json_module
import os
import secrets
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from specmesh import client as daemon
from specmesh.cli.options import (
    COUNT,
    SECONDS,
    draft_n_option,
    given,
    json_option,
    number,
    request_options,
    without_none,
)
from specmesh.client import RECONNECT_TIMEOUT, Client, Json, answer
from specmesh.errors import RequestError, SpecmeshError

SEEDS = 2**32
_GREEN, _PLAIN = "\x1b[32m", "\x1b[39m"


@dataclass(frozen=True, slots=True)
class Output:
    as_json: bool
    verbose: bool
    show_drafts: bool


@dataclass(slots=True)
class _Text:
    """A completion so far. pending: what of it is to be printed, drafts marked."""

    seed: object
    text: str = ""
    pending: str = ""
    ids: list[int] = field(default_factory=list)
    rounds: int = 0
    finish_reason: str | None = None
    report: Json = field(default_factory=dict)
    prompt_ids: object = ()
    logprobs: list[object] = field(default_factory=list)

    def take(self, chunk: dict[str, Any], output: Output) -> None:
        [choice], told = chunk["choices"], chunk["specmesh"]
        self.text += choice["text"]
        self.pending += _marked(choice["text"], told.get("accepted_text", "") if output.show_drafts else "")
        self.finish_reason = choice["finish_reason"] or self.finish_reason
        if "report" in told:
            self.report, self.prompt_ids = told["report"], told.get("prompt_token_ids", ())
        if "request" in told:
            self.seed = told["request"]["seed"]
        self.logprobs += told.get("logprobs") or []
        if "token_ids" in told:
            self.ids += told["token_ids"]
            self.rounds += 1
            if output.verbose and "drafts" in told:
                print(_round_line(self.rounds, told), file=sys.stderr)

    def show(self) -> None:
        print(end=self.pending, flush=True)
        self.pending = ""

    def end(self, output: Output) -> None:
        self.show()
        if self.text or self.finish_reason is not None:
            print(flush=True)
        if output.verbose and self.report:
            print("\n".join(_summary(self.report)), file=sys.stderr)

    def as_json(self) -> Json:
        return {
            "schema_version": 1,
            "text": self.text,
            "token_ids": self.ids,
            "prompt_token_ids": self.prompt_ids,
            "finish_reason": self.finish_reason or "interrupted",
            "generated_tokens": len(self.ids),
            "seed": self.seed,
            "logprobs": self.logprobs or None,
        } | self.report


@click.command()
@click.argument("prompt", required=False)
@number("--max-tokens", COUNT, 128, "N", "Maximum number of tokens to generate.")
@request_options(temperature=0.0)
@click.option("--stop", multiple=True, metavar="TEXT", help="End before this text.")
@click.option("--ignore-eos", is_flag=True, help="Go on after the model's end-of-text token.")
@number("--n", click.IntRange(1, 8), 1, "N", "Number of completions to generate in parallel.")
@draft_n_option
@click.option("--no-draft", is_flag=True, help="Generate with the verifier alone.")
@click.option(
    "--logprobs",
    type=click.IntRange(0, 20),
    metavar="N",
    help="Add the log probability of each token and of the N most likely ones (with --json).",
)
@click.option("--show-drafts", is_flag=True, help="Mark accepted drafts: green, or [[ ]] where NO_COLOR is set.")
@json_option
@click.option("--verbose", is_flag=True, help="Print a line per round and a summary to stderr.")
@number("--reconnect-timeout", SECONDS, RECONNECT_TIMEOUT, "SECONDS", "Time to wait for a daemon that went away.")
@click.option(
    "--resume",
    metavar="ID",
    help="Instead of PROMPT: print an interrupted completion from its beginning, and finish it. The error message of "
    "the interruption shows the ID.",
)
def generate(
    prompt: str | None,
    max_tokens: int,
    sampling: Json,
    more: Json,
    stop: tuple[str, ...],
    ignore_eos: bool,
    n: int,
    draft_n: int | str,
    no_draft: bool,
    logprobs: int | None,
    show_drafts: bool,
    json: bool,
    verbose: bool,
    reconnect_timeout: float,
    resume: str | None,
    socket_path: Path | None,
) -> None:
    """Generate text from PROMPT ('-' reads it from standard input)."""
    for wrong, message in (
        ((prompt is None) == (resume is None), "give either PROMPT or --resume ID"),
        (logprobs is not None and not json, "--logprobs needs --json: give both"),
        (n > 1 and (resume is not None or show_drafts), "--n works without --resume and --show-drafts"),
        (resume is not None and "model" in more, "--resume keeps its model: leave out --model"),
    ):
        if wrong:
            raise click.UsageError(message)
    body: dict[str, Any] = {
        "seed": secrets.randbits(32),
        "draft_n": 0 if no_draft else draft_n,
        "stop": list(stop),
        "ignore_eos": ignore_eos,
        "rounds": (verbose or show_drafts) and n == 1,
        **({"prompt": read_stdin() if prompt == "-" else prompt} if resume is None else {"resume": {"id": resume}}),
        **(given({"max_tokens": max_tokens}) | without_none({"logprobs": logprobs}) | sampling | more),
    }
    client = daemon.Client(socket_path, waits=say_waiting)
    _run(client, body, Output(json, verbose, show_drafts), n, reconnect_timeout)


def say(what: str) -> None:
    click.echo(f"specmesh: {what}", err=True)


def say_waiting(why: str) -> None:
    say(f"{why}: waiting")


def read_stdin() -> str:
    raw = sys.stdin.buffer.read()
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise RequestError(
            f"standard input is not UTF-8: byte {error.start + 1}, in line {line}, is 0x{raw[error.start]:02x}; "
            "convert it first, for example with iconv -f ISO-8859-1 -t UTF-8"
        ) from None


def _run(client: Client, body: dict[str, Any], output: Output, count: int, timeout: float) -> None:
    """Generate `count` completions in parallel, with consecutive seeds, and print them in order; raise the daemon's
    error after what has come. timeout: seconds to wait for a daemon that went away."""
    if count == 1:
        chunks = answer(client, body, timeout, say)
    else:  # which cannot be resumed: a drafter waits for its verifier
        chunks = client.complete(body | {"n": count, "reconnect_timeout": timeout})
    texts = [_Text((body["seed"] + number) % SEEDS) for number in range(count)]
    try:
        with closing(chunks):
            for chunk in chunks:
                text = texts[chunk["choices"][0].get("index", 0)]  # type: ignore[index]
                text.take(chunk, output)
                if count == 1 and not output.as_json:
                    text.show()
    finally:
        if output.as_json:
            told = [text.as_json() for text in texts]
            print(json_module.dumps(told[0] if count == 1 else {"schema_version": 1, "choices": told}))
        else:
            for number, text in enumerate(texts, 1):
                if count > 1:
                    say(f"text {number} of {count}, seed {text.seed}")
                text.end(output)


def _marked(text: str, drafted: str) -> str:
    if not drafted:
        return text
    own = text[len(drafted) :]
    return f"[[{drafted}]]{own}" if os.environ.get("NO_COLOR") else f"{_GREEN}{drafted}{_PLAIN}{own}"


def _round_line(number: int, told: dict[str, Any]) -> str:
    drafts, pieces, accepted = told["drafts"], told["pieces"], told["accepted"]
    own = repr(pieces[accepted]) if accepted < len(pieces) else "(end)"
    if not drafts:
        return f"round {number}: no drafts, verifier {own}"
    drafted = f"round {number}: drafted {told['drafted_text']!r}"
    if accepted >= len(pieces):
        return f"{drafted}, the text ends"
    kind = "bonus" if accepted == len(drafts) else "correction"
    return f"{drafted}, accepted {accepted}/{len(drafts)}, {kind} {own}"


def _summary(report: Json) -> list[str]:
    numbers = {key: value for key, value in report.items() if isinstance(value, int | float)}
    r = defaultdict[str, float](float, numbers)
    rounds = max(r["rounds"], 1)
    drafter = report.get("drafter") or "none"
    lossy = "" if report.get("exact", True) else ": lossy, the text is not as likely as of the verifier alone"
    cached = f" ({r['cached_tokens']:g} in memory)" if r["cached_tokens"] else ""
    rows = {
        "tokens": f"{r['prompt_tokens']:g} prompt{cached} + {r['generated_tokens']:g} generated = "
        f"{r['prompt_tokens'] + r['generated_tokens']:g}",
        "rounds": f"{r['rounds']:g}, drafted {r['drafted']:g}, accepted {r['accepted']:g}",
        "acceptance": f"rate {r['acceptance_rate']:.3f}, mean length {r['mean_acceptance_length']:.2f} "
        "(the verifier's own token included)",
        "strategy": f"{report.get('strategy', 'deterministic')}{lossy}",
        "time": f"{r['time_s']:.3f} s, first token after {r['time_to_first_token_s']:.3f} s, "
        f"{r['tokens_per_second']:.1f} tokens/s",
        "verify": f"{r['verify_ms']:.1f} ms, waiting for drafts {r['wait_ms']:.1f} ms",
        "draft": f"{drafter}"
        + (f", {r['draft_ms']:.1f} ms, network {r['network_ms']:.1f} ms" if "draft_ms" in numbers else ""),
        "wire": f"{r['bytes_sent'] / rounds:.0f} bytes sent and {r['bytes_received'] / rounds:.0f} received per round",
        "speed-up": f"{r['speedup_vs_one_token_step']:.2f}x over the measured one-token step "
        f"({r['one_token_step_ms']:.2f} ms)",
    }
    return [f"{name:<13}{value}" for name, value in rows.items()]


# --- chat

HELP = "/clear forgets the conversation, /bye or Ctrl-D ends, Ctrl-C stops an answer"


@click.command()
@click.option("--system", metavar="TEXT", help="System prompt of the conversation.")
@click.option("--raw", is_flag=True, help="Use no chat template: the model continues the text itself.")
@click.option("--max-tokens", type=COUNT, metavar="N", help="Maximum number of tokens per answer.")
@request_options(temperature=0.7)
def chat(
    system: str | None, raw: bool, max_tokens: int | None, sampling: Json, more: Json, socket_path: Path | None
) -> None:
    """Talk to the target model; what is piped in is one message."""
    if system and raw:
        raise click.UsageError("--system needs a chat template, and --raw uses none")
    options = sampling | more | without_none({"max_tokens": max_tokens})
    Conversation(daemon.Client(socket_path, waits=say_waiting), options, system, raw).run()


class Conversation:
    """A conversation in the terminal; raw: a text that the model continues, without a chat template."""

    def __init__(self, client: Client, options: Json, system: str | None = None, raw: bool = False) -> None:
        self._client, self._options, self._raw = client, options, raw
        self._first: list[Json] = [{"role": "system", "content": system}] if system else []
        self._messages = self._first

    def run(self) -> None:
        """Talk until the user ends it; without a terminal, the whole standard input is one message.

        In a terminal the daemon's errors are printed, else raised.
        """
        if not sys.stdin.isatty():
            text = read_stdin().removesuffix("\n")
            if not text:
                raise RequestError("nothing was said: standard input is empty")
            self._ask(text)
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
                    self._messages = self._first
                case "/?" | "/help":
                    print(HELP, file=sys.stderr)
                case _:
                    try:
                        self._ask(line)
                    except SpecmeshError as error:
                        say(str(error))

    def _ask(self, text: str) -> None:
        """Print the answer as it comes. The beginning of an interrupted one is kept, of what is refused nothing."""
        messages: list[Json] = [*self._messages, {"role": "user", "content": text}]
        body: Json = {"messages": messages}
        if self._raw:
            body = {"prompt": "".join(str(message["content"]) for message in messages)}
        answered = ""
        try:
            with closing(answer(self._client, body | self._options, RECONNECT_TIMEOUT)) as chunks:
                for chunk in chunks:
                    part = _text(chunk)
                    answered += part
                    print(end=part, flush=True)
        except KeyboardInterrupt:
            if not sys.stdin.isatty():
                raise
        print(flush=True)
        self._messages = [*messages, {"role": "assistant", "content": answered}]


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


def _text(chunk: Json) -> str:
    choice: Json = chunk["choices"][0]  # type: ignore[index]
    delta = choice.get("delta")
    return str(delta.get("content") or "") if isinstance(delta, dict) else str(choice["text"])
