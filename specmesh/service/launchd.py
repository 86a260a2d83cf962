"""The daemons as launchd jobs, rendered from the templates in launchd/."""

import getpass
import os
import plistlib
import re
import subprocess
import sys
from importlib import resources
from pathlib import Path
from xml.sax.saxutils import escape

from specmesh.paths import config_folders
from specmesh.service import Command, File, Scope, Service

TEMPLATE = resources.files("specmesh.launchd") / "job.plist"

_NOT_IN = {Scope.USER: "UserName", Scope.SYSTEM: "LimitLoadToSessionType"}  # for the other scope only

_WAIT = 'n=0; while launchctl print "$0" >/dev/null 2>&1 && [ $n -lt 175 ]; do sleep 0.2; n=$((n + 1)); done'
"""bootout returns before the job has ended, and until then bootstrap fails: ExitTimeOut and some seconds are enough."""


def launchd_service(role: str, scope: Scope, settings: str, domain: str | None = None) -> Service:
    """A daemon as a LaunchAgent or LaunchDaemon. settings: initial file; domain: launchd's, such as gui/501."""
    system = scope is Scope.SYSTEM
    label, other = f"org.specmesh.{role}", "drafter" if role == "verifier" else "verifier"
    where = domain or ("system" if system else _user_domain(label))
    home = Path("/") if system else Path.home()
    jobs = home / "Library" / ("LaunchDaemons" if system else "LaunchAgents")
    logs = home / "Library/Logs/specmesh"
    config = config_folders()[int(system)] / f"{role}.toml"
    job, log = jobs / f"{label}.plist", logs / f"{role}.log"
    bootout: Command = ("launchctl", "bootout", f"{where}/{label}")
    ended: tuple[Command, ...] = (bootout, ("sh", "-c", _WAIT, f"{where}/{label}"))
    begun: tuple[Command, ...] = (("launchctl", "bootstrap", where, str(job)),)
    return Service(
        name=label,
        files=(File(job, plist(role, scope, config, logs)), File(config, settings, kept=True)),
        shared=(logs,),
        other=jobs / f"org.specmesh.{other}.plist",
        prepare=(("mkdir", "-p", str(logs)),),
        unload=ended,
        uninstalled=ended,
        start=begun,
        restart=begun,
        stop=(bootout,),
        status=("launchctl", "print", f"{where}/{label}"),
        logs=("sh", "-c", 'cat "$0.1" "$0" 2>/dev/null | tail -n 200', str(log)),
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
