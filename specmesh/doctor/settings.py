"""Files of settings: whether they can be read, and what the daemons would start with."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from specmesh import paths
from specmesh.api.port import parse_port
from specmesh.cli.config import effective, read
from specmesh.doctor.check import Check, fail, ok
from specmesh.errors import BadVariable, ConfigError
from specmesh.paths import ROLES

if TYPE_CHECKING:
    import click

GROUP = "settings"


@dataclass(frozen=True, slots=True)
class FileFacts:
    """A file of settings. keys: how many it sets. error: what is wrong with it, with its line. hidden_by: the file
    that is read in its place."""

    role: str
    path: Path
    keys: int = 0
    error: str | None = None
    hidden_by: Path | None = None


@dataclass(frozen=True, slots=True)
class RoleSettings:
    """What a daemon would start with, by its keys; only of a daemon that has settings at all."""

    role: str
    values: Mapping[str, object]

    def text(self, key: str) -> str:
        """A value as text; empty where it is not set."""
        value = self.values.get(key)
        return "" if value is None else str(value)

    def texts(self, key: str) -> list[str]:
        """The values of a setting that may have several."""
        value = self.values.get(key)
        return [str(one) for one in value] if isinstance(value, list) else [text for text in [self.text(key)] if text]


def in_force(root: "click.Context") -> tuple[list[RoleSettings], list[Check]]:
    """The settings of each daemon for which a file or the environment says something; a failed check for each daemon
    whose environment says something wrong."""
    found: list[RoleSettings] = []
    wrong: list[Check] = []
    for role in ROLES:
        try:
            values = effective(root, role, None)
        except BadVariable as error:
            wrong.append(fail(GROUP, f"{role}'s environment", str(error), f"env | grep {str(error).split('=')[0]}"))
            continue
        except ConfigError:
            continue  # its file's check says so
        if any(origin != "default" for _, origin in values.values()):
            found.append(RoleSettings(role, {key: value for key, (value, _) in values.items()}))
    return found, wrong


def checks(root: "click.Context") -> list[Check]:
    """A check per file."""
    told = [judge_file(facts) for role in ROLES for facts in _files(root, role)]
    return told or [ok(GROUP, "files", "none: flags and defaults hold")]


def ports(roles: Iterable[RoleSettings]) -> list[Check]:
    """A check for each daemon that would open a port, or was given keys."""
    return [judge_port(one) for one in roles if one.text("http") or one.text("api-key-file")]


def judge_port(one: RoleSettings) -> Check:
    """The port of the API, and the file with its keys."""
    name, http, keys = f"{one.role}'s port", one.text("http"), one.text("api-key-file")
    try:
        port = parse_port(http or None, Path(keys) if keys else None)
    except ConfigError as error:
        return fail(GROUP, name, str(error), f"specmesh config show {one.role} --origin")
    assert port is not None, "without --http there are no keys either"
    count = len(port.keys.current)
    return ok(GROUP, name, f"{http}, {count or 'no'} key{'s' * (count != 1)}")


def judge_file(facts: FileFacts) -> Check:
    """A file of settings."""
    name = f"{facts.role}.toml"
    if facts.error is not None:
        place = re.match(r"(.+?):(\d+): ", facts.error)
        edit = f"${{EDITOR:-vi}} +{place[2]} {facts.path}" if place else f"chmod u+r {facts.path}"
        return fail(GROUP, name, facts.error, edit)
    told = f"{facts.path} sets {facts.keys} of the settings"
    return ok(GROUP, name, f"{told}; {facts.hidden_by} goes before it" if facts.hidden_by else told)


def _files(root: "click.Context", role: str) -> list[FileFacts]:
    import click

    assert isinstance(root.command, click.Group)
    found: list[FileFacts] = []
    for path in (folder / f"{role}.toml" for folder in paths.config_folders()):
        if not path.is_file():
            continue
        first = found[0].path if found else None
        try:
            keys = len(read(path, root.command.commands[role]).values)
        except ConfigError as error:
            found.append(FileFacts(role, path, 0, str(error), first))
        else:
            found.append(FileFacts(role, path, keys, None, first))
    return found
