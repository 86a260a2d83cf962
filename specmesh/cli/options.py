"""Options that several commands share, each declared once, and how results are printed."""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from pathlib import Path

import click

from specmesh.client import printable
from specmesh.core.draft_length import MAX_DRAFTS
from specmesh.core.fields import is_object
from specmesh.core.sampling.strategy import THRESHOLD, Strategy
from specmesh.paths import expanded, read_text

Command = Callable[..., None]
Decorator = Callable[[Command], Command]
Callback = Callable[[click.Context, click.Parameter, str], object]


class HomePath(click.Path):
    """A path whose ~ is a home."""

    def convert(
        self,
        value: str | os.PathLike[str],
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> str | bytes | os.PathLike[str]:
        return super().convert(expanded(value), param, ctx)


FILE = HomePath(path_type=Path)
SECONDS = click.FloatRange(0.0, 86_400.0)
COUNT, SHARE, POSITIVE_SHARE = (
    click.IntRange(1),
    click.FloatRange(0.0, 1.0),
    click.FloatRange(0.0, 1.0, min_open=True),
)
_PENALTY, _FACTOR = click.FloatRange(-100.0, 100.0), click.FloatRange(0.0, 100.0, min_open=True)

MAX_FILE_BYTES = 2**24  # maximum size of a grammar or schema that is read; a verifier takes less


def print_result(result: object, lines: Iterable[str], *, as_json: bool) -> None:
    if as_json:
        print_json(result)
    else:
        click.echo("\n".join(lines))


def print_json(value: object) -> None:
    click.echo(json.dumps(value, indent=2))


def aligned(rows: Iterable[tuple[object, ...]]) -> list[str]:
    """Return rows in columns, a dash for None. What could steer a terminal, as peers' names could, is replaced."""
    cells = [["-" if cell is None else printable(str(cell)) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    ]


def table(rows: Sequence[Mapping[str, object]]) -> list[str]:
    """Return rows under their keys, as --json has them."""
    return aligned([tuple(rows[0]), *(tuple(row.values()) for row in rows)])


def columns(rows: Iterable[Mapping[str, object]]) -> list[str]:
    """Return each row as a column; on the left the keys, as --json has them."""
    flat = [dict(_flattened(row)) for row in rows]
    return aligned((name, *(one[name] for one in flat)) for name in flat[0])


def _flattened(row: Mapping[str, object], above: str = "") -> Iterator[tuple[str, object]]:
    for name, value in row.items():
        if is_object(value):
            yield from _flattened(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", f"{value:.2f}" if isinstance(value, float) else value


def combined(*options: Decorator) -> Decorator:
    """Return one decorator that applies several, listed in this order by --help."""
    return lambda command: reduce(lambda made, option: option(made), reversed(options), command)


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
) -> Decorator:
    """Return an option with a value. name: of its parameter; shown: as its default, where that is none of click's."""
    names = (flag,) if name is None else (flag, name)
    return click.option(
        *names,
        type=kind,
        metavar=metavar,
        help=meaning,
        default=default,
        show_default=shown,
        callback=callback,
    )


def several(flag: str, metavar: str, meaning: str, default: Sequence[str] = ()) -> Decorator:
    """Return an option that may be given more than once, or with commas in between: each text once."""

    def texts(_: click.Context, __: click.Parameter, meaning: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(
            dict.fromkeys(one.strip() for text in meaning for one in text.split(",") if one.strip())
        )

    return click.option(
        flag, metavar=metavar, help=meaning, default=default, multiple=True, callback=texts
    )


# --- asking a daemon

socket_option = click.option(
    "--socket",
    "socket_path",
    type=FILE,
    metavar="PATH",
    envvar="SPECMESH_SOCKET",
    help="Local socket of the daemon (default: found in the user's, then the system's runtime folder).",
)
json_option = click.option("--json", is_flag=True, help="Print JSON instead of text.")


def counts_option(
    flag: str, default: str, meaning: str, most: int, *, auto: bool = False
) -> Decorator:
    """Return an option for a list of numbers from 1 to `most`; `auto` is one too where it is allowed."""

    def counts(_: click.Context, __: click.Parameter, text: str) -> tuple[int | str, ...]:
        parts = [part.strip() for part in text.split(",")]
        if not all(
            (auto and part == "auto") or (part.isdecimal() and 1 <= int(part) <= most)
            for part in parts
        ):
            kinds = "auto and numbers" if auto else "numbers"
            raise click.BadParameter(
                f"{text!r} is no list of {kinds} from 1 to {most} like {default}"
            )
        return tuple(part if part == "auto" else int(part) for part in parts)

    metavar = "auto|N[,...]" if auto else "N[,N...]"
    return option(flag, str, metavar, meaning, default, callback=counts)


draft_n_option = option(
    "--draft-n",
    click.Choice(["auto", *map(str, range(MAX_DRAFTS + 1))]),
    "auto|N",
    f"Number of drafts per step, at most {MAX_DRAFTS}; 0: the verifier alone; auto adapts it.",
    "auto",
    callback=lambda _ctx, _option, value: value if value == "auto" else int(value),
)

# --- requests


def request_fields(options: Mapping[str, object]) -> dict[str, object]:
    """Return the fields of a request that options are named as and that the user set; the verifier knows the others'
    defaults."""
    body = {name: value for name, value in options.items() if value not in (None, ())}
    if isinstance(path := body.get("grammar"), Path):
        body["grammar"] = read_text(path, MAX_FILE_BYTES, "a grammar")
    if isinstance(schema := body.get("json_schema"), str):
        text = (
            schema
            if schema.lstrip().startswith("{")
            else read_text(Path(expanded(schema)), MAX_FILE_BYTES, "a schema")
        )
        try:
            body["json_schema"] = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise click.UsageError(f"--json-schema is not JSON: {error}") from None
    return body


def sampling_options(temperature: float, max_tokens: str) -> Decorator:
    """Return options for how tokens are chosen. max_tokens: what an answer has where that is not set."""
    return combined(
        option(
            "--max-tokens", COUNT, "N", "Maximum number of tokens to generate.", shown=max_tokens
        ),
        option(
            "--temperature",
            click.FloatRange(0.0, 100.0),
            "T",
            "Sampling temperature; 0 always takes the likeliest token.",
            temperature,
        ),
        option(
            "--top-k",
            click.IntRange(0),
            "K",
            "Sample from the K most likely tokens only (default: all).",
        ),
        option(
            "--top-p",
            SHARE,
            "P",
            "Sample from the most likely tokens that have probability P (default: 1).",
        ),
        option(
            "--min-p",
            SHARE,
            "P",
            "Drop tokens less likely than P times the most likely one (default: 0).",
        ),
        option(
            "--repeat-penalty",
            _FACTOR,
            "X",
            "Make recent tokens less likely by this factor (default: 1).",
        ),
        option(
            "--repeat-last-n",
            click.IntRange(-1),
            "N",
            "Tokens that penalties look at (default: 64; -1: all).",
        ),
        option(
            "--frequency-penalty",
            _PENALTY,
            "X",
            "Penalize each time that a token occurred (default: 0).",
        ),
        option(
            "--presence-penalty",
            _PENALTY,
            "X",
            "Penalize a token once if it occurred (default: 0).",
        ),
        option(
            "--seed", click.IntRange(0, 2**32 - 1), "S", "Seed of the sampling (default: random)."
        ),
        option(
            "--strategy",
            click.Choice([strategy.value for strategy in Strategy]),
            None,
            "Which drafts are accepted: those that the target would sample itself (deterministic, the default); "
            "the most that keep the target's distribution (probabilistic); those that are likely enough, which changes "
            "the text (threshold); none, so nothing is drafted (greedy).",
        ),
        option(
            "--threshold",
            POSITIVE_SHARE,
            "P",
            f"Least probability for threshold (default: {THRESHOLD:g}).",
        ),
    )


def request_options(temperature: float, max_tokens: str) -> Decorator:
    return combined(
        sampling_options(temperature, max_tokens),
        option(
            "--grammar-file",
            FILE,
            "FILE",
            "Generate only text of this GBNF grammar.",
            name="grammar",
        ),
        option(
            "--json-schema",
            str,
            "FILE|JSON",
            "Generate only JSON of this schema: the schema itself, or a file.",
        ),
        option(
            "--model",
            str,
            "NAME",
            "Model to ask, as `specmesh ps` names it, where a drafter has several.",
        ),
        socket_option,
    )
