#!/usr/bin/env bash
# Package:  mlx-lm 0.32.2, mlx 0.32.4, transformers 5.24.0
# Expected: a model that transformers 5 saved rotates in mlx-lm as it was trained, or is refused.
# Seen:     transformers 5 writes `rope_parameters` instead of `rope_theta` and `rope_scaling`. Of
#           five architectures mlx-lm takes its own default for three, without a word (Llama 3: base
#           10,000 instead of 500,000, and no scaling), loads Qwen 3 as trained, and refuses Granite
#           for a missing argument.
set -euo pipefail
sed -n '2,/^set/s/^# //p' "$0"
home=${FINDINGS_HOME:-}
if [ -z "$home" ]; then home=$(mktemp -d); trap 'rm -rf "$home"' EXIT; fi
[ -x "$home/venv/bin/python" ] || python3 -m venv "$home/venv"
"$home/venv/bin/python" -m pip install -q 'mlx[cpu]==0.32.4' mlx-lm==0.32.2 transformers==5.24.0
cd "$home"
venv/bin/python - <<'PY'
import json
from importlib.metadata import version
from pathlib import Path

import mlx.core as mx
import numpy as np
import transformers
from mlx_lm.utils import _get_classes

SIZES = {"hidden_size": 32, "intermediate_size": 64, "vocab_size": 64, "num_hidden_layers": 1}
SIZES |= {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16}
SIZES |= {"max_position_embeddings": 131072, "pad_token_id": 0}
SIZES |= {"bos_token_id": 1, "eos_token_id": 2}
BASE = 123456.0
SCALING = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0}
SCALING |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
TRIED = {
    "llama": ("LlamaConfig", {}),
    "llama, scaled": ("LlamaConfig", SCALING),
    "qwen2": ("Qwen2Config", {}),
    "mistral": ("MistralConfig", {}),
    "qwen3": ("Qwen3Config", {}),
    "granite": ("GraniteConfig", {}),
}
SEEN = {
    "llama": "other rotation",
    "llama, scaled": "other rotation",
    "qwen2": "other rotation",
    "mistral": "other rotation",
    "qwen3": "as trained",
    "granite": "refused",
}


def rotation(config):
    """Return what mlx-lm's first layer makes of ones at position 50."""
    model_class, arguments = _get_classes(config)
    attention = model_class(arguments.from_dict(config)).model.layers[0].self_attn
    return np.array(attention.rope(mx.ones((1, 2, 1, 16)), offset=50))


def outcome(name, scaling):
    """Compare a config that transformers saves with the same one in the older keys."""
    parameters = {"rope_theta": BASE, "rope_type": "default"} | scaling
    made = getattr(transformers, name)(**SIZES, rope_parameters=parameters)
    folder = Path("saved")
    made.save_pretrained(folder)
    saved = json.loads((folder / "config.json").read_text())
    older = {key: value for key, value in saved.items() if key != "rope_parameters"}
    older |= {"rope_theta": BASE, "rope_scaling": scaling or None}
    try:
        found = rotation(saved)
    except TypeError as error:
        print("   ", error)
        return "refused"
    return "as trained" if np.allclose(found, rotation(older)) else "other rotation"


print("mlx-lm", version("mlx-lm"), "transformers", version("transformers"))
found = {}
for kind, (name, scaling) in TRIED.items():
    found[kind] = outcome(name, scaling)
    print(f"{kind}: {found[kind]}")
raise SystemExit(0 if found == SEEN else 1)
PY
