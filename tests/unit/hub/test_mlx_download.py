"""A hub id for MLX: into the hub's cache, with every byte told."""

from pathlib import Path

import pytest
from hub_command import Models
from hub_server import HubServer, Repo

from specmesh.engines.mlx.model import download
from specmesh.errors import EngineError

FILES = {
    "config.json": b"{}",
    "model.safetensors": b"w" * 5000,
    "tokenizer.json": b"{}" * 200,
    "modeling.py": b"raise SystemExit",
    "pytorch_model.bin": b"not for MLX",
}
WANTED = {"config.json", "model.safetensors", "tokenizer.json"}


@pytest.fixture
def cache(models: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The hub's own cache; the hub is on loopback."""
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_every_byte_is_told(hub: HubServer, cache: Path, capsys: pytest.CaptureFixture[str]):
    hub.repos["own/small"] = Repo(FILES)
    told: list[tuple[float, int]] = []
    folder = download("own/small", lambda share, fetched: told.append((share, fetched)))
    assert folder.is_relative_to(cache.resolve())
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {name: FILES[name] for name in WANTED}
    assert max(fetched for _, fetched in told) == sum(len(FILES[name]) for name in WANTED)
    assert {share for share, _ in told} == {0.0}
    served = len(hub.served)
    assert download("own/small", lambda _share, _fetched: None) == folder
    assert len(hub.served) == served
    assert capsys.readouterr() == ("", "")


def test_given_up(hub: HubServer, cache: Path):
    hub.repos["own/small"] = Repo(FILES)

    def stop(_share: float, _fetched: int) -> None:
        raise EngineError("cancelled")

    with pytest.raises(EngineError, match="cancelled"):
        download("own/small", stop)
    assert not list(cache.glob("*/snapshots/*/model.safetensors"))
