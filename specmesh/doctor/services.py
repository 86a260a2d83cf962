"""Services: whether systemd or launchd has the daemons, and how they fare there."""

import re
import subprocess
import sys
from dataclasses import dataclass

from specmesh.doctor.check import Check, fail, ok, warn
from specmesh.paths import ROLES
from specmesh.service.launchd import launchd_service
from specmesh.service.plan import Command, Scope, Service
from specmesh.service.systemd import systemd_service

GROUP = "services"
PATIENCE = 5.0
"""Seconds that the service manager may take to answer."""


@dataclass(frozen=True, slots=True)
class ServiceFacts:
    """A service that is installed.

    state: active, inactive, failed, activating or unknown. enable, logs: the commands that do so.
    """

    role: str
    scope: Scope
    enabled: bool
    state: str
    enable: str
    logs: str


def checks() -> list[Check]:
    """A check per installed service."""
    darwin = sys.platform == "darwin"
    planned = [
        (role, scope, (launchd_service if darwin else systemd_service)(role, scope, ""))
        for role in ROLES
        for scope in Scope
    ]
    found = [_facts(role, scope, service, darwin=darwin) for role, scope, service in planned if _installed(service)]
    return [judge(facts) for facts in found] or [ok(GROUP, "installed", "none")]


def judge(facts: ServiceFacts) -> Check:
    """One service."""
    name, flag = f"{facts.role} ({facts.scope})", " --system" if facts.scope is Scope.SYSTEM else ""
    start = f"specmesh service start {facts.role}{flag}"
    if facts.state == "failed":
        return fail(GROUP, name, "failed", facts.logs)
    if facts.state == "activating":
        return warn(GROUP, name, "starting, or starting over and over", facts.logs)
    if facts.state == "unknown":
        return warn(GROUP, name, "the service manager does not tell", f"specmesh service status {facts.role}{flag}")
    if facts.state != "active":
        return warn(GROUP, name, f"installed, {facts.state}", start)
    if not facts.enabled:
        return warn(GROUP, name, "runs, and will not start by itself", facts.enable)
    return ok(GROUP, name, "enabled, active")


def parse_systemctl(text: str) -> tuple[bool, str]:
    """(enabled, state) out of `systemctl show`."""
    values = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    state = values.get("ActiveState", "unknown")
    return values.get("UnitFileState") == "enabled", {"reloading": "active", "deactivating": "inactive"}.get(
        state, state
    )


def parse_launchctl(text: str) -> tuple[bool, str]:
    """(enabled, state) out of `launchctl print`; a job that ended badly and is not running has failed."""
    state = re.search(r"^\s*state = (.+)$", text, re.MULTILINE)
    code = re.search(r"^\s*last exit code = (\d+)", text, re.MULTILINE)
    if state is None:
        return True, "unknown"
    if state[1] == "running":
        return True, "active"
    return True, "failed" if code is not None and int(code[1]) else "inactive"


def _installed(service: Service) -> bool:
    return service.files[0].path.exists()


def _facts(role: str, scope: Scope, service: Service, *, darwin: bool) -> ServiceFacts:
    control = ("systemctl",) if scope is Scope.SYSTEM else ("systemctl", "--user")
    if darwin:
        told = _said(service.status)
        enabled, state = (False, "inactive") if told is None else parse_launchctl(told)
        enable = " ".join(service.start[-1])
    else:
        told = _said((*control, "show", service.name, "--property", "UnitFileState,ActiveState"))
        enabled, state = (False, "unknown") if told is None else parse_systemctl(told)
        enable = " ".join((*control, "enable", service.name))
    return ServiceFacts(role, scope, enabled, state, enable, " ".join(service.logs))


def _said(command: Command) -> str | None:
    """What a command of the service manager prints; None where it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
