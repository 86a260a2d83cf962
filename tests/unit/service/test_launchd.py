"""Property lists as launchd would read them."""

import plistlib
from pathlib import Path
from typing import Any

import pytest

from specmesh.service import Scope, plist

# launchd.plist(5): the keys that may be used, and the type of each value
KEYS: dict[str, type | tuple[type, ...]] = {
    "Label": str,
    "ProgramArguments": list,
    "EnvironmentVariables": dict,
    "RunAtLoad": bool,
    "KeepAlive": dict,
    "ThrottleInterval": int,
    "ExitTimeOut": int,
    "ProcessType": str,
    "Umask": int,
    "SoftResourceLimits": dict,
    "HardResourceLimits": dict,
    "LimitLoadToSessionType": list,
    "StandardOutPath": str,
    "StandardErrorPath": str,
    "UserName": str,
}


def parsed(role: str, scope: Scope, config: str = "/Users/ada/x.toml") -> dict[str, Any]:
    text = plist(role, scope, Path(config), Path("/Users/ada/Library/Logs/specmesh"))
    return plistlib.loads(text.encode())  # type: ignore[no-any-return]


@pytest.mark.parametrize("role", ["verifier", "drafter"])
@pytest.mark.parametrize("scope", Scope)
@pytest.mark.fault("E8.94")
def test_keys_and_types(role: str, scope: Scope):
    job = parsed(role, scope)
    for key, value in job.items():
        assert isinstance(value, KEYS[key]), key
    assert job["Label"] == f"org.specmesh.{role}"
    assert role in job["ProgramArguments"]
    assert "@" not in plistlib.dumps(job).decode().replace("@ada", "")
    assert job["ProcessType"] == "Interactive"
    assert job["KeepAlive"] == {"SuccessfulExit": False}
    assert job["EnvironmentVariables"]["SPECMESH_LAUNCHD"] == "1"
    assert ("UserName" in job) == (scope is Scope.SYSTEM)
    assert ("LimitLoadToSessionType" in job) == (scope is Scope.USER)
    assert job["Umask"] == 0o77
    log = job["ProgramArguments"][job["ProgramArguments"].index("--log-file") + 1]
    assert job["StandardErrorPath"] == job["StandardOutPath"] == log, "what comes before the daemon logs is there too"


def test_any_path_survives():
    config = '/Users/ada/Büro & <Co> "x"/drafter.toml'
    assert config in parsed("drafter", Scope.USER, config)["ProgramArguments"]
