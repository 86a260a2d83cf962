"""Installing and uninstalling in a scratch root."""

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from specmesh.cli import main


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
