"""`specmesh config`, and the settings of a daemon: flags, then the environment, a TOML file, and defaults.

click applies this order once the file's values are its `default_map`; this module finds and checks the file.
"""

import json as json_module
import os
import re
import textwrap
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from specmesh import paths
from specmesh.cli.options import FILE, json_option, path_option, print_result
from specmesh.errors import BadVariable, ConfigError

if TYPE_CHECKING:
    from specmesh.config import Port

SOURCES = "specmesh.config"
"""Where a daemon's context keeps itself; its `obj` is the file, if there is one."""

MAX_SIZE = 2**20
"""Maximum size of a settings file in bytes."""

ROLE = click.argument("role", type=click.Choice(paths.ROLES))


@click.group()
def config() -> None:
    """Show the settings of a daemon, or write a settings file."""


@config.command()
@ROLE
@path_option("--config", "FILE", "Read this file instead of the usual one.", "path")
@click.option("--origin", is_flag=True, help="Show where each value comes from.")
@json_option
def show(role: str, path: Path | None, origin: bool, json: bool) -> None:
    """Show every setting that the daemon would start with now, as a settings file."""
    values, lines = effective(role, path), []
    for key, (value, source) in values.items():
        line = f"# {key} = (not set)" if value is None else f"{key} = {json_module.dumps(value, ensure_ascii=False)}"
        lines.append(f"{line:<40}  # {source}" if origin else line)
    told = {key: {"value": value, "origin": source} for key, (value, source) in values.items()}
    print_result({"schema_version": 1, "settings": told}, lines, as_json=json)


@config.command("path")
@ROLE
def path_command(role: str) -> None:
    """Print the path of the daemon's settings file; exit code 1 if there is none."""
    found = find(role)
    if found is None:
        places = ", ".join(str(folder / f"{role}.toml") for folder in paths.config_folders())
        click.echo(f"specmesh: no file of settings: {places}; `specmesh config init {role}` writes one", err=True)
        raise SystemExit(1)
    click.echo(found)


@config.command()
@ROLE
@click.option("--system", is_flag=True, help="Write the file of the system's daemon instead of this user's.")
@path_option("--file", "FILE", "Write this file instead.", "path")
@click.option("--force", is_flag=True, help="Replace an existing file.")
def init(role: str, system: bool, path: Path | None, force: bool) -> None:
    """Write a settings file in which every setting is explained and commented out."""
    where = path or paths.config_folders()[int(system)] / f"{role}.toml"
    try:
        where.parent.mkdir(parents=True, exist_ok=True)
        with where.open("w" if force else "x", encoding="utf-8") as file:
            file.write(template(role))
    except FileExistsError:
        raise ConfigError(f"{where} is there already: edit it, or replace it with --force") from None
    except OSError as error:
        raise ConfigError(f"{where}: cannot be written ({error.strerror})") from None
    click.echo(where)


def command_of(role: str) -> click.Command:
    group = click.get_current_context().find_root().command
    assert isinstance(group, click.Group)
    return group.commands[role]


def effective(role: str, path: Path | None = None) -> dict[str, tuple[Any, str]]:
    """Return each key's value and where it came from, as the daemon's own command finds them.

    Raises ConfigError for a file of settings, BadVariable for the environment.
    """
    command, root = command_of(role), click.get_current_context().find_root()
    try:
        ctx = command.make_context(role, ["--config", str(path)] if path is not None else [], parent=root)
    except click.BadParameter as error:
        raise bad_variable(error) or error from None
    return {
        key: (_as_toml(ctx.params[name]), _origin(ctx, name) or "default")
        for key, option in keys(command).items()
        if (name := option.name or key)
    }


def _as_toml(value: Any) -> Any:
    if isinstance(value, tuple):
        return value[0] if len(value) == 1 else list(value)
    return str(value) if isinstance(value, Path) else value


# --- a daemon's settings, and who is to blame for one


def _origin(ctx: click.Context, name: str) -> str | None:
    """Return the place of a daemon's setting, by its parameter's name; None for a flag and a default."""
    source, file = ctx.get_parameter_source(name), ctx.obj
    if source is ParameterSource.DEFAULT_MAP and isinstance(file, ConfigFile):
        return f"{file.path}:{file.lines[name]}"
    return _variable(ctx, name) if source is ParameterSource.ENVIRONMENT else None


def _load(ctx: click.Context, _: click.Parameter, value: Path | None) -> None:
    path = value if value is not None else find(ctx.info_name or "")
    if path is not None:
        ctx.obj = read(path, ctx.command)
        ctx.default_map = dict(ctx.obj.values)
    ctx.meta[SOURCES] = ctx
    _check_variables(ctx)


config_option = click.option(
    "--config",
    type=FILE,
    metavar="FILE",
    is_eager=True,
    expose_value=False,
    callback=_load,
    help="Settings file in TOML, keys named like these flags (default: the user's, then the system's; see `config`).",
)


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
    """Return the error's sentence, after the file and line or the variable that its setting came from."""
    daemon: click.Context | None = ctx.meta.get(SOURCES)
    place = _origin(daemon, error.option) if daemon is not None and error.option is not None else None
    return str(error) if place is None else f"{place}: {error}"


def bad_variable(error: click.BadParameter) -> BadVariable | None:
    """Return click's error as one of the environment variable that it came from; None for a flag's."""
    ctx, option = error.ctx, error.param
    if ctx is None or not isinstance(option, click.Option) or option.name is None:
        return None
    if ctx.get_parameter_source(option.name) is not ParameterSource.ENVIRONMENT:
        return None
    name = _variable(ctx, option.name)
    example = _kind(option)[2].strip('"')
    return BadVariable(name, os.environ[name], f"{error.message.rstrip('.')}; for example {name}={example}")


def _variable(ctx: click.Context, name: str) -> str:
    own = next((parameter.envvar for parameter in ctx.command.params if parameter.name == name), None)
    return own if isinstance(own, str) else f"{ctx.auto_envvar_prefix}_{name.upper()}"


def rereader(ctx: click.Context, port: "Port | None") -> Callable[[], str]:
    """Return a function that reads a running daemon's log level and API keys again.

    It returns what it has changed; a wrong file raises ConfigError and changes nothing.
    """

    def reread() -> str:
        from specmesh import logs
        from specmesh.config import read_keys

        file = read(ctx.obj.path, ctx.command) if ctx.obj is not None else None
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


# --- the file


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """The settings of one file, and the line of each, by the names of the command's parameters."""

    path: Path
    values: Mapping[str, Any]
    lines: Mapping[str, int]


def find(role: str) -> Path | None:
    """Return the file of settings for `specmesh ROLE` where none was named; None where there is none."""
    candidates = (folder / f"{role}.toml" for folder in paths.config_folders())
    return next((path for path in candidates if path.is_file()), None)


def keys(command: click.Command) -> dict[str, click.Option]:
    """Return the keys that a command's file may hold: the longest flag of each option, without its dashes."""
    options = (parameter for parameter in command.params if isinstance(parameter, click.Option))
    named = {max(option.opts, key=len).lstrip("-"): option for option in options}
    return {key: option for key, option in named.items() if key not in ("help", "config")}


def read(path: Path, command: click.Command) -> ConfigFile:
    """Return a file's settings; raise ConfigError with the file, the line, the key and what to write instead."""
    text = paths.read_text(path, MAX_SIZE, "a file of settings")
    try:
        told = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _broken(path, text, error) from None
    except RecursionError:
        raise ConfigError(f"{path}: brackets within brackets, too many: write lines like key = value") from None
    known, written_at = keys(command), _lines(text)
    values, lines = {}, {}
    for written, value in told.items():
        key = written.replace("_", "-")
        line = written_at.get(written, 1)
        if key not in known:
            raise ConfigError(f"{path}:{line}: unknown key {written}{_advice(written, value, known)}")
        option = known[key]
        if (name := option.name or key) in values:
            raise ConfigError(f"{path}:{line}: {key} is given twice: remove one")
        several = [_checked(one, key, option, f"{path}:{line}") for one in _as_list(value, option)]
        values[name], lines[name] = several if option.multiple else several[0], line
    return ConfigFile(path, values, lines)


def _as_list(value: object, option: click.Option) -> list[object]:
    return value if option.multiple and isinstance(value, list) else [value]


def _lines(text: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        match = re.match(r"""\s*\[?\s*["']?([\w-]+)["']?\s*(?:=|\]|\.)""", line)
        if match:
            found.setdefault(match[1], number)
    return found


def _broken(path: Path, text: str, error: tomllib.TOMLDecodeError) -> ConfigError:
    """What the parser says, and the commonest reason for it: a text without quotes."""
    lines = text.splitlines()
    place = re.search(r"\(at line (\d+), column \d+\)", str(error))
    line = int(place[1]) if place else len(lines) or 1
    content = lines[line - 1].strip() if 0 < line <= len(lines) else ""
    said = re.sub(r" \(at .*\)$", "", str(error))
    key, equals, value = (part.strip() for part in content.partition("="))
    if said.startswith("Cannot overwrite"):
        hint = f"{key} is given twice: remove one"
    elif equals and value and value[0] not in "\"'[{+-.0123456789" and value not in ("true", "false"):
        hint = f'{said}: texts need quotes, like {key} = "{value}"'
    else:
        hint = f'{said}: write lines like key = value, texts in quotes: bind = "tcp://127.0.0.1:7071"'
    return ConfigError(f"{path}:{line}: {hint}")


def _advice(written: str, value: object, known: Mapping[str, click.Option]) -> str:
    if isinstance(value, dict):
        inside = next(iter(value), "key")
        return f": there are no tables in this file, write {inside} = ... without [{written}]"
    close = get_close_matches(written.replace("_", "-").lower(), known, n=1, cutoff=0.5)
    return f": did you mean {close[0]}?" if close else f": the keys are {', '.join(sorted(known))}"


def _checked(value: object, key: str, option: click.Option, where: str) -> Any:
    """Convert a value by the flag's own type, if TOML's type fits: "4" is no number."""
    kind, types, example = _kind(option)
    if type(value) not in types:
        raise ConfigError(f"{where}: {key} must be {kind}, not {_shown(value)}: write {key} = {example}")
    try:
        return option.type.convert(value, None, None)
    except click.BadParameter as error:
        said = f"{key} = {_shown(value)} cannot be: {error.message.rstrip('.')}"
        raise ConfigError(f"{where}: {said}; for example {key} = {example}") from None


def _kind(option: click.Option) -> tuple[str, tuple[type, ...], str]:
    """What TOML value an option takes, in words and as types, and an example of one."""
    default = option.default[0] if option.multiple and isinstance(option.default, list) else option.default
    default = default if isinstance(default, int | float | str) else None
    if option.is_flag:
        return "true or false", (bool,), "true"
    if isinstance(option.type, click.types.IntParamType):
        return "a whole number", (int,), str(4 if default is None else default)
    if isinstance(option.type, click.types.FloatParamType):
        return "a number", (int, float), str(0.5 if default is None else default)
    choices = getattr(option.type, "choices", ())
    return "a text", (str,), f'"{default or (choices[0] if choices else option.metavar or "...")}"'


def _shown(value: object) -> str:
    text = json_module.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 40 else text[:37] + "..."


def template(role: str) -> str:
    """Return a file of settings in which every key is explained, shown with its default, and commented out."""
    parts = [f"# Settings of `specmesh {role}`. Flags and SPECMESH_{role.upper()}_* go before what is written here."]
    for key, option in keys(command_of(role)).items():
        if option.hidden:
            continue
        choices = getattr(option.type, "choices", ())
        one_of = f" One of {', '.join(choices)}." if choices and not option.metavar else ""
        words = textwrap.wrap(f"{option.help or ''}{one_of}", 100)
        parts.append("\n".join([*(f"# {line}" for line in words), f"# {key} = {_kind(option)[2]}"]))
    return "\n\n".join(parts) + "\n"
