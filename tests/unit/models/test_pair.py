"""What the bundled pair promises, measured on modules that it was never trained on."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("llama_cpp")
gguf = pytest.importorskip("gguf")
tokenizers = pytest.importorskip("tokenizers")

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


def test_greedy_acceptance(target: measure.Engine, drafter: measure.Engine, prompts: list[list[int]]) -> None:
    report = measure.greedy_report(target, drafter, prompts[::3], SETTINGS)
    assert report["prompts"] >= 7
    assert report["agreement"] >= 0.60
    assert report["accepted_of_verified"] >= 0.60
