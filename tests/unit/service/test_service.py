"""Services: installed in a scratch root, units as systemd reads them, property lists as launchd would."""

import configparser
import os
import plistlib
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from specmesh import service
from specmesh.cli import main
from specmesh.cli.config import keys
from specmesh.service import plist, unit

CONFIG = Path("/etc/specmesh/verifier.toml")


def specmesh(*args: object) -> Result:
    return CliRunner().invoke(main, ["service", *map(str, args)])


@pytest.mark.parametrize("flag", ["--user", "--system"])
@pytest.mark.parametrize(
    "command", ["install", "uninstall", "start", "restart", "stop", "status", "logs"]
)
@pytest.mark.parametrize("role", ["verifier", "drafter"])
@pytest.mark.fault("E8.93")
def test_dry_run(
    command: str, role: str, flag: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(
        "platformdirs.user_config_path", lambda name: tmp_path / "home/.config" / name
    )
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    done = specmesh(command, role, flag, "--dry-run")
    assert done.exit_code == 0, done.output
    assert "$ " in done.output
    assert not any(tmp_path.iterdir())


def test_install_under_any_umask(tmp_path: Path):
    """The service's own user reads what root makes."""
    made = service.Service(
        tmp_path / "unit", "", tmp_path / "etc/specmesh/verifier.toml", {"install": ()}
    )
    before = os.umask(0o077)
    try:
        service.install(made, "verifier", dry=False)
    finally:
        os.umask(before)
    modes = [path.stat().st_mode & 0o777 for path in (made.settings, *made.settings.parents[:2])]
    assert modes == [0o644, 0o755, 0o755]


# --- systemd

needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="no systemd on this machine"
)


def analyse(folder: Path, text: str, *command: str) -> subprocess.CompletedProcess[str]:
    path = folder / "specmesh-test.service"
    path.write_text(text)
    environment = {"XDG_RUNTIME_DIR": str(folder), "HOME": str(folder), "PATH": "/usr/bin:/bin"}
    words = ["systemd-analyze", *command, str(path)]
    return subprocess.run(words, capture_output=True, text=True, check=False, env=environment)


@needs_systemd
@pytest.mark.parametrize("role", ["verifier", "drafter"])
@pytest.mark.parametrize("system", [False, True])
@pytest.mark.fault("E8.94")
def test_systemd_finds_no_fault(role: str, system: bool, tmp_path: Path):
    flags = () if system else ("--user",)
    text = unit(role, system, Path("/etc/specmesh") / f"{role}.toml")
    done = analyse(tmp_path, text, *flags, "verify", "--man=no", "--recursive-errors=no")
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    broken = analyse(
        tmp_path, text + "\nNoSuchKey=1\n", *flags, "verify", "--man=no", "--recursive-errors=no"
    )
    assert broken.returncode != 0


@needs_systemd
@pytest.mark.parametrize(
    "example", sorted((service.TEMPLATES / "examples").glob("*.conf")), ids=lambda path: path.stem
)
def test_systemd_finds_no_fault_in_examples(example: Path, tmp_path: Path):
    (tmp_path / "specmesh-test.service.d").mkdir()
    (tmp_path / "specmesh-test.service.d/override.conf").write_text(example.read_text())
    text = unit("verifier", True, CONFIG)
    done = analyse(tmp_path, text, "verify", "--man=no", "--recursive-errors=no")
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    for name in re.findall(r"SPECMESH_VERIFIER_(\w+)", example.read_text()):
        assert name.lower().replace("_", "-") in keys(main.commands["verifier"])


@needs_systemd
@pytest.mark.fault("E8.94")
def test_the_system_unit_is_confined(tmp_path: Path):
    text = unit("verifier", True, CONFIG)
    done = analyse(tmp_path, text, "security", "--offline=true", "--threshold=20")
    assert done.returncode == 0, done.stdout[-500:]
    assert "char-nvidia-uvm" in text
    assert analyse(tmp_path, text, "security", "--offline=true", "--threshold=5").returncode != 0


def test_python_in_a_home_stays_visible(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(service.sys, "prefix", "/home/ada lovelace/venv")
    monkeypatch.setattr(service.sys, "base_prefix", "/usr")
    assert 'ProtectHome=tmpfs\nBindReadOnlyPaths="/home/ada lovelace/venv"' in unit(
        "verifier", True, CONFIG
    )
    monkeypatch.setattr(service.sys, "prefix", "/opt/venv")
    monkeypatch.setattr(service.sys, "executable", "/opt/venv/bin/python")
    assert "ProtectHome=yes\n" in unit("verifier", True, CONFIG)


@pytest.mark.parametrize("system", [False, True])
@pytest.mark.fault("E7.74")
def test_what_a_unit_promises(system: bool):
    parser = configparser.ConfigParser(strict=False, interpolation=None, delimiters=["="])
    parser.optionxform = str  # type: ignore[assignment]
    parser.read_string(unit("verifier", system, CONFIG))
    told = parser["Service"]
    assert (told["Type"], told["WatchdogSec"], told["KillMode"]) == ("notify", "60", "mixed")
    assert {"2", "77", "78"} == set(told["RestartPreventExitStatus"].split())
    assert parser["Unit"]["StartLimitIntervalSec"] == "0"
    if system:
        after = {"network-online.target", "remote-fs.target", "tailscaled.service"}
        assert after <= set(parser["Unit"]["After"].split())


def test_a_start_that_takes_long_says_how_far_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """It may wait for an address: who has typed `service start` hears of that."""
    monkeypatch.setattr(service, "NOTICE", 0.01)
    asked = tmp_path / "asked"
    state = f"sh -c 'touch {asked}; echo waiting: no such address'"
    service.run([f"sh -c 'until [ -e {asked} ]; do sleep 0.01; done'"], dry=False, state=state)
    assert "still at it: waiting: no such address" in capsys.readouterr().err


# --- launchd


def parsed(role: str, system: bool, config: str = "/Users/ada/x.toml") -> dict[str, object]:
    return dict(
        plistlib.loads(
            plist(role, system, Path(config), Path("/Users/ada/Library/Logs/specmesh")).encode()
        )
    )


@pytest.mark.parametrize("role", ["verifier", "drafter"])
@pytest.mark.parametrize("system", [False, True])
@pytest.mark.fault("E8.94")
def test_property_lists(role: str, system: bool):
    """As launchd.plist(5) has the keys and types; a job that fails is started again, one that ends well is not."""
    job = parsed(role, system)
    known = {
        "Label": f"org.specmesh.{role}",
        "RunAtLoad": True,
        "KeepAlive": {"SuccessfulExit": False},
        "Umask": 0o77,
    }
    known |= {"EnvironmentVariables": {"SPECMESH_LAUNCHD": "1"}, "ProcessType": "Interactive"}
    known |= dict.fromkeys(
        ("StandardOutPath", "StandardErrorPath"), f"/Users/ada/Library/Logs/specmesh/{role}.log"
    )
    assert known.items() <= job.items()
    assert job["ProgramArguments"] == [
        sys.executable,
        "-P",
        "-m",
        "specmesh",
        role,
        "--config",
        "/Users/ada/x.toml",
    ]
    others = {
        "ThrottleInterval",
        "ExitTimeOut",
        "SoftResourceLimits",
        "HardResourceLimits",
        "ProgramArguments",
    }
    assert job.keys() == known.keys() | others | ({"UserName"} if system else set())


def test_any_path_survives():
    config = '/Users/ada/Büro & <Co> "$x"/drafter.toml'
    assert config in str(parsed("drafter", False, config)["ProgramArguments"])
