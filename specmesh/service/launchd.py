"""The daemons as launchd jobs, rendered from the templates in launchd/."""

import getpass
import os
import plistlib
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from specmesh.config_file import config_folders
from specmesh.service.plan import File, Scope, Service

TEMPLATES = Path(__file__).parents[1] / "launchd"


def launchd_service(role: str, scope: Scope, settings: str, domain: str | None = None) -> Service:
    """A daemon as a LaunchAgent or LaunchDaemon; `settings` is the file of settings to begin with.

    domain: where launchd keeps it, such as gui/501; None to find out.
    """
    system = scope is Scope.SYSTEM
    where = domain or ("system" if system else _user_domain())
    label, other = f"org.specmesh.{role}", "drafter" if role == "verifier" else "verifier"
    home = Path("/") if system else Path.home()
    jobs = home / "Library" / ("LaunchDaemons" if system else "LaunchAgents")
    logs = home / "Library/Logs/specmesh"
    config = config_folders()[int(system)] / f"{role}.toml"
    job = jobs / f"{label}.plist"
    return Service(
        name=label,
        files=(File(job, plist(role, scope, config, logs)), File(config, settings, kept=True)),
        shared=(logs,),
        other=jobs / f"org.specmesh.{other}.plist",
        empties=(config.parent,),
        installed=(),
        uninstalled=(("launchctl", "bootout", f"{where}/{label}"),),
        start=(("mkdir", "-p", str(logs)), ("launchctl", "bootstrap", where, str(job))),
        stop=(("launchctl", "bootout", f"{where}/{label}"),),
        status=("launchctl", "print", f"{where}/{label}"),
        logs=("tail", "-n", "200", str(logs / f"{role}.log")),
    )


def plist(role: str, scope: Scope, config: Path, logs: Path) -> str:
    """The property list's text."""
    name = "daemon" if scope is Scope.SYSTEM else "agent"
    values = {
        "ROLE": role,
        "LABEL": f"org.specmesh.{role}",
        "PYTHON": sys.executable,
        "CONFIG": str(config),
        "LOGS": str(logs),
        "USER": os.environ.get("SUDO_USER") or getpass.getuser(),
    }
    template = plistlib.loads((TEMPLATES / f"{name}.plist").read_bytes())
    return plistlib.dumps(_filled(template, values), sort_keys=False).decode()


def _filled(value: Any, values: dict[str, str]) -> Any:
    """The template with every text's placeholders replaced; plistlib does the escaping."""
    match value:
        case str():
            return re.sub(r"@([A-Z]+)@", lambda found: values[found[1]], value)
        case list():
            return [_filled(one, values) for one in value]
        case dict():
            return {key: _filled(one, values) for key, one in value.items()}
        case _:
            return value


def _user_domain() -> str:
    """The domain of a user at the screen, or of one who only logs in from elsewhere."""
    told = subprocess.run(["launchctl", "managername"], capture_output=True, text=True, check=False).stdout  # noqa: S607
    return f"{'gui' if told.strip() == 'Aqua' else 'user'}/{os.getuid()}"
