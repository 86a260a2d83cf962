#!/usr/bin/env bash
# Package:  mlx-lm 0.32.2, mlx 0.32.4 (CPU)
# Expected: sharded_load, with which mlx-lm's own server and examples load a model on several
#           machines, refuses a folder whose weights lack a tensor, as load does.
# Seen:     load raises "Missing 1 parameters"; sharded_load returns the model, with random numbers
#           in the tensor's place: two loads of one folder give other logits.
set -euo pipefail
sed -n '2,/^set/s/^# //p' "$0"
home=${FINDINGS_HOME:-}
if [ -z "$home" ]; then home=$(mktemp -d); trap 'rm -rf "$home"' EXIT; fi
[ -x "$home/venv/bin/python" ] || python3 -m venv "$home/venv"
"$home/venv/bin/python" -m pip install -q 'mlx[cpu]==0.32.4' mlx-lm==0.32.2 safetensors==0.8.0
cd "$home"
export TMPDIR=$PWD  # where MLX keeps what it compiles
venv/bin/python - <<'PY'
import json
from importlib.metadata import version
from pathlib import Path

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.models import llama
from mlx_lm.utils import load, sharded_load
from tokenizers import Tokenizer
from tokenizers.models import BPE

LOST = "model.layers.1.mlp.down_proj.weight"
CONFIG = {
    "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 128,
    "num_attention_heads": 4, "num_key_value_heads": 4, "rms_norm_eps": 1e-5, "vocab_size": 8,
    "eos_token_id": 0, "tie_word_embeddings": False,
}
mx.set_default_device(mx.cpu)
print("mlx-lm", version("mlx-lm"), "mlx", version("mlx"))
folder = Path("lacks-a-tensor")
folder.mkdir(exist_ok=True)
model = llama.Model(llama.ModelArgs.from_dict(CONFIG))
weights = {name: value for name, value in tree_flatten(model.parameters()) if name != LOST}
mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "mlx"})
index = {"weight_map": dict.fromkeys(weights, "model.safetensors")}
(folder / "model.safetensors.index.json").write_text(json.dumps(index))
(folder / "config.json").write_text(json.dumps(CONFIG))
Tokenizer(BPE({letter: i for i, letter in enumerate("abcdefgh")}, [])).save(str(folder / "tokenizer.json"))
kind = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "a"}
(folder / "tokenizer_config.json").write_text(json.dumps(kind))

try:
    load(str(folder))
    refused = ""
except ValueError as error:
    refused = str(error).replace("\n", " ").strip()
print("load:", refused or "no error")
logits = []
for seed in (1, 2):
    mx.random.seed(seed)
    sharded, _ = sharded_load(str(folder), None, mx.distributed.init())
    logits.append(sharded(mx.array([[1, 2, 3]]))[0, -1].tolist())
    print("sharded_load:", [round(value, 3) for value in logits[-1]])
raise SystemExit(0 if "issing 1" in refused and logits[0] != logits[1] else 1)
PY
