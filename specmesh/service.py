"""The daemons as services of systemd or launchd, by the templates in systemd/ and launchd/."""

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

SETTINGS = (
    "# Settings of `specmesh {0}`. "
    "`specmesh config show {0}` prints all, `specmesh {0} --help` explains them.\n"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """A daemon as a service.

    file, text: its unit or property list.
    settings: its file of settings.
    commands: the commands of each `specmesh service` command, and `removed` after an uninstall.
        -COMMAND may fail.
    state: the command that prints the progress of a long start; empty if the manager has none.
    """

    file: Path
    text: str
    settings: Path
    commands: Mapping[str, tuple[str, ...]]
    state: str = ""


def install(service: Service, role: str, dry: bool) -> None:
    """Write the service's file, and settings if it has none, and reload the manager.

    The manager is reloaded even if nothing has changed: it may have missed the last change.

    dry: only print the commands.
    """
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
    """Stop a service and remove its files; missing ones are no error."""
    run(service.commands["uninstall"], dry)
    for path in (service.file, service.settings):
        click.echo(f"remove {path}")
        if not dry:
            path.unlink(missing_ok=True)
    if not dry:
        with suppress(OSError):  # it has the other daemon's settings, or keys
            service.settings.parent.rmdir()
    run(service.commands["removed"], dry)


def run(commands: Iterable[str], dry: bool, state: str = "") -> None:
    """Run the commands of a service, and print the progress of those that take long.

    Raises EngineError if the manager refuses, after its own message.
    """
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
            hint = "see above"
            if "--user" in words:
                hint = "is this user logged in? else use --system"
            raise EngineError(f"{shlex.join(words)} failed", hint)


def _followed(words: list[str], state: list[str]) -> int:
    """Run a command and return its exit code; print the output of `state` every NOTICE seconds."""
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
    """Return a daemon as a service of systemd: of the system, or of this user."""
    name = f"specmesh-{role}"
    units = Path("/etc/systemd/system")
    user = ""
    if not system:
        units = Path.home() / ".config/systemd/user"
        user = " --user"
    control = f"systemctl{user}"
    config = config_folders()[int(system)] / f"{role}.toml"
    install: tuple[str, ...] = (f"{control} daemon-reload", f"{control} enable {name}")
    if system:
        # Its user stays after an uninstall, and its folders: models and caches may be large.
        account = 'u specmesh - "specmesh daemons" /var/lib/specmesh'
        install = (f"systemd-sysusers --inline '{account}'", *install)
    commands = {
        "install": install,
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
        "logs": (f"journalctl{user} --unit {name} --no-pager --lines 200",),
    }
    return Service(
        file=units / f"{name}.service",
        text=unit(role, system, config),
        settings=config,
        commands=commands,
        state=f"{control} show --property StatusText --value {name}",
    )


def unit(role: str, system: bool, config: Path) -> str:
    """Return the unit file of a daemon."""
    groups = {group.gr_name for group in grp.getgrall()}
    values = {
        "ROLE": role,
        "COMMAND": f"{quoted(sys.executable, program=True)} -P -m specmesh",
        "CONFIG": str(config),
        "CONFIG_ARGUMENT": quoted(str(config)),
        "HOME": _protect_home(),
        "GROUPS": " ".join(sorted(_GPU_GROUPS & groups)),
    }
    template = TEMPLATES / ("system.service" if system else "user.service")
    return Template(template.read_text(encoding="utf-8")).substitute(values)


def quoted(argument: str, program: bool = False) -> str:
    """Quote an argument for ExecStart, see systemd.service(5).

    program: the first word, in which systemd expands no variables.
    """
    plain = argument.replace("%", "%%")
    if not program:
        plain = plain.replace("$", "$$")
    if re.fullmatch(r"[\w@+=:,./%$-]+", plain):
        return plain
    return '"' + plain.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _protect_home() -> str:
    """Return the value of ProtectHome: `yes`, or for a Python in a home, only its folders."""
    source = Path(specmesh.__file__).resolve().parents[1]  # a checkout, if installed editable
    program = Path(sys.executable).resolve().parents[1]
    inside = dict[str, None]()
    for path in (sys.prefix, sys.base_prefix, str(program), str(source)):
        if path.startswith(_HIDDEN):
            inside[quoted(path.replace(":", "\\:"), program=True)] = None
    if not inside:
        return "yes"
    return f"tmpfs\nBindReadOnlyPaths={' '.join(inside)}"


_WAIT = (
    'n=0; while launchctl print "$0" >/dev/null 2>&1 && [ $n -lt 175 ]; '
    "do sleep 0.2; n=$((n + 1)); done"
)
"""A wait for the end of a job.

bootout returns before the job has ended, and until then bootstrap fails. ExitTimeOut and some
seconds are enough.
"""


def launchd_service(role: str, system: bool) -> Service:
    """Return a daemon as a LaunchDaemon, or as a LaunchAgent of the user at the screen."""
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
    return Service(
        file=job,
        text=plist(role, system, config, logs),
        settings=config,
        commands=commands,
    )


def plist(role: str, system: bool, config: Path, logs: Path) -> str:
    """Return the property list of a daemon."""
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
