"""`specmesh config`, and a daemon's file of settings: TOML, keys named as the daemon's options.

click applies the order (flags, environment, file, defaults): the file's values are the context's `default_map`.
"""

import json as json_module
import tomllib
from difflib import get_close_matches
from pathlib import Path

import click
from click.core import ParameterSource

from specmesh import paths
from specmesh.cli.options import FILE, json_option, print_result
from specmesh.core.fields import Json, is_list
from specmesh.errors import ConfigError

MAX_SIZE = 2**20  # maximum size of a settings file in bytes
ROLE = click.argument("role", type=click.Choice(paths.ROLES))


@click.group()
def config() -> None:
    """Show the settings of a daemon."""


@config.command()
@ROLE
@click.option(
    "--config", "path", type=FILE, metavar="FILE", help="Read this file instead of the usual one."
)
@json_option
def show(role: str, path: Path | None, json: bool) -> None:
    """Show every setting that the daemon would start with now, as a settings file: defaults are commented out, the
    others say where they come from."""
    ctx, lines, settings = daemon_context(role, path), list[str](), Json()
    for key, option in keys(ctx.command).items():
        value, source = ctx.params[str(option.name)], origin(ctx, option)
        if option.hidden and source is None:
            continue
        value = str(value) if isinstance(value, Path) else value
        line = f"{key} = {'...' if value is None else json_module.dumps(value, ensure_ascii=False)}"
        lines.append(f"{line:<40}  # {source}" if source is not None else f"# {line}")
        settings[key] = {"value": value, "origin": source or "default"}
    print_result({"schema_version": 1, "settings": settings}, lines, as_json=json)


# --- a daemon's settings, and where each comes from


def daemon_context(role: str, path: Path | None = None) -> click.Context:
    """Return the context that the daemon's own command would run in now; raise ConfigError where a setting is wrong."""
    root = click.get_current_context().find_root()
    assert isinstance(root.command, click.Group)
    given = ["--config", str(path)] if path is not None else []
    try:
        return root.command.commands[role].make_context(role, given, parent=root)
    except click.BadParameter as error:
        raise wrong_setting(error) or error from None


def keys(command: click.Command) -> dict[str, click.Option]:
    """Return the keys that a command's file may hold: its options' names, without dashes before them."""
    options = (parameter for parameter in command.params if isinstance(parameter, click.Option))
    return {
        str(option.name).replace("_", "-"): option
        for option in options
        if option.name not in ("help", "config")
    }


def origin(ctx: click.Context, option: click.Parameter) -> str | None:
    """Return where a parameter's value came from: a file or a variable; None: the command line, or a default."""
    name = str(option.name)
    source = ctx.get_parameter_source(name)
    if source is ParameterSource.DEFAULT_MAP:
        return str(ctx.params["config"])
    if source is ParameterSource.ENVIRONMENT:
        return (
            option.envvar
            if isinstance(option.envvar, str)
            else f"{ctx.auto_envvar_prefix}_{name.upper()}"
        )
    return None


def wrong_setting(error: click.BadParameter) -> ConfigError | None:
    """Return click's error as one of the file or the variable that the value came from; None: of a flag."""
    where = (
        origin(error.ctx, error.param)
        if error.ctx is not None and error.param is not None
        else None
    )
    return None if where is None else ConfigError(f"{where}: {error.format_message()}")


# --- the file


def _load(ctx: click.Context, _: click.Parameter, value: Path | None) -> Path | None:
    """Take the values of the file that was named, or is at a usual place."""
    usual = (folder / f"{ctx.info_name}.toml" for folder in paths.config_folders())
    path = value if value is not None else next((path for path in usual if path.is_file()), None)
    if path is not None:
        ctx.default_map = read(path, ctx.command)
    return path


config_option = click.option(
    "--config",
    type=FILE,
    metavar="FILE",
    is_eager=True,
    callback=_load,
    help="Settings file in TOML, keys named like these flags (default: the user's, then the system's; see `config`).",
)


def read(path: Path, command: click.Command) -> dict[str, object]:
    """Return a file's settings by parameter, as texts, which click checks as it does flags. Raises ConfigError with the
    file, what is wrong, and what to write instead."""
    text = paths.read_text(path, MAX_SIZE, "a file of settings")
    try:
        settings = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        hint = 'write lines like key = value, texts in quotes: bind = "tcp://127.0.0.1:7071"'
        raise ConfigError(f"{path}: {error}", hint) from None
    known, values = keys(command), dict[str, object]()
    for key, value in settings.items():
        if key not in known:
            close = get_close_matches(key, known, n=1)
            hint = (
                f"did you mean {close[0]}?"
                if close
                else f"see `specmesh config show {command.name}`"
            )
            raise ConfigError(f"{path}: unknown key {key}", hint)
        several = value if is_list(value) else [value]
        values[str(known[key].name)] = (
            [str(one) for one in several] if known[key].multiple else str(value)
        )
    return values
