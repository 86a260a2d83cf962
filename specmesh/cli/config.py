"""`specmesh config`: where settings come from. Thin functions, like those of cli.py."""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from specmesh.errors import BadVariable, ConfigError

if TYPE_CHECKING:
    from specmesh.api.port import Port
    from specmesh.cli.config_file import ConfigFile

ROLES = ("verifier", "drafter")
CONFIG = "specmesh.config"
"""Where a daemon's context keeps its `_Sources`."""

F = TypeVar("F", bound=Callable[..., object])


@dataclass(frozen=True, slots=True)
class _Sources:
    """Where a daemon's settings come from: its own context knows which were given how, and perhaps there is a file."""

    command: click.Context
    file: "ConfigFile | None"

    def of(self, name: str) -> str | None:
        """What was written where, for a setting by its parameter's name; None for a flag and a default."""
        source = self.command.get_parameter_source(name)
        if source is ParameterSource.DEFAULT_MAP and self.file is not None:
            return f"{self.file.path}:{self.file.lines[name]}"
        if source is ParameterSource.ENVIRONMENT:
            return _variable(self.command, name)
        return None


def config_option(command: F) -> F:
    """The file of settings that stands behind a daemon's flags."""
    return click.option(
        "--config",
        type=click.Path(path_type=Path),
        metavar="FILE",
        is_eager=True,
        expose_value=False,
        callback=_load,
        help="Settings in TOML, keys named as these flags (default: the user's, then the system's; see `config`).",
    )(command)


def _load(ctx: click.Context, _: click.Parameter, value: Path | None) -> None:
    from specmesh.cli import config_file

    path = value if value is not None else config_file.find(ctx.info_name or "")
    file = config_file.read(path, ctx.command) if path is not None else None
    if file is not None:
        ctx.default_map = dict(file.values)
    ctx.meta[CONFIG] = _Sources(ctx, file)
    _check_variables(ctx)


def _check_variables(ctx: click.Context) -> None:
    """Raise BadVariable for one that looks like a setting of this daemon and is none."""
    own = f"{ctx.auto_envvar_prefix}_"
    known = [(option.name or "").upper() for option in ctx.command.params]
    for name, told in os.environ.items():
        if not told or name == "SPECMESH_SOCKET":  # that one is the clients'
            continue
        if name.startswith(own) and (said := name.removeprefix(own)) not in known:
            meant = get_close_matches(said, known, 1)
        elif name.startswith("SPECMESH_") and name.removeprefix("SPECMESH_") in known:
            meant = [name.removeprefix("SPECMESH_")]
        else:
            continue
        hint = f"did you mean {own}{meant[0]}?" if meant else f"see specmesh {ctx.info_name} --help"
        raise BadVariable(name, told, f"there is no such variable: {hint}")


def blamed(error: ConfigError, ctx: click.Context) -> str:
    """The error's sentence, with file and line, or the variable, before it where the setting came from there."""
    known: _Sources | None = ctx.meta.get(CONFIG)
    place = known.of(error.option) if known is not None and error.option is not None else None
    return str(error) if place is None else f"{place}: {error}"


def bad_variable(error: click.BadParameter) -> BadVariable | None:
    """What click says of a value, as an error of the variable that it came from; None where it is a flag's."""
    from specmesh.cli.config_file import example

    ctx, option = error.ctx, error.param
    if ctx is None or not isinstance(option, click.Option) or option.name is None:
        return None
    if ctx.get_parameter_source(option.name) is not ParameterSource.ENVIRONMENT:
        return None
    name = _variable(ctx, option.name)
    why = f"{error.message.rstrip('.')}; for example {name}={example(option)}"
    return BadVariable(name, os.environ[name], why)


def _variable(ctx: click.Context, name: str) -> str:
    """The environment variable of a setting, by its parameter's name."""
    own = next((parameter.envvar for parameter in ctx.command.params if parameter.name == name), None)
    return own if isinstance(own, str) else f"{ctx.auto_envvar_prefix}_{name.upper()}"


def rereader(ctx: click.Context, port: "Port | None") -> Callable[[], str]:
    """What reads a running daemon's files again, and takes over what can change while it runs: the log level, and the
    API's keys in the file that was named at the start.

    A flag and the environment go before the file of settings then too. Where one of the files is wrong it raises
    ConfigError, and what held goes on.
    """

    def reread() -> str:
        from specmesh import logs
        from specmesh.api.port import read_keys
        from specmesh.cli import config_file

        known: _Sources = ctx.meta[CONFIG]
        file = config_file.read(known.file.path, ctx.command) if known.file is not None else None
        told = []
        if port is not None and port.keys.file is not None:
            port.keys.current = read_keys(port.keys.file)
            told.append(f"{len(port.keys.current)} keys")
        if file is not None:
            fixed = (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT)
            if ctx.get_parameter_source("log_level") not in fixed:
                logs.set_level(str(file.values.get("log_level", "info")))
            told.append("log-level")
        return f"{', '.join(told) or 'nothing'}; everything else holds from the next start"

    return reread


@click.group()
def config() -> None:
    """Show the settings of a daemon, or begin a file of them."""


_role = click.argument("role", type=click.Choice(ROLES))


@config.command()
@_role
@click.option("--config", "path", type=click.Path(path_type=Path), metavar="FILE", help="Instead of the usual file.")
@click.option("--origin", is_flag=True, help="Say behind each value where it came from.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead.")
@click.pass_context
def show(ctx: click.Context, role: str, path: Path | None, origin: bool, as_json: bool) -> None:
    """Show every setting that the daemon would start with now, as a file of settings."""
    values = effective(ctx.find_root(), role, path)
    if as_json:
        told = {key: {"value": value, "origin": source} for key, (value, source) in values.items()}
        click.echo(json.dumps({"schema_version": 1, "settings": told}, indent=2))
        return
    for key, (value, source) in values.items():
        line = f"# {key} = (not set)" if value is None else f"{key} = {json.dumps(value, ensure_ascii=False)}"
        click.echo(f"{line:<40}  # {source}" if origin else line)


def effective(root: click.Context, role: str, path: Path | None) -> dict[str, tuple[Any, str]]:
    """Each key's value and where it came from, as the command itself finds them.

    Raises ConfigError for a file of settings, BadVariable for the environment.
    """
    from specmesh.cli import config_file

    assert isinstance(root.command, click.Group)
    command = root.command.commands[role]
    arguments = ["--config", str(path)] if path is not None else []
    try:
        ctx = command.make_context(role, arguments, parent=root)
    except click.BadParameter as error:
        raise bad_variable(error) or error from None
    sources: _Sources = ctx.meta[CONFIG]
    found: dict[str, tuple[Any, str]] = {}
    for key, option in config_file.keys(command).items():
        name = option.name or key
        value = ctx.params[name]
        found[key] = _as_toml(value), sources.of(name) or "default"
    return found


def _as_toml(value: Any) -> Any:
    """A setting's value as a file of settings has it."""
    if isinstance(value, tuple):
        return value[0] if len(value) == 1 else list(value)
    return str(value) if isinstance(value, Path) else value


@config.command("path")
@_role
def path_command(role: str) -> None:
    """Print the file that the daemon reads; exit code 1 where there is none, after naming where it would be."""
    from specmesh.cli import config_file

    found = config_file.find(role)
    if found is None:
        places = ", ".join(str(folder / f"{role}.toml") for folder in config_file.config_folders())
        click.echo(f"specmesh: no file of settings: {places}; `specmesh config init {role}` writes one", err=True)
        raise SystemExit(1)
    click.echo(found)


@config.command()
@_role
@click.option("--system", is_flag=True, help="For the system's daemon instead of this user's.")
@click.option("--file", "path", type=click.Path(path_type=Path), metavar="FILE", help="Somewhere else.")
@click.option("--force", is_flag=True, help="Replace a file that is there.")
@click.pass_context
def init(ctx: click.Context, role: str, system: bool, path: Path | None, force: bool) -> None:
    """Write a file with every setting in it, each explained and commented out."""
    from specmesh.cli import config_file

    root = ctx.find_root().command
    assert isinstance(root, click.Group)
    where = path or config_file.config_folders()[int(system)] / f"{role}.toml"
    config_file.write(where, config_file.template(role, root.commands[role]), replace=force)
    click.echo(where)
