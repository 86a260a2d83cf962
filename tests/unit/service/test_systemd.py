"""Units as systemd itself reads them."""

import configparser
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from specmesh import service as systemd
from specmesh.cli import main
from specmesh.cli.config import keys
from specmesh.service import Scope, systemd_service, unit

needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd on this machine")


def analyse(folder: Path, text: str, *command: str) -> subprocess.CompletedProcess[str]:
    path = folder / "specmesh-test.service"
    path.write_text(text)
    environment = {"XDG_RUNTIME_DIR": str(folder), "HOME": str(folder), "PATH": "/usr/bin:/bin"}
    words = ["systemd-analyze", *command, str(path)]
    return subprocess.run(words, capture_output=True, text=True, check=False, env=environment)


@needs_systemd
@pytest.mark.parametrize("role", ["verifier", "drafter"])
@pytest.mark.parametrize("scope", Scope)
@pytest.mark.fault("E8.94")
def test_systemd_finds_no_fault(role: str, scope: Scope, tmp_path: Path):
    flags = ("--user",) if scope is Scope.USER else ()
    text = unit(role, scope, Path("/etc/specmesh") / f"{role}.toml")
    done = analyse(tmp_path, text, *flags, "verify", "--man=no", "--recursive-errors=no")
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    broken = analyse(tmp_path, text + "\nNoSuchKey=1\n", *flags, "verify", "--man=no", "--recursive-errors=no")
    assert broken.returncode != 0


@needs_systemd
@pytest.mark.parametrize("example", sorted((systemd.TEMPLATES / "examples").glob("*.conf")), ids=lambda path: path.stem)
def test_systemd_finds_no_fault_in_examples(example: Path, tmp_path: Path):
    (tmp_path / "specmesh-test.service.d").mkdir()
    (tmp_path / "specmesh-test.service.d/override.conf").write_text(example.read_text())
    text = unit("verifier", Scope.SYSTEM, Path("/etc/specmesh/verifier.toml"))
    done = analyse(tmp_path, text, "verify", "--man=no", "--recursive-errors=no")
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    for name in re.findall(r"SPECMESH_VERIFIER_(\w+)", example.read_text()):
        assert name.lower().replace("_", "-") in keys(main.commands["verifier"])


@needs_systemd
@pytest.mark.fault("E8.94")
def test_the_system_unit_is_confined(tmp_path: Path):
    text = unit("verifier", Scope.SYSTEM, Path("/etc/specmesh/verifier.toml"))
    done = analyse(tmp_path, text, "security", "--offline=true", "--threshold=20")
    assert done.returncode == 0, done.stdout[-500:]
    assert "char-nvidia-uvm" in text
    assert analyse(tmp_path, text, "security", "--offline=true", "--threshold=5").returncode != 0


@needs_systemd
@pytest.mark.fault("E8.93")
def test_paths_with_spaces_and_letters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = tmp_path / "Büro und %h $HOME" / "bin"
    folder.mkdir(parents=True)
    python = folder / "python"
    python.symlink_to(sys.executable)
    monkeypatch.setattr(sys, "executable", str(python))
    text = unit("drafter", Scope.USER, folder / "drafter.toml")
    done = analyse(tmp_path, text, "--user", "verify", "--man=no", "--recursive-errors=no")
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    python.unlink()
    gone = analyse(tmp_path, text, "--user", "verify", "--man=no", "--recursive-errors=no")
    assert gone.returncode != 0


def test_python_in_a_home_stays_visible(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(systemd.sys, "prefix", "/home/ada lovelace/venv")
    monkeypatch.setattr(systemd.sys, "base_prefix", "/usr")
    text = unit("verifier", Scope.SYSTEM, Path("/etc/specmesh/verifier.toml"))
    assert 'ProtectHome=tmpfs\nBindReadOnlyPaths="/home/ada lovelace/venv"' in text
    monkeypatch.setattr(systemd.sys, "prefix", "/opt/venv")
    monkeypatch.setattr(systemd.sys, "executable", "/opt/venv/bin/python")
    assert "ProtectHome=yes\n" in unit("verifier", Scope.SYSTEM, Path("/etc/specmesh/verifier.toml"))


def test_a_place_that_does_not_stay(monkeypatch: pytest.MonkeyPatch):
    """PrivateTmp hides /tmp from the system's service: refused, with where to install instead."""
    monkeypatch.setattr(systemd.sys, "prefix", "/var/tmp/venv")  # noqa: S108 - not written to
    monkeypatch.setattr(systemd.sys, "platform", "linux")
    done = CliRunner().invoke(main, ["service", "install", "verifier", "--system", "--dry-run"])
    assert done.exit_code == 78, done.output
    assert "/opt/specmesh" in done.stderr


@pytest.mark.parametrize("scope", Scope)
@pytest.mark.fault("E7.74")
def test_what_a_unit_promises(scope: Scope):
    parser = configparser.ConfigParser(strict=False, interpolation=None, delimiters=["="])
    parser.optionxform = str  # type: ignore[assignment]
    parser.read_string(systemd_service("verifier", scope, "").files[0].text)
    told = parser["Service"]
    assert (told["Type"], told["WatchdogSec"], told["KillMode"]) == ("notify", "60", "mixed")
    assert {"2", "77", "78"} == set(told["RestartPreventExitStatus"].split())
