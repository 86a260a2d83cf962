"""A hub on loopback, and the command line against it."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from hub_server import HubServer, Models


@pytest.fixture
def hub() -> Iterator[HubServer]:
    """Repositories to fill: hub.repos["owner/name"] = Repo(...)."""
    server = HubServer()
    yield server
    server.close()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "models"


@pytest.fixture
def models(hub: HubServer, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Models]:
    """The command, with the hub on loopback as its hub."""
    library = pytest.importorskip("huggingface_hub")
    constants = pytest.importorskip("huggingface_hub.constants")
    # huggingface_hub reads these variables once, when it is imported; a process of its own gets them as variables.
    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    template = hub.url + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1000)
    transfer = pytest.importorskip("huggingface_hub.file_download")
    monkeypatch.setattr(transfer, "time", SimpleNamespace(sleep=lambda _: None))  # between two tries
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no token"))
    variables = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hf"), "SPECMESH_MODELS_DIR": str(root)}
    yield Models(variables, tmp_path)
    library.close_session()
