"""Options of commands that imagine a pair: how fast its drafter is, how far away."""

from collections.abc import Callable
from typing import TypeVar

import click

F = TypeVar("F", bound=Callable[..., object])

STEPS_FILE = "What `bench steps --json` printed, or a JSON list of milliseconds of 1, 2, ... rows"
"""What describes a verifier that was measured."""


def draft_ms_option(command: F) -> F:
    """Give a command --draft-ms."""
    return click.option(
        "--draft-ms",
        type=click.FloatRange(0, min_open=True),
        default=5.2,
        show_default=True,
        metavar="MS",
        help="Each draft.",
    )(command)


def rtt_ms_option(default: float) -> Callable[[F], F]:
    """Give a command --rtt-ms."""
    return click.option(
        "--rtt-ms", type=click.FloatRange(0), default=default, show_default=True, metavar="MS", help="Round trip."
    )
