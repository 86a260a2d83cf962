"""A hub on loopback, the command line against it, and models small enough to look through."""

import json
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hub_command import Models
from hub_server import HubServer


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
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no token"))
    variables = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hf"), "SPECMESH_MODELS_DIR": str(root)}
    yield Models(variables, tmp_path)
    library.close_session()


@pytest.fixture
def hf_files() -> dict[str, bytes]:
    return model_directory()


def model_directory(**config: object) -> dict[str, bytes]:
    """Files of a model directory; `config` replaces entries of config.json."""
    told = {"model_type": "llama", "vocab_size": 32, "max_position_embeddings": 64, "torch_dtype": "float16"} | config
    tensors = {"model.embed_tokens.weight": {"dtype": "F16", "shape": [32, 8], "data_offsets": [0, 512]}}
    header = json.dumps({"__metadata__": {"format": "pt"}} | tensors).encode()
    return {
        "config.json": json.dumps(told).encode(),
        "model.safetensors": struct.pack("<Q", len(header)) + header + bytes(512),
        "tokenizer.json": b'{"model": {"type": "BPE", "vocab": {}, "merges": []}}',
        "tokenizer_config.json": b"{}",
    }


@pytest.fixture
def make_directory() -> Callable[..., Path]:
    """Writes a model directory: make_directory(path, model_type="mamba")."""

    def make(path: Path, **config: object) -> Path:
        path.mkdir(parents=True)
        for name, raw in model_directory(**config).items():
            (path / name).write_bytes(raw)
        return path

    return make
