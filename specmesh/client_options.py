"""Options of commands that ask a running daemon, and what they print in the end."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

import click

F = TypeVar("F", bound=Callable[..., object])

FOUND = "found as `specmesh generate` does"


class Printable(Protocol):
    """What came of a command."""

    def lines(self) -> list[str]:
        """In words."""

    def as_json(self) -> object:
        """The same for programs."""


def socket_option(told: str) -> Callable[[F], F]:
    """Give a command --socket, as `socket_path`; told: whose it is, and which one is asked without it."""
    return click.option(
        "--socket",
        "socket_path",
        type=click.Path(path_type=Path),
        metavar="PATH",
        envvar="SPECMESH_SOCKET",
        help=told,
    )


def model_option(command: F) -> F:
    """Give a command --model, as `model`."""
    return click.option(
        "--model",
        metavar="NAME",
        help="Where a drafter has verifiers with several models: this one, as `specmesh ps` shows it (default: the "
        "first one's).",
    )(command)


def json_option(envvar: str, told: str = "Print one JSON object instead.") -> Callable[[F], F]:
    """Give a command --json, as `as_json`."""
    return click.option("--json", "as_json", envvar=envvar, is_flag=True, help=told)


def prompts_option(command: F) -> F:
    """Give a command --prompts."""
    return click.option(
        "--prompts",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help='One prompt per line, or JSON lines with "prompt" (default: a few of our own).',
    )(command)


def print_result(result: Printable, *, as_json: bool) -> None:
    """Print it for people, or for programs."""
    if as_json:
        print_json(result.as_json())
    else:
        click.echo("\n".join(result.lines()))


def print_json(value: object) -> None:
    """Print a JSON object for people to read too."""
    click.echo(json.dumps(value, indent=2))
