"""Files that llama.cpp's loader ends its process over: in a process of its own, and not again for those that passed."""

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from structlog.testing import capture_logs

from specmesh.child import Child, Json, Limits
from specmesh.config import ModelSettings
from specmesh.engines import llama_trial
from specmesh.engines.llama_trial import try_file
from specmesh.engines.load import load_tokenizer, load_verifier
from specmesh.errors import ConfigError
from specmesh.paths import bundled

pytest.importorskip("llama_cpp")
pytestmark = pytest.mark.models

Damage = Callable[[bytes], bytes]


def value(raw: bytes, key: bytes, new: int) -> bytes:
    """The same file with another number for a key."""
    at = raw.index(key) + len(key) + 4
    return raw[:at] + new.to_bytes(4, "little") + raw[at + 4 :]


DAMAGES: dict[str, tuple[Damage, str]] = {
    "no layers": (lambda raw: value(raw, b"llama.block_count", 0), "GGML_ASSERT"),
    "a token twice": (
        lambda raw: raw.replace(b"\x09\0\0\0\0\0\0\0<unused1>", b"\x09\0\0\0\0\0\0\0<unused0>"),
        "GGML_ASSERT",
    ),
    "no heads": (lambda raw: value(raw, b"llama.attention.head_count", 0), ""),
    "other heads": (lambda raw: value(raw, b"llama.attention.head_count", 3), ""),
    "other width": (lambda raw: value(raw, b"llama.embedding_length", 96), "could not be loaded"),
    "more layers": (lambda raw: value(raw, b"llama.block_count", 3), "blk.2"),
    "no such architecture": (
        lambda raw: raw.replace(b"\x05\0\0\0\0\0\0\0llama", b"\x05\0\0\0\0\0\0\0lxama"),
        "architecture",
    ),
    "no such tokenizer": (
        lambda raw: raw.replace(b"\x05\0\0\0\0\0\0\0gpt-2", b"\x05\0\0\0\0\0\0\0gpt-x"),
        "pre-tokenizer",
    ),
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where what passed is remembered."""
    monkeypatch.setattr(llama_trial, "user_cache_path", lambda _: tmp_path / "cache")
    return tmp_path / "cache" / "tried"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Json]:
    """The requests that a trial's process gets."""
    requests: list[Json] = []
    ask = Child.ask

    def noted(child: Child, request: Json) -> Json:
        requests.append(request)
        return ask(child, request)

    monkeypatch.setattr(Child, "ask", noted)
    return requests


@pytest.fixture(scope="module")
def child() -> Iterator[Child]:
    """One process for many files: it starts anew where one ended it."""
    made = Child("specmesh.engines.llama_trial_child", llama_trial.TRIAL)
    yield made
    made.close()


@pytest.mark.parametrize("arch", ["llama", "mamba", "jamba", "lfm2", "qwen35"])
def test_what_works_passes(make_gguf: Callable[..., Path], child: Child, arch: str):
    """Every architecture that the tests run, with nothing to complain."""
    assert child.ask({"path": str(make_gguf(f"trial-{arch}", arch=arch))}) == {}


@pytest.mark.fault(
    "E7.76", "a GGUF file that llama.cpp ends its process over", "an error that names the file, and a daemon that lives"
)
@pytest.mark.parametrize("damage", DAMAGES)
def test_llama_fails_alone(tiny_gguf: Path, tmp_path: Path, child: Child, monkeypatch: pytest.MonkeyPatch, damage: str):
    """Structure is right, what it says is not: an error with the path, and llama.cpp's own reason."""
    harm, why = DAMAGES[damage]
    path = tmp_path / "model.gguf"
    path.write_bytes(harm(tiny_gguf.read_bytes()))
    assert path.read_bytes() != tiny_gguf.read_bytes()
    monkeypatch.setattr(llama_trial, "Child", lambda *_: SimpleNamespace(ask=child.ask, close=lambda: None))
    with pytest.raises(ConfigError) as caught:
        try_file(path)
    told = str(caught.value)
    assert str(path) in told
    assert why in told
    assert "\n" not in told


def test_what_passed_is_not_tried_again(tiny_gguf: Path, tmp_path: Path, folder: Path, asked: list[Json]):
    """Until the file changes; what failed is tried each time."""
    path = tmp_path / "model.gguf"
    path.write_bytes(tiny_gguf.read_bytes())
    try_file(path)
    try_file(path)
    assert asked == [{"path": str(path)}]
    assert [entry.stat().st_mode & 0o777 for entry in (folder, *folder.iterdir())] == [0o700, 0o600]
    path.write_bytes(value(tiny_gguf.read_bytes(), b"llama.block_count", 3))
    for _ in range(2):
        with pytest.raises(ConfigError):
            try_file(path)
    assert len(asked) == 3


def test_the_bundled_models_need_none(asked: list[Json]):
    """They are part of the package, as its code is."""
    try_file(Path(bundled("target.gguf")))
    try_file(Path(bundled("drafter.gguf")))
    assert not asked


def test_nothing_is_remembered_where_nothing_can_be_written(
    tiny_gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A cache folder that is a file: told, and the model is used."""
    (tmp_path / "cache").touch()
    monkeypatch.setattr(Child, "ask", lambda *_: {})
    with capture_logs() as lines:
        try_file(tiny_gguf)
    assert [line["event"] for line in lines] == ["trial_not_remembered"]


@pytest.mark.parametrize("limits", [Limits(2**32, 0.01), Limits(2**25, 60.0)], ids=["time", "memory"])
def test_it_has_limits(tiny_gguf: Path, monkeypatch: pytest.MonkeyPatch, limits: Limits):
    """A file that keeps llama.cpp busy, or fills memory, is an error too."""
    monkeypatch.setattr(llama_trial, "TRIAL", limits)
    with pytest.raises(ConfigError, match=str(tiny_gguf)):
        try_file(tiny_gguf)


@pytest.mark.parametrize(
    "load",
    [lambda path: load_verifier(ModelSettings("llama", str(path)), lambda *_: True), load_tokenizer],
    ids=["verifier", "tokenizer"],
)
def test_loading_begins_with_it(tiny_gguf: Path, tmp_path: Path, load: Callable[[Path], object]):
    """Nothing opens a file in this process that was not tried: it would end here."""
    path = tmp_path / "model.gguf"
    path.write_bytes(value(tiny_gguf.read_bytes(), b"llama.block_count", 0))
    with pytest.raises(ConfigError, match="GGML_ASSERT"):
        load(path)
