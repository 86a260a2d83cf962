"""What config.json says of positions, in the keys of transformers 4 and in those of 5."""

import json

import pytest
from harness.tables import cases

pytest.importorskip("mlx.core")
pytest.importorskip("mlx_lm")

import mlx.core as mx
import numpy as np

from specmesh.config import ModelSettings
from specmesh.engines.mlx.model import MlxModel
from specmesh.engines.mlx.positions import missing_keys


@cases(
    "config, missing",
    """
    [{"rope_theta": 5e5, "rope_scaling": null}, {}]
    [{"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}},
     {"rope_theta": 5e5, "rope_scaling": null}]
    [{"rope_parameters": {"rope_theta": 5e5, "rope_type": "yarn"}},
     {"rope_theta": 5e5, "rope_scaling": {"rope_theta": 5e5, "rope_type": "yarn"}}]
    [{"rope_parameters": {"partial_rotary_factor": 0.5}},
     {"partial_rotary_factor": 0.5, "rope_scaling": null}]
    [{"rope_parameters": {"rope_theta": 5e5}, "rope_theta": 1e4}, {"rope_scaling": null}]
    [{"rope_parameters": {"full_attention": {"rope_theta": 1e6}, "sliding_attention": null}},
     {"rope_theta": 1e6, "rope_scaling": null}]
    [{"rope_parameters": {"sliding_attention": {"rope_theta": 1e4}}},
     {"rope_local_base_freq": 1e4, "rope_scaling": null}]
    [{"text_config": {"a": 1, "rope_parameters": {"rope_theta": 1e6}}},
     {"text_config": {"a": 1, "rope_parameters": {"rope_theta": 1e6}, "rope_theta": 1e6,
      "rope_scaling": null}}]
    [{"text_config": {"a": 1}, "rope_parameters": null}, {}]
    """,
)
def test_missing_keys(config, missing):
    assert missing_keys(config) == missing


@pytest.mark.models
@cases(
    "kind, older, newer",
    """
    ["llama", {"rope_theta": 77}, {"rope_theta": 77, "rope_type": "default"}]
    ["llama",
     {"rope_theta": 77, "rope_scaling":
      {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4,
       "original_max_position_embeddings": 64}},
     {"rope_theta": 77, "rope_type": "llama3", "factor": 8, "low_freq_factor": 1,
      "high_freq_factor": 4, "original_max_position_embeddings": 64}]
    ["hybrid", {"rope_theta": 77, "partial_rotary_factor": 0.25},
     {"rope_theta": 77, "partial_rotary_factor": 0.25, "rope_type": "default"}]
    ["sliding", {"rope_theta": 77, "rope_local_base_freq": 33},
     {"full_attention": {"rope_theta": 77}, "sliding_attention": {"rope_theta": 33}}]
    """,
)
def test_the_newer_keys_give_the_same_logits(make_hf, kind, older, newer):
    folder = make_hf(f"{kind}-{len(older)}", kind, **older)
    expected = logits(folder)
    path = folder / "config.json"
    config = json.loads(path.read_text())
    kept = {key: value for key, value in config.items() if key not in older}
    path.write_text(json.dumps(kept | {"rope_parameters": newer}))
    assert np.array_equal(logits(folder), expected)


def logits(folder):
    """Return those of a text of 40 ids."""
    loaded = MlxModel(ModelSettings(engine="mlx", model=str(folder), gpu_layers=0))
    return np.array(loaded.module(mx.array([[*range(1, 41)]]))[0, -1])
