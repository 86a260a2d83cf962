"""The daemons as services of systemd or launchd, rendered from the templates in systemd/ and launchd/."""

import getpass
import grp
import os
import plistlib
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from importlib import resources
from pathlib import Path
from xml.sax.saxutils import escape

import specmesh
from specmesh.errors import ConfigError, EngineError
from specmesh.paths import config_folders, write_whole

Command = tuple[str, ...]
"""A program and its arguments; -PROGRAM may fail, as in units."""


class Scope(StrEnum):
    """The user's that is logged in, or the machine's own."""

    USER = "user"
    SYSTEM = "system"


@dataclass(frozen=True, slots=True)
class File:
    """A file to write. kept: it holds what a person may have changed, so it is written only where there is none."""

    path: Path
    text: str
    kept: bool = False


@dataclass(frozen=True, slots=True)
class Service:
    """A daemon as a service.

    files: the unit or job first, the settings second. commands: what each `specmesh service` command runs; removed:
    after an uninstall.
    """

    name: str
    files: tuple[File, ...]
    commands: Mapping[str, tuple[Command, ...]]


@dataclass(frozen=True, slots=True)
class ServiceInstaller:
    """Carries a plan out. dry: only says what it would do."""

    say: Callable[[str], None]
    dry: bool = False

    def install(self, service: Service) -> None:
        """Write the files, and tell the manager, also where they are as they were: it may not have heard the last time.

        Raises ConfigError where something cannot be written, EngineError where the manager refuses.
        """
        for file in service.files:
            if not (file.kept and file.path.exists()):
                self._write(file)
        self.run(service.commands["install"])

    def uninstall(self, service: Service) -> None:
        """Stop it and remove its files; what is not there is no error."""
        self.run(service.commands["uninstall"])
        for file in service.files:
            self.say(f"remove {file.path}")
            with _told(file.path):
                if not self.dry:
                    file.path.unlink(missing_ok=True)
        if not self.dry:
            with suppress(OSError):  # the other daemon's settings, or keys, lie there
                service.files[1].path.parent.rmdir()
        self.run(service.commands["removed"])

    def run(self, commands: Sequence[Command]) -> None:
        for program, *arguments in commands:
            command = program.removeprefix("-"), *arguments
            self.say("$ " + " ".join(command))
            if self.dry:
                continue
            try:
                done = subprocess.run(command, check=False, capture_output=True, text=True)  # noqa: S603 - our own
            except FileNotFoundError:
                raise ConfigError(f"{command[0]} is not here: services need systemd or launchd") from None
            why = done.stderr.strip() or done.stdout.strip()
            if done.returncode and "Failed to connect to bus" in why:
                raise EngineError(
                    "there is no systemd for this user here (no login session, or a container): log in as this user, "
                    "use --system, or start the daemon by hand: `specmesh service install --dry-run` shows how"
                )
            if done.returncode and not program.startswith("-"):
                raise EngineError(f"{' '.join(command)} failed: {why}")
            if done.returncode:
                self.say(f"  it said: {why}")

    def _write(self, file: File) -> None:
        self.say(f"write {file.path}")
        if self.dry:
            self.say(file.text)
            return
        with _told(file.path):
            file.path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(file.path, file.text.encode(), 0o644)  # the service's own user reads it, whatever root's umask


@contextmanager
def _told(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(f"{path} cannot be changed ({error.strerror}): --system needs root, use sudo") from None


TEMPLATES = resources.files("specmesh.systemd")

_HIDDEN = ("/home/", "/root/", "/run/user/")  # by ProtectHome
_GPU_GROUPS = {"render", "video"}


def systemd_service(role: str, scope: Scope, settings: str) -> Service:
    """A daemon as a unit; `settings` is the file of settings to begin with."""
    name = f"specmesh-{role}"
    system = scope is Scope.SYSTEM
    config = (Path("/etc/specmesh") if system else config_folders()[0]) / f"{role}.toml"
    units = Path("/etc/systemd/system") if system else Path.home() / ".config/systemd/user"
    files = [File(units / f"{name}.service", unit(role, scope, config)), File(config, settings, kept=True)]
    prepare: tuple[Command, ...] = ()
    if system:  # its user stays, and its folders: models and caches may be large
        users = File(Path("/etc/sysusers.d/specmesh.conf"), (TEMPLATES / "sysusers.conf").read_text(encoding="utf-8"))
        files.append(users)
        prepare = (("systemd-sysusers", str(users.path)),)

    def control(*words: str, program: str = "systemctl") -> Command:
        return (program, *(() if system else ("--user",)), *words)

    forgiven = control("reset-failed", name, program="-systemctl")  # a person's starts count in StartLimitBurst too
    return Service(
        name,
        tuple(files),
        {
            "install": (*prepare, control("daemon-reload"), control("enable", name)),
            "uninstall": (
                control("stop", name, program="-systemctl"),
                forgiven,
                control("disable", name, program="-systemctl"),
            ),
            "removed": (control("daemon-reload", program="-systemctl"),),
            "start": (forgiven, control("start", name)),
            "restart": (forgiven, control("restart", name)),
            "stop": (control("stop", name),),
            "status": (control("status", "--no-pager", name),),
            "logs": (control("--unit", name, "--no-pager", "--lines", "200", program="journalctl"),),
        },
    )


def unit(role: str, scope: Scope, config: Path) -> str:
    values = {
        "ROLE": role,
        "COMMAND": f"{quoted(sys.executable, program=True)} -P -m specmesh",
        "CONFIG": str(config),
        "CONFIG_ARGUMENT": quoted(str(config)),
        "HOME": _protect_home(),
        "GROUPS": " ".join(sorted(_GPU_GROUPS & {group.gr_name for group in grp.getgrall()})),
    }
    text = (TEMPLATES / f"{scope}.service").read_text(encoding="utf-8")
    rendered = re.sub(r"@([A-Z_]+)@", lambda found: values[found[1]], text)
    return rendered.replace("SupplementaryGroups=\n", "")


def quoted(argument: str, program: bool = False) -> str:
    """Quote an argument for ExecStart, see systemd.service(5). In the first word systemd expands no variables."""
    plain = argument.replace("%", "%%").replace("$", "$" if program else "$$")
    if re.fullmatch(r"[\w@+=:,./%$-]+", plain):
        return plain
    return '"' + plain.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _protect_home() -> str:
    """`yes`, or where Python itself lies in a home: nothing of homes but Python."""
    source = Path(specmesh.__file__).resolve().parents[1]  # in a checkout of its own, where it is installed editable
    needed = dict.fromkeys([sys.prefix, sys.base_prefix, str(Path(sys.executable).resolve().parents[1]), str(source)])
    inside = [quoted(path.replace(":", "\\:"), program=True) for path in needed if path.startswith(_HIDDEN)]
    return f"tmpfs\nBindReadOnlyPaths={' '.join(inside)}" if inside else "yes"


TEMPLATE = resources.files("specmesh.launchd") / "job.plist"

_NOT_IN = {Scope.USER: "UserName", Scope.SYSTEM: "LimitLoadToSessionType"}  # for the other scope only

_WAIT = 'n=0; while launchctl print "$0" >/dev/null 2>&1 && [ $n -lt 175 ]; do sleep 0.2; n=$((n + 1)); done'
"""bootout returns before the job has ended, and until then bootstrap fails: ExitTimeOut and some seconds are enough."""


def launchd_service(role: str, scope: Scope, settings: str) -> Service:
    """A daemon as a LaunchAgent or LaunchDaemon; `settings` is the file of settings to begin with."""
    system = scope is Scope.SYSTEM
    label = f"org.specmesh.{role}"
    where = "system" if system else _user_domain(label)
    home = Path("/") if system else Path.home()
    jobs = home / "Library" / ("LaunchDaemons" if system else "LaunchAgents")
    logs = home / "Library/Logs/specmesh"
    config = config_folders()[int(system)] / f"{role}.toml"
    job, log = jobs / f"{label}.plist", logs / f"{role}.log"
    ended: tuple[Command, ...] = (
        ("-launchctl", "bootout", f"{where}/{label}"),
        ("-sh", "-c", _WAIT, f"{where}/{label}"),
    )
    begun: tuple[Command, ...] = (*ended, ("launchctl", "bootstrap", where, str(job)))
    return Service(
        label,
        (File(job, plist(role, scope, config, logs)), File(config, settings, kept=True)),
        {
            "install": (("mkdir", "-p", str(logs)),),
            "uninstall": ended,
            "removed": (),
            "start": begun,
            "restart": begun,
            "stop": (("launchctl", "bootout", f"{where}/{label}"),),
            "status": (("launchctl", "print", f"{where}/{label}"),),
            "logs": (("tail", "-n", "200", str(log)),),
        },
    )


def plist(role: str, scope: Scope, config: Path, logs: Path) -> str:
    values = {
        "ROLE": role,
        "LABEL": f"org.specmesh.{role}",
        "PYTHON": sys.executable,
        "CONFIG": str(config),
        "LOGS": str(logs),
        "USER": os.environ.get("SUDO_USER") or getpass.getuser(),
    }
    text = TEMPLATE.read_text(encoding="utf-8")
    job = plistlib.loads(re.sub(r"@([A-Z]+)@", lambda found: escape(values[found[1]]), text).encode())
    del job[_NOT_IN[scope]]
    return plistlib.dumps(job, sort_keys=False).decode()


def _user_domain(label: str) -> str:
    """Where the job is loaded, else where it can be: `gui` (at the screen) and `user` (SSH) do not see each other."""
    domains = [f"{kind}/{os.getuid()}" for kind in ("gui", "user")]
    loaded = [domain for domain in domains if _launchctl("print", f"{domain}/{label}")]
    there = [domain for domain in domains if _launchctl("print", domain)]
    return [*loaded, *there, *domains][0]


def _launchctl(*words: str) -> bool:
    return subprocess.run(["launchctl", *words], capture_output=True, check=False).returncode == 0  # noqa: S603, S607
