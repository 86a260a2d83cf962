"""`specmesh doctor`: what is said of addresses."""

import pytest

from specmesh.doctor import judge_reach

LAN = {"error": None, "attached": None, "macos": False}


@pytest.mark.parametrize(
    ("changes", "status", "found", "fix"),
    [
        ({}, "ok", "answers", None),
        ({"attached": True}, "ok", "answers", None),
        ({"attached": False}, "warn", "has no verifier", "specmesh stats"),
        ({"attached": False, "macos": True}, "warn", "has no verifier", "Local Network"),
        (
            {"error": ConnectionRefusedError(111, "Connection refused")},
            "fail",
            "Connection refused",
            "specmesh verifier --bind",
        ),
        ({"error": TimeoutError("timed out")}, "fail", "timed out", "firewall"),
        ({"error": OSError(113, "no route")}, "fail", "no route", "VPN"),
        ({"error": OSError(65, "no route"), "macos": True}, "fail", "errno 65", "Security > Local Network"),
        ({"error": ValueError("it is no address")}, "fail", "is no address", "config show drafter"),
    ],
)
@pytest.mark.fault("E4.49")
def test_reach(changes: dict[str, object], status: str, found: str, fix: str | None):
    """Each way that a connection may end, told apart."""
    check = judge_reach("tcp://192.168.1.5:7071", **(LAN | changes))  # type: ignore[arg-type]
    assert check.status == status
    assert found in check.found
    assert (fix is None and check.fix is None) or (fix is not None and fix in str(check.fix))
