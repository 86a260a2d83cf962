"""Installing and uninstalling in a scratch root."""

import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from specmesh.cli import main
from specmesh.errors import ConfigError, EngineError
from specmesh.service import Scope, Service, ServiceInstaller
from specmesh.service.launchd import launchd_service
from specmesh.service.systemd import systemd_service


def specmesh(*args: object) -> Result:
    return CliRunner().invoke(main, ["service", *map(str, args)])


def everything(root: Path) -> dict[str, str]:
    """Every file below, and folders without any."""
    return {
        str(path.relative_to(root)): path.read_text() if path.is_file() else ""
        for path in root.rglob("*")
        if path.is_file() or not any(path.iterdir())
    }


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("platformdirs.user_config_path", lambda name: Path("/home/ada/.config") / name)
    monkeypatch.setenv("HOME", "/home/ada")
    return tmp_path / "a root"


@pytest.mark.parametrize("flag", ["--user", "--system"])
@pytest.mark.fault("E8.93")
def test_install_twice_and_uninstall(flag: str, root: Path):
    """The second run changes nothing, an edited file of settings stays, and uninstalling leaves no file."""
    first = specmesh("install", "verifier", flag, "--root", root)
    assert first.exit_code == 0, first.output
    before = everything(root)
    assert any(name.endswith("specmesh-verifier.service") for name in before)
    again = specmesh("install", "verifier", flag, "--root", root)
    assert "nothing to change" in again.output
    assert everything(root) == before
    [settings] = root.rglob("verifier.toml")
    settings.write_text('model = "mine.gguf"\n')
    [unit] = root.rglob("specmesh-verifier.service")
    unit.write_text("an older version")
    assert specmesh("install", "verifier", flag, "--root", root).exit_code == 0
    assert settings.read_text() == 'model = "mine.gguf"\n'
    assert "[Service]" in unit.read_text()
    assert specmesh("uninstall", "verifier", flag, "--root", root).exit_code == 0
    assert not [path for path in root.rglob("*") if path.is_file()]
    assert specmesh("uninstall", "verifier", flag, "--root", root).exit_code == 0


@pytest.mark.parametrize("command", ["install", "uninstall", "start", "restart", "stop", "status", "logs"])
@pytest.mark.parametrize("role", ["verifier", "drafter"])
@pytest.mark.fault("E8.93")
def test_dry_run(command: str, role: str, root: Path):
    done = specmesh(command, role, "--dry-run", "--root", root)
    assert done.exit_code == 0, done.output
    assert "$ " in done.output
    assert not root.exists()


@pytest.mark.parametrize("make", [systemd_service, lambda *args: launchd_service(*args, domain="gui/501")])
def test_restart(make):
    """Whatever ran before has ended when it is started again, and that it did not run is no error."""
    said: list[str] = []
    service: Service = make("drafter", Scope.USER, "# settings\n")
    ServiceInstaller(said.append, dry=True).start(service.unload, service.restart)
    if service.name == "specmesh-drafter":
        forgiven = "$ systemctl --user reset-failed specmesh-drafter"  # or the fifth within minutes is refused
        assert said == [forgiven, "$ systemctl --user restart specmesh-drafter"]
    else:
        bootout, wait, bootstrap = said
        assert bootout == "$ launchctl bootout gui/501/org.specmesh.drafter"
        assert "launchctl print" in wait
        assert bootstrap.startswith("$ launchctl bootstrap gui/501 ")


def test_where_nobody_may_write(tmp_path: Path):
    (tmp_path / "home").write_text("not a folder")
    service = systemd_service("drafter", Scope.USER, "")
    with pytest.raises(ConfigError, match="cannot be written"):
        ServiceInstaller(lambda _: None, root=tmp_path / "home").install(service)


def test_no_session_of_systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    fake = tmp_path / "systemctl"
    fake.write_text("#!/bin/sh\necho 'Failed to connect to bus: No such file or directory' >&2\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with pytest.raises(EngineError, match=r"no systemd for this user here .* --dry-run"):
        ServiceInstaller(print).run([("systemctl", "--user", "daemon-reload")])
