"""`specmesh doctor`: what is said of addresses."""

import pytest

from specmesh.doctor import judge_reach


@pytest.mark.parametrize(
    ("error", "macos", "found", "fix"),
    [
        (None, False, "answers", None),
        (ConnectionRefusedError(111, "Connection refused"), False, "Connection refused", "specmesh verifier --bind"),
        (TimeoutError("timed out"), False, "timed out", "firewall"),
        (OSError(113, "no route"), False, "no route", "VPN"),
        (OSError(65, "no route"), True, "no route", "Security > Local Network"),
        (ValueError("it is no address"), False, "is no address", "config show drafter"),
    ],
)
@pytest.mark.fault("E4.49")
def test_reach(error: Exception | None, macos: bool, found: str, fix: str | None):
    """Each way that a connection may end, told apart."""
    check = judge_reach("tcp://192.168.1.5:7071", error, macos)
    assert check.status == ("ok" if error is None else "fail")
    assert found in check.found
    assert (fix is None and check.fix is None) or (fix is not None and fix in str(check.fix))
