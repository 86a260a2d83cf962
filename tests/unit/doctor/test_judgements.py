"""What is said of addresses, links and services."""

import socket

import pytest

from specmesh.doctor.machine import judge_service, parse_systemctl
from specmesh.doctor.mesh import judge_reach, judge_wire
from specmesh.security import Way
from specmesh.service import Scope

LAN = {"error": None, "kind": Way.LOCAL, "attached": None, "macos": False}


@pytest.mark.parametrize(
    ("changes", "status", "found", "fix"),
    [
        ({}, "ok", "answers", None),
        ({"attached": True}, "ok", "answers", None),
        ({"attached": False}, "warn", "has no verifier", "specmesh stats"),
        ({"attached": False, "macos": True}, "warn", "has no verifier", "Local Network"),
        ({"attached": False, "macos": True, "kind": Way.TAILNET}, "warn", "has no verifier", "specmesh stats"),
        ({"error": ConnectionRefusedError()}, "fail", "refuses", "specmesh verifier --bind"),
        ({"error": TimeoutError()}, "fail", "does not answer", "firewall"),
        ({"error": OSError(113, "no route")}, "fail", "no route", "VPN"),
        ({"error": OSError(65, "no route")}, "fail", "no route", "VPN"),
        ({"error": OSError(65, "no route"), "macos": True}, "fail", "errno 65", "Security > Local Network"),
        ({"error": OSError(51, "no route"), "macos": True}, "fail", "no route", "VPN"),
        ({"error": OSError(65, "no route"), "macos": True, "kind": Way.ROUTED}, "fail", "no route", "VPN"),
        ({"error": socket.gaierror()}, "fail", "name is not found", "IP address"),
        ({"error": UnicodeError()}, "fail", "is no address", "config show drafter"),
        ({"error": PermissionError(1, "no")}, "fail", "cannot be reached", "nc -vz"),
    ],
)
@pytest.mark.fault("E4.49")
def test_reach(changes: dict[str, object], status: str, found: str, fix: str | None):
    """Each way that a connection may end, told apart."""
    check = judge_reach("tcp://192.168.1.5:7071", **(LAN | changes))  # type: ignore[arg-type]
    assert check.status == status
    assert found in check.found
    assert (fix is None and check.fix is None) or (fix is not None and fix in str(check.fix))


@pytest.mark.parametrize(
    ("way", "status"), [(Way.SAME_MACHINE, None), (Way.TAILNET, "ok"), (Way.LOCAL, "warn"), (Way.ROUTED, "warn")]
)
def test_wire(way: Way, status: str | None):
    """Beyond this machine the wire is unencrypted without keys, except within a tailnet."""
    check = judge_wire("verifier", "tcp://somewhere:7071", way, encrypted=False)
    assert (check.status if check is not None else None) == status
    keyed = judge_wire("verifier", "tcp://somewhere:7071", way, encrypted=True)
    assert keyed is not None
    assert (keyed.status, "allowed keys" in keyed.found) == ("ok", True)


# --- services

ENABLE, LOGS = "systemctl --user enable x", "journalctl --user --unit x"


@pytest.mark.parametrize(
    ("state", "scope", "enable", "status", "fix"),
    [
        ("active", Scope.USER, None, "ok", None),
        ("active", Scope.USER, ENABLE, "warn", ENABLE),
        ("inactive", Scope.USER, None, "warn", "specmesh service start verifier"),
        ("inactive", Scope.SYSTEM, None, "warn", "specmesh service start verifier --system"),
        ("activating", Scope.USER, None, "warn", LOGS),
        ("failed", Scope.USER, None, "fail", LOGS),
        ("unknown", Scope.USER, None, "warn", "specmesh service status verifier"),
    ],
)
def test_service(state: str, scope: Scope, enable: str | None, status: str, fix: str | None):
    """Each state of a service, and what to look at."""
    check = judge_service("verifier", scope, state, enable=enable, logs=LOGS)
    assert (check.status, check.fix) == (status, fix)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("UnitFileState=enabled\nActiveState=active\n", (True, "active")),
        ("UnitFileState=disabled\nActiveState=failed\n", (False, "failed")),
        ("ActiveState=reloading\nUnitFileState=enabled\n", (True, "active")),
        ("ActiveState=deactivating\n", (False, "inactive")),
        ("", (False, "unknown")),
    ],
)
def test_systemctl(text: str, told: tuple[bool, str]):
    """What `systemctl show` prints."""
    assert parse_systemctl(text) == told
