"""MLX as verifier: text to ids, errors, what is refused while it loads."""

import json
from contextlib import closing
from unittest.mock import Mock

import pytest
from harness.engine_contract import settings, span, step
from harness.tables import cases

pytest.importorskip("mlx.core")
pytest.importorskip("mlx_lm")

from specmesh.core.kv_orders import KVCut, KVSave
from specmesh.engines.mlx import caches, verifier
from specmesh.engines.mlx.encoder import coverage_of
from specmesh.engines.mlx.target_sequence import TargetSequence
from specmesh.engines.mlx.verifier import MlxVerifier
from specmesh.errors import ConfigError, EngineError, LocalProtocolError, RequestError

pytestmark = pytest.mark.models

BYTES = {"type": "ByteLevel"}
PIECES = (*(bytes([byte]) for byte in range(256)), b"four")


def opened(folder, **changes):
    return MlxVerifier(settings("mlx", folder, gpu_layers=0, **changes), n_batch=32)


@pytest.fixture(scope="module")
def engine(make_hf):
    with closing(opened(make_hf("verifier"))) as made:
        yield made


# --- text


def test_special_tokens_are_read_as_such(engine):
    assert engine.tokenizer.encode("a<|end|>b") == [97, 260, 98]


CUTS = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
FILLS = {
    "strategy": {"Fixed": 9},
    "direction": "Right",
    "pad_to_multiple_of": None,
    "pad_id": 260,
    "pad_type_id": 0,
    "pad_token": "<|end|>",
}


def test_a_prompt_is_neither_cut_off_nor_filled_up(make_hf):
    """A tokenizer.json that was saved after training says to do both."""
    folder = make_hf("verifier-cuts")
    file = folder / "tokenizer.json"
    contents = json.loads(file.read_text(encoding="utf-8"))
    changed = json.dumps(contents | {"truncation": CUTS, "padding": FILLS})
    file.write_text(changed, encoding="utf-8")
    with closing(opened(folder)) as made:
        assert made.info.bos is None
        assert made.tokenizer.encode("a-b-c-d") == list(b"a-b-c-d")


def test_a_lone_surrogate_is_refused(engine):
    with pytest.raises(RequestError, match="not valid Unicode"):
        engine.tokenizer.encode("a\ud800")


@pytest.mark.parametrize("text", ["x" * 5000, "é" * 5000, "<|end|>" * 1000])
def test_a_lower_bound_of_ids(engine, text):
    bound = engine.tokenizer.least_ids(text)
    assert 0 < bound <= len(engine.tokenizer.encode(text))


def test_a_model_that_is_closed_encodes_nothing(make_hf):
    closed = opened(make_hf("verifier-closed"))
    encoder = closed.tokenizer.encoder
    closed.close()
    encoder.close()
    with pytest.raises(EngineError, match="closed"):
        encoder.encode("a")


@cases(
    "tokenizer, longest",
    """
    [{"pre_tokenizer": $BYTES}, 4]
    [{"pre_tokenizer": $BYTES, "normalizer": {"type": "NFC"}}, 0]
    [{"pre_tokenizer": $BYTES, "normalizer": {"type": "Replace"}}, 4]
    [{"pre_tokenizer": $BYTES, "added_tokens": [{"content": "<|start|>"}]}, 9]
    [{"pre_tokenizer": $BYTES, "added_tokens": [{"content": "<|x|>", "lstrip": true}]}, 0]
    [{"model": {"byte_fallback": true}}, 4]
    [{}, 0]
    """,
    BYTES=BYTES,
)
def test_how_much_text_an_id_stands_for(tokenizer, longest):
    """None is known where a normalizer shortens texts, or an id stands for anything."""
    assert coverage_of({"model": {}} | tokenizer, PIECES).longest == longest


# --- errors


def test_whatever_mlx_raises_in_a_step(engine, monkeypatch):
    """It is an EngineError of one line; the sequence is empty then, and can be used again."""
    step(engine, span(0, 0, [5, 6, 7]))
    monkeypatch.setattr(TargetSequence, "append", Mock(side_effect=RuntimeError("no\nmemory")))
    with pytest.raises(EngineError, match=r"^MLX cannot run this model: RuntimeError: no$"):
        engine.decode([span(0, 3, [8])])
    monkeypatch.undo()
    assert engine.carry_out(KVCut(0, 3)) == 0
    step(engine, span(0, 0, [5]))
    engine.carry_out(KVCut(0, 0))


def test_a_state_of_full_attention_is_not_saved(engine):
    step(engine, span(0, 0, [5, 6, 7]))
    with pytest.raises(LocalProtocolError, match="cannot be saved"):
        engine.carry_out(KVSave(0, 3))
    engine.carry_out(KVCut(0, 0))


def test_a_step_wider_than_all_are(make_hf):
    refusal = pytest.raises(LocalProtocolError, match="each step has 4")
    with closing(opened(make_hf("verifier-wide"), reproducible=True)) as engine, refusal:
        engine.decode([span(0, 0, [5, 6, 7, 8, 9])])


def test_checkpoints_take_memory_until_they_are_dropped(make_hf):
    with closing(opened(make_hf("verifier-states", "hybrid"))) as engine:
        step(engine, span(0, 0, [5, 6, 7]))
        engine.carry_out(KVSave(0, 3))
        taken = engine.offloaded_bytes
        engine.carry_out(KVCut(0, 0))
        assert taken > engine.offloaded_bytes == 0


# --- a target is tried


def test_a_cache_that_only_says_it_was_cut(make_hf, monkeypatch):
    monkeypatch.setattr(caches, "_cut", lambda *_: True)
    with pytest.raises(ConfigError, match="does not return to an earlier state"):
        opened(make_hf("verifier-lies"))


def test_a_cache_that_cannot_be_cut(make_hf, monkeypatch):
    """As one that can neither be trimmed nor set back to a state."""

    def refused(*_):
        raise AttributeError("property 'state' of 'LayerCache' object has no setter")

    monkeypatch.setattr(caches, "_cut", refused)
    with pytest.raises(ConfigError, match="does not return to an earlier state"):
        opened(make_hf("verifier-fixed"))


def test_rows_that_are_rounded_by_what_is_beside_them(make_hf, monkeypatch):
    """Each pass has other bits than the one before it."""
    append = TargetSequence.append
    passes = []

    def noisy(self, ids, **how):
        passes.append(ids)
        return append(self, ids, **how) * (1 + 1e-6 * len(passes))

    monkeypatch.setattr(TargetSequence, "append", noisy)
    folder = make_hf("verifier-noisy")
    opened(folder).close()
    with pytest.raises(ConfigError, match="--reproducible: MLX rounds rows"):
        opened(folder, reproducible=True)


def test_a_model_that_does_not_run(make_hf, monkeypatch):
    fail = Mock(side_effect=ValueError("shapes"))
    monkeypatch.setattr(verifier.TargetSequences, "__init__", fail)
    with pytest.raises(ConfigError, match=r"does not run: ValueError: shapes"):
        opened(make_hf("verifier-broken"))
