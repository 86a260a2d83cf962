"""Options of commands that ask for text of a given form."""

import functools
import json
from collections.abc import Callable
from pathlib import Path

import click


def structure_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command --grammar-file and --json-schema, as one argument `structure`: fields of a body."""

    @click.option("--grammar-file", metavar="FILE", help="Text of this grammar only, in llama.cpp's GBNF.")
    @click.option(
        "--json-schema",
        metavar="FILE|JSON",
        help="JSON of this schema only; the schema itself, or a file with it.",
    )
    @functools.wraps(command)
    def gathered(grammar_file: str | None, json_schema: str | None, **values: object) -> None:
        if grammar_file is not None and json_schema is not None:
            raise click.UsageError("give --grammar-file or --json-schema, not both")
        structure: dict[str, object] = {}
        if grammar_file is not None:
            structure["grammar"] = _read("--grammar-file", grammar_file)
        if json_schema is not None:
            structure["json_schema"] = _schema(json_schema)
        command(structure=structure, **values)

    return gathered


def _schema(value: str) -> object:
    text = value if value.lstrip().startswith("{") else _read("--json-schema", value)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise click.UsageError(f"--json-schema is not JSON: {error}") from None


def _read(option: str, path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise click.UsageError(f"{option} {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise click.UsageError(f"{option} {path} is not UTF-8") from None
