#!/usr/bin/env bash
# Package:  mlx 0.32.4, mlx-lm 0.32.2, a checkpoint with weights in FP8
# Expected: a checkpoint with weights of dtype F8_E4M3 is refused, as one of F8_E5M2 is, or computes
#           with the numbers that they stand for.
# Seen:     F8_E4M3 becomes uint8: mlx-lm loads such a model by its strict way, without a word, and
#           computes with the bytes as whole numbers. A weight of 1.0 counts as 56.
set -euo pipefail
sed -n '2,/^set/s/^# //p' "$0"
home=${FINDINGS_HOME:-}
if [ -z "$home" ]; then home=$(mktemp -d); trap 'rm -rf "$home"' EXIT; fi
[ -x "$home/venv/bin/python" ] || python3 -m venv "$home/venv"
"$home/venv/bin/python" -m pip install -q 'mlx[cpu]==0.32.4' mlx-lm==0.32.2
cd "$home"
venv/bin/python - <<'PY'
import json
import struct
from pathlib import Path

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten
from mlx_lm.models import llama
from mlx_lm.utils import load_model

CONFIG = {"model_type": "llama", "hidden_size": 32, "intermediate_size": 64, "vocab_size": 64}
CONFIG |= {"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2}
CONFIG |= {"rms_norm_eps": 1e-5, "tie_word_embeddings": False}
ONE = 0x38  # 1.0 in E4M3
SIZES = {"F32": 4, "F8_E4M3": 1, "F8_E5M2": 1}
PART = "down_proj.weight"


def write(folder, dtype, value):
    """Write a model of random weights in F32, but for PART, all of whose weights are a value."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    model = llama.Model(llama.ModelArgs.from_dict(CONFIG))
    random = np.random.default_rng(0)
    header, data = {}, b""
    for name, weight in tree_flatten(model.parameters()):
        stored, values = "F32", random.standard_normal(weight.shape, np.float32)
        if name.endswith(PART):
            kind = np.uint8 if SIZES[dtype] == 1 else np.float32
            stored, values = dtype, np.full(weight.shape, value, kind)
        raw = values.tobytes()
        place = [len(data), len(data) + len(raw)]
        header[name] = {"dtype": stored, "shape": list(weight.shape), "data_offsets": place}
        data += raw
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    return folder


def logits(folder):
    model, _ = load_model(folder, strict=True)
    return np.array(model(mx.array([[1, 2, 3]]))[0, -1])


def off(one, other):
    return float(abs(one - other).max())


read = logits(write(Path("e4m3"), "F8_E4M3", ONE))
number = logits(write(Path("number"), "F32", 1.0))
whole = logits(write(Path("whole"), "F32", ONE))
print(f"F8_E4M3, all 1.0: logits off by {off(read, number):.3f} from those of 1.0 in F32")
print(f"                             by {off(read, whole):.3f} from those of {ONE}.0 in F32")
try:
    logits(write(Path("e5m2"), "F8_E5M2", 0x3C))
    refused = ""
except RuntimeError as error:
    refused = str(error)
print("F8_E5M2:", refused)
as_described = off(read, number) > 0.1 and off(read, whole) < 0.001 and "unsupported" in refused
raise SystemExit(0 if as_described else 1)
PY
