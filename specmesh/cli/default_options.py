"""Options of the daemons for what requests leave out, as llama-server has them."""

import functools
from collections.abc import Callable, Mapping

import click
from click.core import ParameterSource

Decorator = Callable[[Callable[..., None]], Callable[..., None]]

_SHARE, _PENALTY = click.FloatRange(0.0, 1.0), click.FloatRange(-100.0, 100.0)
_OPTIONS: dict[str, tuple[click.FloatRange | click.IntRange, str, str]] = {
    "max_tokens": (click.IntRange(1), "N", "128 for a completion; a chat goes on to the end of its context"),
    "temperature": (click.FloatRange(0.0, 100.0), "T", "1; for `generate` 0, for `chat` 0.7"),
    "top_k": (click.IntRange(0), "K", "0, off"),
    "top_p": (_SHARE, "P", "1, off"),
    "min_p": (_SHARE, "P", "0, off"),
    "typical_p": (_SHARE, "P", "1, off"),
    "repeat_penalty": (click.FloatRange(0.0, 100.0, min_open=True), "X", "1, off"),
    "repeat_last_n": (click.IntRange(-1), "N", "64"),
    "frequency_penalty": (_PENALTY, "X", "0, off"),
    "presence_penalty": (_PENALTY, "X", "0, off"),
}
"""By the name of the body's field: its type, what stands for a value, and what holds where nobody says."""


def default_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a daemon these options, as one argument `defaults`: fields of a body."""

    @functools.wraps(command)
    def gathered(**values: object) -> None:
        defaults = {name: values.pop(name) for name in _OPTIONS}
        command(defaults={name: value for name, value in defaults.items() if value is not None}, **values)

    wrapped: Callable[..., None] = gathered
    for name, (kind, metavar, otherwise) in reversed(_OPTIONS.items()):
        told = f"For requests here that do not say (default: {otherwise})."
        wrapped = click.option(f"--{name.replace('_', '-')}", type=kind, metavar=metavar, help=told)(wrapped)
    return wrapped


def given(values: Mapping[str, object]) -> dict[str, object]:
    """Of a command's values, those that its caller gave, by a flag, the environment or a file."""
    ctx = click.get_current_context()
    return {
        name: value for name, value in values.items() if ctx.get_parameter_source(name) is not ParameterSource.DEFAULT
    }
