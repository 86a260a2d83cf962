"""`specmesh config`, and a daemon's settings file: TOML, keys named like the daemon's options.

click applies the order: flags, environment, file, defaults. The file's values are the context's
`default_map`.
"""

import json as json_module
import os
import tomllib
from difflib import get_close_matches
from pathlib import Path

import click
from click.core import ParameterSource

from specmesh import paths
from specmesh.cli.options import FILE, json_option, print_result
from specmesh.core.fields import Json, is_list, is_object
from specmesh.errors import ConfigError, NotThereYet

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
    """Show every setting that the daemon would start with now, as a settings file.

    Defaults are commented out; the others name the file or the variable that they come from.
    """
    ctx = daemon_context(role, path)
    lines: list[str] = []
    settings: Json = {}
    for key, option in keys(ctx.command).items():
        value = ctx.params[str(option.name)]
        source = origin(ctx, option)
        if option.hidden and source is None:
            continue
        if isinstance(value, Path):
            value = str(value)
        lines.append(_line(key, value, source))
        settings[key] = {"value": value, "origin": source or "default"}
    print_result({"settings": settings}, lines, as_json=json)


def _line(key: str, value: object, source: str | None) -> str:
    text = "..."
    if value is not None:
        text = json_module.dumps(value, ensure_ascii=False)
    line = f"{key} = {text}"
    if source is None:
        return f"# {line}"
    return f"{line:<40}  # {source}"


# --- a daemon's settings and their origins


def daemon_context(role: str, path: Path | None = None) -> click.Context:
    """Return the context in which the daemon's own command would run now.

    Raise ConfigError if a setting is wrong.
    """
    root = click.get_current_context().find_root()
    assert isinstance(root.command, click.Group)
    given = [] if path is None else ["--config", str(path)]
    command = root.command.get_command(root, role)
    assert command is not None, "both daemons have a command"
    try:
        return command.make_context(role, given, parent=root)
    except click.BadParameter as error:
        raise wrong_setting(error) or error from None


def keys(command: click.Command) -> dict[str, click.Option]:
    """Return the options that a command's settings file may hold, by their keys."""
    found: dict[str, click.Option] = {}
    for option in command.params:
        name = str(option.name)
        if isinstance(option, click.Option) and name not in ("help", "config"):
            found[name.replace("_", "-")] = option
    return found


def origin(ctx: click.Context, option: click.Parameter) -> str | None:
    """Return the file or the variable that a parameter's value comes from.

    Return None for a value of the command line, or a default.
    """
    name = str(option.name)
    source = ctx.get_parameter_source(name)
    if source is ParameterSource.DEFAULT_MAP:
        return str(ctx.params["config"])
    if source is not ParameterSource.ENVIRONMENT:
        return None
    if isinstance(option.envvar, str):
        return option.envvar
    return f"{ctx.auto_envvar_prefix}_{name.upper()}"


def wrong_setting(error: click.BadParameter) -> ConfigError | None:
    """Return click's error as one of a file or a variable, None if the value was a flag's."""
    if error.ctx is None or error.param is None:
        return None
    source = origin(error.ctx, error.param)
    return None if source is None else ConfigError(f"{source}: {error.format_message()}")


# --- a daemon's command


def managed() -> bool:
    """Return True under a service manager, which starts daemons before their needs are met."""
    return any(os.environ.get(name) for name in ("NOTIFY_SOCKET", "SPECMESH_LAUNCHD"))


class DaemonCommand(click.Command):
    """A daemon's command. One that waits does so for its file of settings, too."""

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: object,
    ) -> click.Context:
        """Return the context with all settings. Raises NotThereYet without their file."""
        given = list(args)  # click empties the other
        try:
            return super().make_context(info_name, args, parent, **extra)
        except NotThereYet:
            runs = parent is not None and parent.invoked_subcommand == info_name
            if not runs or not (managed() or self._waits(info_name, given, parent)):
                raise
        # Not imported earlier: few commands wait.
        from specmesh import logs
        from specmesh.daemons.runtime.notifier import Notifier
        from specmesh.daemons.runtime.patience import Patience

        logs.configure("info")
        made = super().make_context
        patience = Patience(Notifier(), lambda: False, waits=True)
        return patience.until_there(lambda: made(info_name, list(given), parent, **extra))

    def _waits(self, info_name: str | None, given: list[str], parent: click.Context | None) -> bool:
        """Return the value of --wait, which needs no file."""
        looks = super().make_context(info_name, list(given), parent, resilient_parsing=True)
        return bool(looks.params["wait"])


# --- the file


def _load(ctx: click.Context, _: click.Parameter, path: Path | None) -> Path | None:
    """Read the given settings file, else the first one at a usual place."""
    if ctx.resilient_parsing:
        return path
    if path is not None:
        paths.check_there(path, "--config")
    path = path or _usual_file(str(ctx.info_name))
    if path is not None:
        ctx.default_map = read(path, ctx.command)
    return path


def _usual_file(role: str) -> Path | None:
    for folder in paths.config_folders():
        path = folder / f"{role}.toml"
        if path.is_file():
            return path
    return None


config_option = click.option(
    "--config",
    type=FILE,
    metavar="FILE",
    is_eager=True,
    callback=_load,
    help="Settings file in TOML, keys named like these flags "
    "(default: the user's, then the system's; see `config`).",
)


def read(path: Path, command: click.Command) -> dict[str, object]:
    """Return a file's settings by parameter, as texts, which click then checks like flags.

    Raise ConfigError with the file, the fault and the remedy.
    """
    text = paths.read_text(path, MAX_SIZE, "a file of settings")
    try:
        settings = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        hint = 'write lines like key = value, texts in quotes: bind = "tcp://127.0.0.1:7071"'
        raise ConfigError(f"{path}: {error}", hint) from None
    options = keys(command)
    values: dict[str, object] = {}
    for key, value in settings.items():
        if key == "vllm" and is_object(value):  # settings of the proposer beside vLLM
            continue
        if key not in options:
            hint = f"see `specmesh config show {command.name}`"
            for close in get_close_matches(key, options, n=1):
                hint = f"did you mean {close}?"
            raise ConfigError(f"{path}: unknown key {key}", hint)
        values[str(options[key].name)] = _texts(options[key], value)
    return values


def _texts(option: click.Option, value: object) -> object:
    if not option.multiple:
        return str(value)
    if is_list(value):
        return list(map(str, value))
    return [str(value)]
