#!/usr/bin/env bash
# Package:  mlx-lm 0.32.2, mlx 0.32.4 (CPU), a tiny Llama with random weights whose tokens are pairs
#           of letters
# Expected: with "stop", mlx_lm.server ends the text before that string, as OpenAI's API does, or
#           refuses the field.
# Seen:     it ends where the tokens of the string come one after the other. Where the string comes
#           within others, as "bc" in "ab" "cd", it is taken out of the text, the text goes on
#           without it, and the answer says "length".
set -euo pipefail
sed -n '2,/^set/s/^# //p' "$0"
home=${FINDINGS_HOME:-}
if [ -z "$home" ]; then home=$(mktemp -d); trap 'rm -rf "$home"' EXIT; fi
[ -x "$home/venv/bin/python" ] || python3 -m venv "$home/venv"
"$home/venv/bin/python" -m pip install -q mlx[cpu]==0.32.4 mlx-lm==0.32.2 \
  transformers==5.24.0 tokenizers==0.23.3 numpy==2.4.6
cd "$home"
export TMPDIR=$PWD  # where MLX keeps what it compiles
export HF_HUB_OFFLINE=1
venv/bin/python - <<'PY'
import json
import socket
import subprocess
import sys
import time
import urllib.request
from importlib.metadata import version
from itertools import product
from pathlib import Path
from string import ascii_lowercase
from urllib.error import URLError

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.models import llama
from tokenizers import Tokenizer, decoders, models

FOLDER = Path("model")
CONFIG = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
}


def write_model():
    """Write a model of random weights that knows the letters a to z, and all pairs of them."""
    pairs = [*product(ascii_lowercase, repeat=2)]
    pieces = [*ascii_lowercase, *("".join(pair) for pair in pairs)]
    numbers = {piece: number for number, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocab=numbers, merges=pairs))
    tokenizer.decoder = decoders.Fuse()
    FOLDER.mkdir(exist_ok=True)
    tokenizer.save(str(FOLDER / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast"}
    (FOLDER / "tokenizer_config.json").write_text(json.dumps(settings))
    config = CONFIG | {"vocab_size": len(pieces)}
    (FOLDER / "config.json").write_text(json.dumps(config))
    mx.set_default_device(mx.cpu)
    mx.random.seed(1)
    weights = {}
    for name, value in tree_flatten(llama.Model(llama.ModelArgs(**config)).parameters()):
        if value.ndim == 2:
            value = mx.random.normal(value.shape) * (2 / value.shape[1] ** 0.5)
        weights[name] = value
    mx.save_safetensors(str(FOLDER / "model.safetensors"), weights)
    return tokenizer


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def complete(port, **fields):
    """Return the text and the finish reason of a greedy completion."""
    body = {"prompt": "start", "max_tokens": 20, "temperature": 0} | fields
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        [choice] = json.load(response)["choices"]
    return choice["text"], choice["finish_reason"]


print("mlx-lm", version("mlx-lm"), "mlx", version("mlx"))
tokenizer = write_model()
port = free_port()
words = [sys.executable, "-m", "mlx_lm", "server", "--model", str(FOLDER), "--port", str(port)]
with open("server.log", "w") as log:
    server = subprocess.Popen(words, stdout=log, stderr=log)
try:
    for _ in range(120):
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models", timeout=5).close()
            break
        except URLError:
            time.sleep(1)
    whole, _ = complete(port)
    print("without stop:", whole)
    seen = []
    for begin in (10, 11):  # the pair of letters of one token, and that between two tokens
        stop = whole[begin : begin + 2]
        assert whole.index(stop) == begin, "it comes earlier"
        text, reason = complete(port, stop=[stop])
        print(f"stop {stop}: {text} ({reason})")
        before = whole[:begin]
        seen.append(text == before and reason == "stop")
        seen.append(text == before + whole[begin + 2 :] and reason == "length")
finally:
    server.terminate()
    server.wait()
raise SystemExit(0 if seen == [True, False, False, True] else 1)
PY
