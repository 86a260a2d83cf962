"""What the bundled pair promises, measured on modules that it was never trained on."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("llama_cpp")
gguf = pytest.importorskip("gguf")
tokenizers = pytest.importorskip("tokenizers")

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "tools"))
from pair import data, measure  # noqa: E402

MODELS = Path(__file__).resolve().parents[3] / "specmesh" / "models"
SETTINGS = measure.Settings()

pytestmark = pytest.mark.models


@pytest.fixture(scope="module")
def target() -> measure.Engine:
    return measure.Engine(MODELS / "target.gguf")


@pytest.fixture(scope="module")
def drafter() -> measure.Engine:
    return measure.Engine(MODELS / "drafter.gguf")


@pytest.fixture(scope="module")
def held_out() -> dict[str, str]:
    return data.held_out_files()


@pytest.fixture(scope="module")
def prompts(target: measure.Engine, held_out: dict[str, str]) -> list[list[int]]:
    files = [target.encode(text.encode()) for text in held_out.values()]
    return measure.spots(files, SETTINGS.prompt)


def _fields(name: str) -> dict[str, Any]:
    reader = gguf.GGUFReader(MODELS / name)
    return {key: field.contents() for key, field in reader.fields.items()}


def test_tokenizers_agree_on_held_out_files(
    target: measure.Engine, drafter: measure.Engine, held_out: dict[str, str]
) -> None:
    ours = tokenizers.Tokenizer.from_file(str(MODELS / "drafter-hf" / "tokenizer.json"))
    assert len(held_out) >= 20
    for name, text in held_out.items():
        raw = text.encode()
        ids = ours.encode(text).ids
        assert target.encode(raw) == ids, name
        assert drafter.encode(raw) == ids, name
        assert target.decode(ids) == raw, name
        assert ours.decode(ids).encode() == raw, name


def test_pair_shares_one_vocabulary() -> None:
    first, second = _fields("target.gguf"), _fields("drafter.gguf")
    for key in ("tokens", "merges", "token_type", "pre", "model", "eos_token_id", "add_bos_token"):
        assert first[f"tokenizer.ggml.{key}"] == second[f"tokenizer.ggml.{key}"], key
    assert len(first["tokenizer.ggml.tokens"]) == 2048
    assert first["tokenizer.ggml.add_bos_token"] is False


def test_files_say_what_they_are() -> None:
    for name in ("target.gguf", "drafter.gguf"):
        fields = _fields(name)
        assert fields["general.architecture"] == "llama"
        assert fields["general.license"] == "MIT"
        assert "specmesh" in fields["general.name"]
        assert fields["llama.context_length"] >= 1024


def test_greedy_acceptance(target: measure.Engine, drafter: measure.Engine, prompts: list[list[int]]) -> None:
    report = measure.greedy_report(target, drafter, prompts[::3], SETTINGS)
    assert report["prompts"] >= 7
    assert report["agreement"] >= 0.60
    assert report["accepted_of_verified"] >= 0.60


def test_card_matches_the_files() -> None:
    card = json.loads((MODELS / "card.json").read_text(encoding="utf-8"))
    sizes = measure.bundle_bytes(MODELS)
    assert card["bytes"] == {name: sizes[name] for name in card["bytes"]}
    for name, count in card["parameters"].items():
        assert measure.parameters(MODELS / f"{name}.gguf") == count
