"""Write docs/cli.md, the reference of the command line, from the commands themselves.

python tools/cli_reference.py
"""

from collections.abc import Iterator
from pathlib import Path

import click

from specmesh.cli import main

PATH = Path(__file__).parents[1] / "docs" / "cli.md"

HEAD = """# The command line

Written by `make docs` from the commands themselves. Options of `verifier` and `drafter` can also
stand in their file of settings, under their own names without the dashes, and every option has a
variable: `SPECMESH_VERIFIER_BIND` is `specmesh verifier --bind`.
"""


def reference() -> str:
    """Return the whole document."""
    return "\n".join([HEAD, *sections(main, "specmesh")])


def sections(command: click.Command, name: str) -> Iterator[str]:
    """Yield a section for each command of a group and its groups."""
    if isinstance(command, click.Group):
        context = click.Context(command)
        for child in command.list_commands(context):
            found = command.get_command(context, child)
            assert found is not None, "it is listed"
            yield from sections(found, f"{name} {child}")
        return
    yield f"## {name}\n\n{_help(command)}\n"
    usage = f"{name} [OPTIONS]"
    rows = ""
    for parameter in command.params:
        if isinstance(parameter, click.Argument):
            usage += f" {parameter.make_metavar(click.Context(command))}"
        elif isinstance(parameter, click.Option) and not parameter.hidden:
            rows += _row(parameter)
    yield f"```text\n{usage}\n```\n"
    if rows:
        yield f"| option | meaning | default |\n|---|---|---|\n{rows}"


def _help(command: click.Command) -> str:
    return " ".join((command.help or "").split("\f")[0].split())


def _row(option: click.Option) -> str:
    flags = ", ".join(f"`{flag}`" for flag in (*option.opts, *option.secondary_opts))
    if not option.is_flag:
        flags += f" `{_metavar(option)}`"
    meaning = option.help or ""
    if option.multiple:
        meaning += " May be given more than once."
    return f"| {flags} | {_cell(meaning)} | {_default(option)} |\n"


def _metavar(option: click.Option) -> str:
    choices = getattr(option.type, "choices", ())
    return (option.metavar or "|".join(choices) or option.type.name.upper()).replace("|", "\\|")


def _default(option: click.Option) -> str:
    if isinstance(option.show_default, str):
        return option.show_default
    if option.required:
        return "required"
    default = option.default
    if isinstance(default, list):
        default = ", ".join(default)
    if option.is_flag or not isinstance(default, str | int | float) or default == "":
        return ""
    return f"`{default}`"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    PATH.parent.mkdir(exist_ok=True)
    PATH.write_text(reference(), encoding="utf-8")
