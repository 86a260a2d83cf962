"""Options that several commands share, and the printing of results."""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Never

import click
from click.shell_completion import CompletionItem

from specmesh import client as daemon
from specmesh.cli.model_names import served_models
from specmesh.client import printable
from specmesh.core.draft_length import MAX_DRAFTS
from specmesh.core.draft_sources import DRAFT_SOURCES
from specmesh.core.fields import is_object
from specmesh.core.sampling.strategy import THRESHOLD, Strategy
from specmesh.paths import expanded, read_text

Command = Callable[..., None]
Decorator = Callable[[Command], Command]
Callback = Callable[[click.Context, click.Parameter, Never], object]
Completion = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


class HomePath(click.Path):
    """A path in which ~ is the user's home folder."""

    def convert(
        self,
        value: str | os.PathLike[str],
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> str | bytes | os.PathLike[str]:
        return super().convert(expanded(value), param, ctx)


FILE = HomePath(path_type=Path)
SECONDS = click.FloatRange(0.0, 86_400.0)
COUNT = click.IntRange(1)
COUNT_OR_ZERO = click.IntRange(0)
SHARE = click.FloatRange(0.0, 1.0)
MILLISECONDS = click.FloatRange(0)
POSITIVE_MILLISECONDS = click.FloatRange(0, min_open=True)
_PENALTY = click.FloatRange(-100.0, 100.0)

MAX_FILE_BYTES = 2**24
"""Maximum size of a grammar, schema or prediction file. A verifier accepts less."""


def print_result(result: Mapping[str, object], lines: Iterable[str], *, as_json: bool) -> None:
    """Print a result of schema version 1 as JSON, or its lines."""
    if as_json:
        click.echo(json.dumps({"schema_version": 1} | dict(result), indent=2))
        return
    for line in lines:
        click.echo(line)


def counted(count: int, noun: str) -> str:
    """Return a number with its noun, such as "1 session" or "2 sessions"."""
    plural = "" if count == 1 else "s"
    return f"{count} {noun}{plural}"


def aligned(rows: Iterable[Iterable[object]]) -> list[str]:
    """Return rows as lines with aligned columns.

    None is shown as a dash. Control characters, which a peer's name could hold, are replaced.
    """
    cells = [list(map(_cell, row)) for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines: list[str] = []
    for row in cells:
        padded = map(str.ljust, row, widths)
        lines.append("  ".join(padded).rstrip())
    return lines


def _cell(value: object) -> str:
    return "-" if value is None else printable(str(value))


def table(rows: Sequence[Mapping[str, object]]) -> list[str]:
    """Return rows as lines below a heading with their keys, which are those of --json."""
    if not rows:
        return []
    values = [row.values() for row in rows]
    return aligned([rows[0], *values])


def stacked(rows: Sequence[Mapping[str, object]]) -> list[str]:
    """Return rows below a heading of narrow columns: each word of a key has a line of its own."""
    if not rows:
        return []
    words = [name.split("_") for name in rows[0]]
    height = max(map(len, words))
    lowest = [[""] * (height - len(parts)) + parts for parts in words]
    heading = zip(*lowest, strict=True)
    values = [row.values() for row in rows]
    return aligned([*heading, *values])


def columns(rows: Iterable[Mapping[str, object]]) -> list[str]:
    """Return each row as a column beside the keys, which are those of --json.

    A key without a value in any row is left out.
    """
    flat = [dict(flattened(row)) for row in rows]
    lines: list[list[object]] = []
    for name in flat[0]:
        values = [_rounded(row[name]) for row in flat]
        if any(value is not None for value in values):
            lines.append([name, *values])
    return aligned(lines)


def flattened(row: Mapping[str, object], above: str = "") -> Iterator[tuple[str, object]]:
    """Yield the keys and values of a row; a key of an object within it follows a dot."""
    for name, value in row.items():
        if is_object(value):
            yield from flattened(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value


def _rounded(value: object) -> object:
    return f"{value:.2f}" if isinstance(value, float) else value


def combined(options: Sequence[Decorator]) -> Decorator:
    """Return one decorator that applies several. --help lists them in this order."""

    def decorated(command: Command) -> Command:
        for decorate in reversed(options):
            command = decorate(command)
        return command

    return decorated


def option(
    flag: str,
    kind: click.ParamType[object] | type[str],
    metavar: str | None,
    meaning: str,
    default: object = None,
    *,
    name: str | None = None,
    shown: str | bool = True,
    callback: Callback | None = None,
    completion: Completion | None = None,
) -> Decorator:
    """Return an option with a value.

    name: of the parameter, if it is not the flag's.
    shown: text that --help shows as the default.
    completion: returns what a shell offers for the beginning of a value.
    """
    names = [flag] if name is None else [flag, name]
    return click.option(
        *names,
        type=kind,
        metavar=metavar,
        help=meaning,
        default=default,
        show_default=shown,
        callback=callback,
        shell_complete=completion,
    )


def flag(name: str, meaning: str) -> Decorator:
    """Return an option without a value."""
    return click.option(name, is_flag=True, help=meaning)


def several(flag: str, metavar: str, meaning: str, default: Sequence[str] = ()) -> Decorator:
    """Return an option that may be given more than once, or with commas between its values."""
    return click.option(
        flag, metavar=metavar, help=meaning, default=default, multiple=True, callback=_distinct
    )


def _distinct(_: click.Context, __: click.Parameter, given: tuple[str, ...]) -> tuple[str, ...]:
    """Return the values between commas, each one once and none empty."""
    parts = map(str.strip, ",".join(given).split(","))
    return tuple(dict.fromkeys(filter(None, parts)))


# --- asking a daemon


def _client(_: click.Context, __: click.Parameter, path: Path | None) -> daemon.Client:
    return daemon.Client(path)


client_option = click.option(
    "--socket",
    "client",
    type=FILE,
    metavar="PATH",
    envvar="SPECMESH_SOCKET",
    callback=_client,
    help="Local socket of the daemon "
    "(default: found in the user's, then the system's runtime folder).",
)
json_option = flag("--json", "Print JSON instead of text.")


def counts_option(
    flag: str, default: str | None, meaning: str, most: int, *, auto: bool = False
) -> Decorator:
    """Return an option for a list of numbers from 1 to `most`, empty where there is no default.

    auto: the list may contain the word "auto", too.
    """

    def count(part: str) -> int | str:
        if auto and part == "auto":
            return part
        if part.isdecimal() and 1 <= int(part) <= most:
            return int(part)
        raise ValueError(part)

    def counts(_: click.Context, __: click.Parameter, text: str | None) -> tuple[int | str, ...]:
        if text is None:
            return ()
        try:
            return tuple(count(part.strip()) for part in text.split(","))
        except ValueError:
            kinds = "auto and numbers" if auto else "numbers"
            message = f"{text!r} is no list of {kinds} from 1 to {most} like {default or '2,4,8'}"
            raise click.BadParameter(message) from None

    metavar = "auto|N[,...]" if auto else "N[,N...]"
    return option(flag, str, metavar, meaning, default, callback=counts)


def _draft_n(_: click.Context, __: click.Parameter, value: str) -> int | str:
    return value if value == "auto" else int(value)


draft_n_option = option(
    "--draft-n",
    click.Choice(["auto", *map(str, range(MAX_DRAFTS + 1))]),
    "auto|N",
    f"Number of drafts per step, at most {MAX_DRAFTS}; 0: the verifier alone; auto adapts it.",
    "auto",
    callback=_draft_n,
)


def _draft_sources(_: click.Context, __: click.Parameter, text: str | None) -> list[str] | None:
    if text is None:
        return None
    names = [name for name in map(str.strip, text.split(",")) if name]
    for name in names:
        if name not in DRAFT_SOURCES:
            raise click.BadParameter(f"{name!r} is none of {', '.join(DRAFT_SOURCES)}")
    return names


draft_sources_option = option(
    "--draft-sources",
    str,
    "NAME[,...]",
    f"Sources of drafts that may draft, out of {', '.join(DRAFT_SOURCES)} (default: all).",
    callback=_draft_sources,
)

# --- requests


def request_fields(options: Mapping[str, object]) -> dict[str, object]:
    """Return a request's fields: the options that the user set, by their names.

    The verifier knows the defaults of the others.
    """
    body = dict[str, object]()
    for name, value in options.items():
        if value not in (None, ()):
            body[name] = value
    grammar = body.get("grammar")
    if isinstance(grammar, Path):
        body["grammar"] = read_text(grammar, MAX_FILE_BYTES, "a grammar")
    predicted = body.get("prediction")
    if isinstance(predicted, Path):
        text = read_text(predicted, MAX_FILE_BYTES, "a prediction")
        body["prediction"] = {"type": "content", "content": text}
    schema = body.get("json_schema")
    if isinstance(schema, str):
        body["json_schema"] = _parsed_schema(schema)
    return body


def _parsed_schema(schema: str) -> object:
    """Return the schema that is given as JSON or as the path of a file."""
    if not schema.lstrip().startswith("{"):
        schema = read_text(Path(expanded(schema)), MAX_FILE_BYTES, "a schema")
    try:
        return json.loads(schema)
    except (ValueError, RecursionError) as error:
        raise click.UsageError(f"--json-schema is not JSON: {error}") from None


_top_k = option(
    "--top-k", COUNT_OR_ZERO, "K", "Sample from the K most likely tokens only (default: all)."
)
_top_p = option(
    "--top-p",
    SHARE,
    "P",
    "Sample from the most likely tokens that have probability P (default: 1).",
)
_min_p = option(
    "--min-p", SHARE, "P", "Drop tokens less likely than P times the most likely one (default: 0)."
)
_repeat_penalty = option(
    "--repeat-penalty",
    click.FloatRange(0.0, 100.0, min_open=True),
    "X",
    "Make recent tokens less likely by this factor (default: 1).",
)
_repeat_last_n = option(
    "--repeat-last-n",
    click.IntRange(-1),
    "N",
    "Tokens that penalties look at (default: 64; -1: all).",
)
_frequency_penalty = option(
    "--frequency-penalty", _PENALTY, "X", "Penalize each time that a token occurred (default: 0)."
)
_presence_penalty = option(
    "--presence-penalty", _PENALTY, "X", "Penalize a token once if it occurred (default: 0)."
)
_seed = option(
    "--seed", click.IntRange(0, 2**32 - 1), "S", "Seed of the sampling (default: random)."
)
_strategy = option(
    "--strategy",
    click.Choice(list(map(str, Strategy))),
    None,
    "Which drafts are accepted: those that the target would sample itself (deterministic, the "
    "default); the most that keep the target's distribution (probabilistic); those that are "
    "likely enough, which changes the text (threshold); none, so nothing is drafted (greedy).",
)
_threshold = option(
    "--threshold",
    click.FloatRange(0.0, 1.0, min_open=True),
    "P",
    f"Least probability for threshold (default: {THRESHOLD:g}).",
)


def sampling_options(temperature: float, max_tokens: str) -> Decorator:
    """Return the options for the choice of tokens.

    max_tokens: text that --help shows as the default of --max-tokens.
    """
    number = "Maximum number of tokens to generate."
    likeliest = "Sampling temperature; 0 always takes the likeliest token."
    return combined(
        [
            option("--max-tokens", COUNT, "N", number, shown=max_tokens),
            option("--temperature", click.FloatRange(0.0, 100.0), "T", likeliest, temperature),
            _top_k,
            _top_p,
            _min_p,
            _repeat_penalty,
            _repeat_last_n,
            _frequency_penalty,
            _presence_penalty,
            _seed,
            _strategy,
            _threshold,
        ]
    )


_grammar_file = option(
    "--grammar-file", FILE, "FILE", "Generate only text of this GBNF grammar.", name="grammar"
)
_json_schema = option(
    "--json-schema",
    str,
    "FILE|JSON",
    "Generate only JSON of this schema: the schema itself, or a file.",
)
_model = option(
    "--model",
    str,
    "NAME",
    "Model to ask, as `specmesh ps` names it, if a drafter has several.",
    completion=served_models,
)


def request_options(temperature: float, max_tokens: str) -> Decorator:
    return combined(
        [
            sampling_options(temperature, max_tokens),
            _grammar_file,
            _json_schema,
            _model,
            client_option,
        ]
    )
