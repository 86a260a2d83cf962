"""What is said of files of settings."""

from pathlib import Path

import click
import pytest

from specmesh import paths
from specmesh.cli import main
from specmesh.doctor import mesh
from specmesh.doctor.mesh import RoleSettings, ports


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> click.Context:
    """The command line's own context, its two folders of settings in tmp_path."""
    folders = [tmp_path / "user", tmp_path / "system"]
    for folder in folders:
        folder.mkdir()
    monkeypatch.setattr(paths, "config_folders", lambda: folders)
    for name in ("SPECMESH_VERIFIER_CTX", "SPECMESH_DRAFTER_CONNECT"):
        monkeypatch.delenv(name, raising=False)
    return click.Context(main, info_name="specmesh", **main.context_settings)


def test_files(root: click.Context, tmp_path: Path):
    """A file in each folder: the user's is in force; a broken one is told with its line, and is not."""
    (tmp_path / "user" / "verifier.toml").write_text('bind = "tcp://127.0.0.1:9"\n')
    (tmp_path / "system" / "verifier.toml").write_text("ctx = 8192\n")
    (tmp_path / "system" / "drafter.toml").write_text('\nctx = "many"\n')
    first, second, broken = mesh.files(root)
    assert (first.status, second.status, broken.status) == ("ok", "ok", "fail")
    assert "goes before it" in second.found
    assert "drafter.toml:2: " in broken.found
    assert broken.fix == f"${{EDITOR:-vi}} +2 {tmp_path / 'system' / 'drafter.toml'}"
    assert "sets 1 of the settings" in first.found
    [found], wrong = mesh.in_force(root)
    assert (found.role, found.text("bind"), found.text("ctx"), found.text("model")) == (
        "verifier",
        "tcp://127.0.0.1:9",
        "4096",
        "",
    )
    assert wrong == []


@pytest.mark.parametrize(
    ("values", "status", "found"),
    [
        ({"http": "127.0.0.1:8080"}, "ok", "127.0.0.1:8080, no keys"),
        ({"http": "0.0.0.0:8080", "api-key-file": "{keys}"}, "ok", "1 key"),
        ({"http": "0.0.0.0:8080"}, "fail", "open to other machines"),
        ({"api-key-file": "{keys}"}, "fail", "without --http"),
        ({"http": "0.0.0.0:8080", "api-key-file": "{keys}.missing"}, "fail", "cannot be read"),
        ({"http": "0.0.0.0:8080", "api-key-file": "{open}"}, "fail", "chmod 600"),
    ],
)
def test_ports(values: dict[str, str], status: str, found: str, tmp_path: Path):
    """What the daemon would refuse is told beforehand."""
    paths = {"keys": tmp_path / "keys", "open": tmp_path / "open"}
    for path, mode in zip(paths.values(), (0o600, 0o644), strict=True):
        path.write_text("sk-1\n")
        path.chmod(mode)
    told = {key: value.format(**paths) for key, value in values.items()}
    [check] = ports([RoleSettings("verifier", told)])
    assert check.status == status
    assert found in check.found
