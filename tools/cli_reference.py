"""Writes docs/cli.md, the reference of the command line, from the commands themselves.

python tools/cli_reference.py
"""

from collections.abc import Iterator
from pathlib import Path

import click

from specmesh.cli import main

PATH = Path(__file__).parents[1] / "docs" / "cli.md"

HEAD = """# The command line

Written by `make docs` from the commands themselves. Options of `verifier` and `drafter` can also stand in their file of
settings, under their own names without the dashes, and every option has a variable: `SPECMESH_VERIFIER_BIND` is
`specmesh verifier --bind`.
"""


def reference() -> str:
    """The whole document."""
    return "\n".join([HEAD, *sections(main, "specmesh")])


def sections(command: click.Command, name: str) -> Iterator[str]:
    """A section for each command that does something, groups opened."""
    if isinstance(command, click.Group):
        for child in sorted(command.commands):
            yield from sections(command.commands[child], f"{name} {child}")
        return
    yield f"## {name}\n\n{_help(command)}\n"
    arguments = [
        parameter.make_metavar(click.Context(command)) for parameter in _arguments(command)
    ]
    yield f"```text\n{' '.join([name, '[OPTIONS]', *arguments])}\n```\n"
    rows = [
        _row(option)
        for option in command.params
        if isinstance(option, click.Option) and not option.hidden
    ]
    if rows:
        yield "\n".join(["| option | meaning | default |", "|---|---|---|", *rows]) + "\n"


def _arguments(command: click.Command) -> list[click.Argument]:
    return [parameter for parameter in command.params if isinstance(parameter, click.Argument)]


def _help(command: click.Command) -> str:
    return " ".join((command.help or "").split("\f")[0].split())


def _row(option: click.Option) -> str:
    flags = ", ".join(f"`{flag}`" for flag in (*option.opts, *option.secondary_opts))
    takes = "" if option.is_flag or option.count else f" `{_metavar(option)}`"
    repeated = " May be given more than once." if option.multiple else ""
    return f"| {flags}{takes} | {_cell((option.help or '') + repeated)} | {_default(option)} |"


def _metavar(option: click.Option) -> str:
    choices = getattr(option.type, "choices", ())
    return (option.metavar or "|".join(choices) or option.type.name.upper()).replace("|", "\\|")


def _default(option: click.Option) -> str:
    if isinstance(option.show_default, str):
        return option.show_default
    default = ", ".join(option.default) if isinstance(option.default, list) else option.default
    shown = default if isinstance(default, str | int | float) and not option.is_flag else ""
    return "required" if option.required else f"`{shown}`" if shown != "" else ""


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    PATH.parent.mkdir(exist_ok=True)
    PATH.write_text(reference(), encoding="utf-8")
