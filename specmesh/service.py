"""The daemons as services of systemd or launchd, rendered from the templates in systemd/ and launchd/."""

import getpass
import grp
import os
import plistlib
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from string import Template
from xml.sax.saxutils import escape

import click

import specmesh
from specmesh.client import printable
from specmesh.errors import ConfigError, EngineError
from specmesh.paths import config_folders, write_whole

NOTICE = 10.0  # seconds between two lines about a start that takes long

SETTINGS = "# Settings of `specmesh {0}`. `specmesh config show {0}` prints all, `specmesh {0} --help` explains them.\n"


@dataclass(frozen=True, slots=True)
class Service:
    """A daemon as a service. file: its unit or property list, which holds `text`. settings: its
    file of settings. commands: what each `specmesh service` command runs, and `removed` after an
    uninstall; -COMMAND may fail. state: the command that prints how far a start is, which may
    wait for long; empty where the manager does not tell."""

    file: Path
    text: str
    settings: Path
    commands: Mapping[str, tuple[str, ...]]
    state: str = ""


def install(service: Service, role: str, dry: bool) -> None:
    """Write its file, and settings where there are none, and tell the manager, also where all is as it was: it may not
    have heard the last time. dry: only say what would be done."""
    files = {service.file: service.text}
    if not service.settings.exists():
        files[service.settings] = SETTINGS.format(role)
    for path, text in files.items():
        click.echo(f"write {path}")
        if dry:
            click.echo(text)
        else:
            os.umask(0o022)  # the service's own user reads it, whatever root's umask
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, text.encode(), 0o644)
    run(service.commands["install"], dry)


def uninstall(service: Service, dry: bool) -> None:
    """Stop it and remove its files; what is not there is no error."""
    run(service.commands["uninstall"], dry)
    for path in (service.file, service.settings):
        click.echo(f"remove {path}")
        if not dry:
            path.unlink(missing_ok=True)
    if not dry:
        with suppress(OSError):  # the other daemon's settings, or keys, lie there
            service.settings.parent.rmdir()
    run(service.commands["removed"], dry)


def run(commands: Iterable[str], dry: bool, state: str = "") -> None:
    """Run what a service's command stands for, and say how far it is where that takes long.
    Raises EngineError where the manager refuses, after its own message."""
    for command in commands:
        words = shlex.split(command.removeprefix("-"))
        click.echo(f"$ {shlex.join(words)}")
        if dry:
            continue
        try:
            code = _followed(words, shlex.split(state))
        except FileNotFoundError:
            raise ConfigError(f"{words[0]} is not here: services need systemd or launchd") from None
        if code and not command.startswith("-"):
            hint = "is this user logged in? else use --system" if "--user" in words else "see above"
            raise EngineError(f"{shlex.join(words)} failed", hint)


def _followed(words: list[str], state: list[str]) -> int:
    """Run a command and return its exit code; while it runs on, print the output of `state` now and
    then."""
    with subprocess.Popen(words) as process:  # noqa: S603 - our own arguments
        while True:
            try:
                return process.wait(NOTICE if state else None)
            except subprocess.TimeoutExpired:
                click.echo(f"still at it: {_output(state)}", err=True)


def _output(words: list[str]) -> str:
    """Return the line that a command prints."""
    asked = subprocess.run(words, capture_output=True, text=True, check=False)  # noqa: S603
    return printable(asked.stdout.strip())


TEMPLATES = resources.files("specmesh.systemd")

_HIDDEN = ("/home/", "/root/", "/run/user/")  # by ProtectHome
_GPU_GROUPS = {"render", "video"}


def systemd_service(role: str, system: bool) -> Service:
    name = f"specmesh-{role}"
    config = (Path("/etc/specmesh") if system else config_folders()[0]) / f"{role}.toml"
    units = Path("/etc/systemd/system") if system else Path.home() / ".config/systemd/user"
    control, journal = (
        ("systemctl", "journalctl") if system else ("systemctl --user", "journalctl --user")
    )
    # Its user stays after an uninstall, and its folders: models and caches may be large.
    users = (
        ("""systemd-sysusers --inline 'u specmesh - "specmesh daemons" /var/lib/specmesh'""",)
        if system
        else ()
    )
    commands = {
        "install": (*users, f"{control} daemon-reload", f"{control} enable {name}"),
        "uninstall": (
            f"-{control} stop {name}",
            f"-{control} reset-failed {name}",
            f"-{control} disable {name}",
        ),
        "removed": (f"-{control} daemon-reload",),
        "start": (f"{control} start {name}",),
        "restart": (f"{control} restart {name}",),
        "stop": (f"{control} stop {name}",),
        "status": (f"-{control} status --no-pager {name}",),
        "logs": (f"{journal} --unit {name} --no-pager --lines 200",),
    }
    state = f"{control} show --property StatusText --value {name}"
    return Service(units / f"{name}.service", unit(role, system, config), config, commands, state)


def unit(role: str, system: bool, config: Path) -> str:
    values = {
        "ROLE": role,
        "COMMAND": f"{quoted(sys.executable, program=True)} -P -m specmesh",
        "CONFIG": str(config),
        "CONFIG_ARGUMENT": quoted(str(config)),
        "HOME": _protect_home(),
        "GROUPS": " ".join(sorted(_GPU_GROUPS & {group.gr_name for group in grp.getgrall()})),
    }
    template = TEMPLATES / ("system.service" if system else "user.service")
    return Template(template.read_text(encoding="utf-8")).substitute(values)


def quoted(argument: str, program: bool = False) -> str:
    """Quote an argument for ExecStart, see systemd.service(5). In the first word systemd expands no variables."""
    plain = argument.replace("%", "%%").replace("$", "$" if program else "$$")
    if re.fullmatch(r"[\w@+=:,./%$-]+", plain):
        return plain
    return '"' + plain.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _protect_home() -> str:
    """`yes`, or where Python itself lies in a home: nothing of homes but Python."""
    source = (
        Path(specmesh.__file__).resolve().parents[1]
    )  # in a checkout of its own, where it is installed editable
    needed = dict.fromkeys(
        [sys.prefix, sys.base_prefix, str(Path(sys.executable).resolve().parents[1]), str(source)]
    )
    inside = [
        quoted(path.replace(":", "\\:"), program=True)
        for path in needed
        if path.startswith(_HIDDEN)
    ]
    return f"tmpfs\nBindReadOnlyPaths={' '.join(inside)}" if inside else "yes"


_WAIT = 'n=0; while launchctl print "$0" >/dev/null 2>&1 && [ $n -lt 175 ]; do sleep 0.2; n=$((n + 1)); done'
"""bootout returns before the job has ended, and until then bootstrap fails: ExitTimeOut and some seconds are enough."""


def launchd_service(role: str, system: bool) -> Service:
    """A daemon as a LaunchAgent of whoever is logged in at the screen, or as a LaunchDaemon."""
    label = f"org.specmesh.{role}"
    domain = "system" if system else f"gui/{os.getuid()}"
    home = Path("/") if system else Path.home()
    logs = home / "Library/Logs/specmesh"
    config = config_folders()[int(system)] / f"{role}.toml"
    job = home / "Library" / ("LaunchDaemons" if system else "LaunchAgents") / f"{label}.plist"
    bootout = f"launchctl bootout {domain}/{label}"
    ended = (f"-{bootout}", f"-sh -c {shlex.quote(_WAIT)} {domain}/{label}")
    begun = (*ended, f"launchctl bootstrap {domain} {shlex.quote(str(job))}")
    commands = {
        "install": (f"mkdir -p {shlex.quote(str(logs))}",),
        "uninstall": ended,
        "removed": (),
        "start": begun,
        "restart": begun,
        "stop": (bootout,),
        "status": (f"-launchctl print {domain}/{label}",),
        "logs": (f"tail -n 200 {shlex.quote(str(logs / f'{role}.log'))}",),
    }
    return Service(job, plist(role, system, config, logs), config, commands)


def plist(role: str, system: bool, config: Path, logs: Path) -> str:
    values = {
        "ROLE": role,
        "LABEL": f"org.specmesh.{role}",
        "PYTHON": sys.executable,
        "CONFIG": str(config),
        "LOGS": str(logs),
        "USER": os.environ.get("SUDO_USER") or getpass.getuser(),
    }
    template = (resources.files("specmesh.launchd") / "job.plist").read_text(encoding="utf-8")
    escaped = {name: escape(value) for name, value in values.items()}
    job = plistlib.loads(Template(template).substitute(escaped).encode())
    if not system:
        del job["UserName"]
    return plistlib.dumps(job, sort_keys=False).decode()
