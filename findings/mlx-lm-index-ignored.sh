#!/usr/bin/env bash
# Package:  mlx-lm 0.32.2, mlx 0.32.4
# Expected: of a folder in several files mlx-lm reads those that model.safetensors.index.json names,
#           or refuses a folder with others beside them, as a download over an older one leaves.
# Seen:     it reads every model*.safetensors, never the index, and keeps whichever weight comes last
#           in the folder's own order. With the same two files an index that names the one or the
#           other gives the same weights.
set -euo pipefail
sed -n '2,/^set/s/^# //p' "$0"
home=${FINDINGS_HOME:-}
if [ -z "$home" ]; then home=$(mktemp -d); trap 'rm -rf "$home"' EXIT; fi
[ -x "$home/venv/bin/python" ] || python3 -m venv "$home/venv"
"$home/venv/bin/python" -m pip install -q 'mlx[cpu]==0.32.4' mlx-lm==0.32.2
cd "$home"
venv/bin/python - <<'PY'
import json
from importlib.metadata import version
from pathlib import Path

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.models import llama
from mlx_lm.utils import load_model

CONFIG = {"model_type": "llama", "hidden_size": 32, "intermediate_size": 64, "vocab_size": 64}
CONFIG |= {"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2}
CONFIG |= {"rms_norm_eps": 1e-5, "tie_word_embeddings": False}
VALUES = {"model-00001-of-00001.safetensors": 1.0, "model-00001-of-00002.safetensors": 2.0}

folder = Path("two-downloads")
folder.mkdir(exist_ok=True)
(folder / "config.json").write_text(json.dumps(CONFIG))
shapes = tree_flatten(llama.Model(llama.ModelArgs.from_dict(CONFIG)).parameters())
for file, value in VALUES.items():
    weights = {name: mx.full(weight.shape, value) for name, weight in shapes}
    mx.save_safetensors(str(folder / file), weights)

print("mlx-lm", version("mlx-lm"))
loaded = []
for file, value in VALUES.items():
    index = {"metadata": {}, "weight_map": {name: file for name, _ in shapes}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    model, _ = load_model(folder, strict=True)
    loaded.append({float(weight.mean()) for _, weight in tree_flatten(model.parameters())})
    print(f"the index names {file}, whose weights are {value}: loaded weights {loaded[-1]}")
raise SystemExit(0 if loaded[0] == loaded[1] and len(loaded[0]) == 1 else 1)
PY
