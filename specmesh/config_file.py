"""Settings of a daemon in a file: TOML, one file per daemon, keys named as the flags.

A flag beats the environment (SPECMESH_VERIFIER_BIND), which beats the file, which beats the default. click does that
by itself once the file's values are its `default_map`; what is here finds the file and checks every value while it is
known on which line it stands.
"""

import re
import sys
import textwrap
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import click
from platformdirs import user_config_path

from specmesh.errors import ConfigError

MAX_SIZE = 2**20
"""Bytes of a file of settings; a larger one is something else."""

_TYPES = {"true or false": (bool,), "a whole number": (int,), "a number": (int, float), "a text": (str,)}
_NO_KEYS = ("help", "config")
"""Options that cannot stand in a file."""


def config_folders() -> list[Path]:
    """Where a file of settings is looked for: the user's folder, then the system's."""
    system = Path("/Library/Application Support/specmesh" if sys.platform == "darwin" else "/etc/specmesh")
    return [user_config_path("specmesh"), system]


def find(role: str) -> Path | None:
    """The file of settings for `specmesh ROLE` that holds where none was named; None where there is none."""
    candidates = [folder / f"{role}.toml" for folder in config_folders()]
    return next((path for path in candidates if path.is_file()), None)


def keys(command: click.Command) -> dict[str, click.Option]:
    """The keys that a command's file may hold, and the flags they stand for."""
    options = [parameter for parameter in command.params if isinstance(parameter, click.Option)]
    return {_key(option): option for option in options if _key(option) not in _NO_KEYS}


def read(path: Path, command: click.Command) -> "ConfigFile":
    """A file's settings, checked; raises ConfigError with the file, the line, the key and what to write instead."""
    return parse(path, _text(path), command)


def parse(path: Path, text: str, command: click.Command) -> "ConfigFile":
    """The same of a text; `path` is for the errors."""
    try:
        told = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _broken(path, text, error) from None
    except RecursionError:
        raise ConfigError(f"{path}: brackets within brackets, too many: write lines like key = value") from None
    known, lines = keys(command), _lines(text)
    values: dict[str, Any] = {}
    for written, value in told.items():
        key = written.replace("_", "-")
        where = f"{path}:{lines.get(written, 1)}"
        if key not in known:
            raise ConfigError(f"{where}: unknown key {written}{_advice(written, value, known)}")
        if (name := known[key].name or key) in values:
            raise ConfigError(f"{where}: {key} is given twice: remove one")
        values[name] = _checked(value, key, known[key], where)
    return ConfigFile(path, values, {known[key.replace("_", "-")].name or key: lines.get(key, 1) for key in told})


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """The settings of one file, and the line of each, by the names of the command's parameters."""

    path: Path
    values: Mapping[str, Any]
    lines: Mapping[str, int]


def _key(option: click.Option) -> str:
    return max(option.opts, key=len).lstrip("-")


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_SIZE + 1)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}): name a readable file with --config") from None
    if len(raw) > MAX_SIZE:
        raise ConfigError(f"{path}: longer than {MAX_SIZE} bytes: is this a file of settings?")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}:{line}: not UTF-8: save the file as UTF-8 text") from None


def _lines(text: str) -> dict[str, int]:
    """The line of each key and table."""
    found: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        match = re.match(r"""\s*\[?\s*["']?([\w-]+)["']?\s*(?:=|\]|\.)""", line)
        if match:
            found.setdefault(match[1], number)
    return found


def _broken(path: Path, text: str, error: tomllib.TOMLDecodeError) -> ConfigError:
    """What the parser says, and the commonest reason for it: a text without quotes."""
    place = re.search(r"\(at line (\d+), column \d+\)", str(error))
    line = int(place[1]) if place else len(text.splitlines()) or 1
    content = text.splitlines()[line - 1].strip() if 0 < line <= len(text.splitlines()) else ""
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
    """What an unknown key was probably meant to be."""
    if isinstance(value, dict):
        inside = next(iter(value), "key")
        return f": there are no tables in this file, write {inside} = ... without [{written}]"
    close = get_close_matches(written.replace("_", "-").lower(), known, n=1, cutoff=0.5)
    return f": did you mean {close[0]}?" if close else f": the keys are {', '.join(sorted(known))}"


def _checked(value: object, key: str, option: click.Option, where: str) -> Any:
    """The value, or list of values, as the flag's own type makes it; TOML's types must fit first, so that "4" is no
    number."""
    if option.multiple:
        return [_checked_one(one, key, option, where) for one in (value if isinstance(value, list) else [value])]
    return _checked_one(value, key, option, where)


def _checked_one(value: object, key: str, option: click.Option, where: str) -> Any:
    kind, example = _kind(option)
    if type(value) not in _TYPES[kind]:
        raise ConfigError(f"{where}: {key} must be {kind}, not {_shown(value)}: write {key} = {example}")
    try:
        return option.type.convert(value, None, None)
    except click.BadParameter as error:
        said = f"{key} = {_shown(value)} cannot be: {error.message.rstrip('.')}"
        raise ConfigError(f"{where}: {said}; for example {key} = {example}") from None


def example(option: click.Option) -> str:
    """A value that an option takes, as the command line and the environment take it."""
    return _kind(option)[1].strip('"')


def _kind(option: click.Option) -> tuple[str, str]:
    """What TOML value an option takes, and an example of one."""
    default = option.default[0] if option.multiple and isinstance(option.default, list) else option.default
    default = default if isinstance(default, int | float | str) else None
    if option.is_flag:
        return "true or false", "true"
    if isinstance(option.type, click.types.IntParamType):
        return "a whole number", str(4 if default is None else default)
    if isinstance(option.type, click.types.FloatParamType):
        return "a number", str(0.5 if default is None else default)
    choices = getattr(option.type, "choices", ())
    return "a text", f'"{default or (choices[0] if choices else option.metavar or "...")}"'


def _shown(value: object) -> str:
    """A value as TOML writes it, shortened."""
    text = {True: "true", False: "false"}[value] if isinstance(value, bool) else repr(value)
    text = '"' + text[1:-1] + '"' if isinstance(value, str) else text
    return text if len(text) <= 40 else text[:37] + "..."


def template(role: str, command: click.Command) -> str:
    """A file of settings in which every key is explained, shown with its default, and commented out."""
    parts = [f"# Settings of `specmesh {role}`. Flags and SPECMESH_{role.upper()}_* go before what is written here."]
    for key, option in keys(command).items():
        if option.hidden:
            continue
        choices = getattr(option.type, "choices", ())
        told = [option.help or "", f"One of {', '.join(choices)}." if choices and not option.metavar else ""]
        words = textwrap.wrap(" ".join(part for part in told if part), 100)
        parts.append("\n".join([*(f"# {line}" for line in words), f"# {key} = {_kind(option)[1]}"]))
    return "\n\n".join(parts) + "\n"


def write(path: Path, text: str, *, replace: bool) -> None:
    """Write a file of settings; raises ConfigError where it cannot be, or is there and `replace` is not given."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w" if replace else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise ConfigError(f"{path} is there already: edit it, or replace it with --force") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written ({error.strerror})") from None
