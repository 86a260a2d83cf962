"""Services: installed in a scratch root, units as systemd reads them, property lists of launchd."""

import configparser
import os
import plistlib
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from specmesh import service
from specmesh.cli import main
from specmesh.cli.config import keys
from specmesh.cli.daemons import verifier
from specmesh.service import plist, unit

fault = pytest.mark.fault

CONFIG = Path("/etc/specmesh/verifier.toml")
each_role = pytest.mark.parametrize("role", ["verifier", "drafter"])
each_owner = pytest.mark.parametrize("system", [False, True])


@each_owner
@each_role
@pytest.mark.parametrize(
    "command", ["install", "uninstall", "start", "restart", "stop", "status", "logs"]
)
@fault("E8.93")
def test_dry_run(command, role, system, tmp_path, monkeypatch):
    monkeypatch.setattr("platformdirs.user_config_path", lambda name: tmp_path / name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    owner = "--system" if system else "--user"
    done = CliRunner().invoke(main, ["service", command, role, owner, "--dry-run"])
    assert done.exit_code == 0, done.output
    assert "$ " in done.output
    assert not any(tmp_path.iterdir())


def test_install_under_any_umask(tmp_path):
    """The service's own user can read the files that root makes."""
    settings = tmp_path / "etc/specmesh/verifier.toml"
    installed = service.Service(
        file=tmp_path / "unit", text="", settings=settings, commands={"install": ()}
    )
    before = os.umask(0o077)
    try:
        service.install(installed, "verifier", dry=False)
    finally:
        os.umask(before)
    paths = (settings, *settings.parents[:2])
    assert [path.stat().st_mode & 0o777 for path in paths] == [0o644, 0o755, 0o755]


def test_a_start_that_takes_long_says_how_far_it_is(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(service, "NOTICE", 0.01)
    asked = tmp_path / "asked"
    state = f"sh -c 'touch {asked}; echo waiting: no such address'"
    service.run([f"sh -c 'until [ -e {asked} ]; do sleep 0.01; done'"], dry=False, state=state)
    assert "still at it: waiting: no such address" in capsys.readouterr().err


# --- systemd


@pytest.fixture
def analyse(tmp_path):
    """Run systemd-analyze with a unit; return the finished process."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd on this machine")
    path = tmp_path / "specmesh-test.service"
    env = {"XDG_RUNTIME_DIR": str(tmp_path), "HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}

    def analysed(text, *command):
        path.write_text(text)
        words = ["systemd-analyze", *command, str(path)]
        return subprocess.run(words, capture_output=True, text=True, check=False, env=env)

    return analysed


@pytest.fixture
def verify(analyse):
    """Return the faults that systemd finds in a unit."""

    def faults(text, *flags):
        done = analyse(text, *flags, "verify", "--man=no", "--recursive-errors=no")
        assert (done.returncode == 0) == (done.stdout + done.stderr == "")
        return done.stdout + done.stderr

    return faults


@each_role
@each_owner
@fault("E8.94")
def test_systemd_finds_no_fault(role, system, verify):
    flags = [] if system else ["--user"]
    text = unit(role, system, Path(f"/etc/specmesh/{role}.toml"))
    assert verify(text, *flags) == ""
    assert "NoSuchKey" in verify(text + "\nNoSuchKey=1\n", *flags)


EXAMPLES = sorted((service.TEMPLATES / "examples").glob("*.conf"))
each_example = pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)


@each_example
def test_systemd_finds_no_fault_in_examples(example, verify, tmp_path):
    overrides = tmp_path / "specmesh-test.service.d"
    overrides.mkdir()
    shutil.copy(example, overrides / "override.conf")
    assert verify(unit("verifier", True, CONFIG)) == ""


@each_example
def test_variables_of_examples_are_settings(example):
    names = re.findall(r"SPECMESH_VERIFIER_(\w+)", example.read_text())
    known = keys(verifier)
    assert {name.lower().replace("_", "-") for name in names} <= set(known)


@fault("E8.94")
def test_the_system_unit_is_confined(analyse):
    """systemd rates its exposure between 0.5 and 2 of 10."""
    text = unit("verifier", True, CONFIG)
    done = analyse(text, "security", "--offline=true", "--threshold=20")
    assert done.returncode == 0, done.stdout[-500:]
    assert analyse(text, "security", "--offline=true", "--threshold=5").returncode != 0


def test_gpus_stay_visible():
    assert "char-nvidia-uvm" in unit("verifier", True, CONFIG)


@pytest.mark.parametrize(
    ("prefix", "protection"),
    [
        (
            "/home/ada lovelace/venv",
            'ProtectHome=tmpfs\nBindReadOnlyPaths="/home/ada lovelace/venv"',
        ),
        ("/opt/venv", "ProtectHome=yes\n"),
    ],
)
def test_python_in_a_home_stays_visible(prefix, protection, monkeypatch):
    monkeypatch.setattr(service.sys, "prefix", prefix)
    monkeypatch.setattr(service.sys, "base_prefix", "/usr")
    monkeypatch.setattr(service.sys, "executable", f"{prefix}/bin/python")
    assert protection in unit("verifier", True, CONFIG)


@pytest.fixture
def sections():
    """Parse the verifier's unit."""

    def parsed(system):
        parser = configparser.ConfigParser(strict=False, interpolation=None, delimiters=["="])
        parser.optionxform = str
        parser.read_string(unit("verifier", system, CONFIG))
        return parser

    return parsed


@each_owner
@fault("E7.74")
def test_restarts_of_a_unit(system, sections):
    """It is watched, and started again without end.

    But not after an error that only the user can mend.
    """
    found = sections(system)
    settings = found["Service"]
    assert set(settings["RestartPreventExitStatus"].split()) == {"2", "77", "78"}
    assert found["Unit"]["StartLimitIntervalSec"] == "0"
    assert (settings["Type"], settings["WatchdogSec"]) == ("notify", "60")
    assert settings["KillMode"] == "mixed"


def test_a_system_unit_waits_for_networks_and_disks(sections):
    after = {"network-online.target", "remote-fs.target", "tailscaled.service"}
    assert after <= set(sections(True)["Unit"]["After"].split())


# --- launchd

LOGS = Path("/Users/ada/Library/Logs/specmesh")


def job(role, system, config="/Users/ada/x.toml"):
    return plistlib.loads(plist(role, system, Path(config), LOGS).encode())


@each_role
@each_owner
@fault("E8.94")
def test_property_lists(role, system):
    """A job that fails is started again, one that ends well is not: see launchd.plist(5)."""
    found = job(role, system)
    expected = {
        "Label": f"org.specmesh.{role}",
        "RunAtLoad": True,
        "KeepAlive": {"SuccessfulExit": False},
        "Umask": 0o77,
        "EnvironmentVariables": {"SPECMESH_LAUNCHD": "1"},
        "ProcessType": "Interactive",
        "StandardOutPath": f"{LOGS}/{role}.log",
        "StandardErrorPath": f"{LOGS}/{role}.log",
    }
    assert expected.items() <= found.items()
    command = f"{sys.executable} -P -m specmesh {role} --config /Users/ada/x.toml"
    assert found["ProgramArguments"] == command.split()
    limits = {"ThrottleInterval", "ExitTimeOut", "SoftResourceLimits", "HardResourceLimits"}
    owner = {"UserName"} if system else set()
    assert found.keys() == expected.keys() | limits | owner | {"ProgramArguments"}


def test_any_path_survives():
    config = '/Users/ada/Büro & <Co> "$x"/drafter.toml'
    assert config in job("drafter", False, config)["ProgramArguments"]
