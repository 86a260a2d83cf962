"""What is said of services."""

import pytest

from specmesh.doctor.machine import judge_service, parse_systemctl
from specmesh.service import Scope

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
