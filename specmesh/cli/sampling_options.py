"""Options of commands that sample: how, in the words of llama.cpp."""

import functools
from collections.abc import Callable

import click

from specmesh.cli.default_options import given
from specmesh.core.strategy import THRESHOLD, Strategy

MAX_DRAFT_N = 16

Decorator = Callable[[Callable[..., None]], Callable[..., None]]


def _bias(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> list[tuple[int, float]]:
    """ID+BIAS and ID-BIAS, as llama.cpp has them."""
    return [_parsed(value) for value in values]


def _parsed(value: str) -> tuple[int, float]:
    token, sign, bias = value.partition("+" if "+" in value else "-")
    try:
        return int(token), float(sign + bias)
    except ValueError:
        raise click.BadParameter(f"give ID+BIAS or ID-BIAS, as in 198-2.5, not {value}") from None


def _share(name: str, default: float, what: str) -> Decorator:
    kind = click.FloatRange(0.0, 1.0)
    return click.option(name, type=kind, default=default, show_default=True, metavar="P", help=what)


def _penalty(name: str, default: float, what: str) -> Decorator:
    kind = click.FloatRange(-100.0, 100.0)
    return click.option(name, type=kind, default=default, show_default=True, metavar="X", help=what)


def _draft_n(_: click.Context, __: click.Parameter, value: str) -> int | str:
    if value == "auto":
        return value
    if value.isdecimal() and int(value) <= MAX_DRAFT_N:
        return int(value)
    raise click.BadParameter(f"give auto or a number from 0 to {MAX_DRAFT_N}")


def draft_n_option(default: str) -> Decorator:
    """Give a command --draft-n: a number, or auto."""
    return click.option(
        "--draft-n",
        default=default,
        show_default=True,
        metavar="auto|N",
        callback=_draft_n,
        help=f"Drafts per step, {MAX_DRAFT_N} at most.",
    )


def sampling_options(temperature: float) -> Decorator:
    """Give a command the options of sampling, as one argument `sampling`: fields of a body.

    What was not given is left to the daemon's defaults; `temperature` counts where it has none.
    """
    options: dict[str, Decorator] = {
        "temperature": click.option(
            "--temperature",
            type=click.FloatRange(0.0, 100.0),
            default=temperature,
            show_default=True,
            metavar="T",
            help="0 takes the most likely token.",
        ),
        "seed": click.option(
            "--seed", type=click.IntRange(0, 2**32 - 1), metavar="S", help="Repeat a sampled text (default: random)."
        ),
        "top_k": click.option(
            "--top-k", type=click.IntRange(0), default=0, show_default=True, metavar="K", help="0: off."
        ),
        "top_p": _share("--top-p", 1.0, "1: off."),
        "min_p": _share("--min-p", 0.0, "Least share of the likeliest token's probability; 0: off."),
        "typical_p": _share("--typical-p", 1.0, "Locally typical sampling; 1: off."),
        "repeat_penalty": click.option(
            "--repeat-penalty",
            type=click.FloatRange(0.0, 100.0, min_open=True),
            default=1.0,
            show_default=True,
            metavar="X",
            help="Makes tokens that were said lately less likely; 1: off.",
        ),
        "repeat_last_n": click.option(
            "--repeat-last-n",
            type=click.IntRange(-1),
            default=64,
            show_default=True,
            metavar="N",
            help="What lately means for penalties: the last N ids, 0 none, -1 all.",
        ),
        "frequency_penalty": _penalty("--frequency-penalty", 0.0, "The same for each time a token was said; 0: off."),
        "presence_penalty": _penalty("--presence-penalty", 0.0, "The same once for each token that was said; 0: off."),
        "logit_bias": click.option(
            "--logit-bias",
            multiple=True,
            metavar="ID±BIAS",
            callback=_bias,
            help="Make a token likelier (198+1) or less likely (198-1); may be given more than once.",
        ),
        "strategy": click.option(
            "--strategy",
            type=click.Choice([strategy.value for strategy in Strategy]),
            help="Which drafts stand: those that the target itself chooses (deterministic, the default); with the same "
            "odds for every text as many as can (probabilistic); those likely enough, which changes the text "
            "(threshold); none (greedy).",
        ),
        "threshold": click.option(
            "--threshold",
            type=click.FloatRange(0.0, 1.0, min_open=True),
            metavar="P",
            help=f"Least probability of a draft that stands by --strategy threshold ({THRESHOLD:g} if not given).",
        ),
    }

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def gathered(**values: object) -> None:
            sampling = given({name: values.pop(name) for name in options})
            if "temperature" not in sampling:
                sampling["fallback"] = {"temperature": temperature}
            command(sampling=sampling, **values)

        wrapped: Callable[..., None] = gathered
        for option in reversed(options.values()):
            wrapped = option(wrapped)
        return wrapped

    return decorate
