#!/usr/bin/env bash
# Package:  mlx-lm 0.32.2, mlx 0.32.4
# Expected: the state of every cache can be set to one that was taken from it, and load_prompt_cache
#           reads what save_prompt_cache has written.
# Seen:     the cache of DeepSeek-V4.1 can neither be trimmed nor set. Its file is written without a
#           word, and cannot be loaded. So such a model cannot go back, and no saved prompt helps it.
set -euo pipefail
sed -n '2,/^set/s/^# //p' "$0"
home=${FINDINGS_HOME:-}
if [ -z "$home" ]; then home=$(mktemp -d); trap 'rm -rf "$home"' EXIT; fi
[ -x "$home/venv/bin/python" ] || python3 -m venv "$home/venv"
"$home/venv/bin/python" -m pip install -q 'mlx[cpu]==0.32.4' mlx-lm==0.32.2
cd "$home"
venv/bin/python - <<'PY'
from importlib.metadata import version
from pathlib import Path

import mlx.core as mx
from mlx_lm.models.cache import load_prompt_cache, save_prompt_cache
from mlx_lm.models.deepseek_v41 import LayerCache

print("mlx-lm", version("mlx-lm"))
cache = LayerCache(window_size=4)
cache.update_window(mx.ones((1, 3, 8)))
for part in ("compress_kv", "index_k", "pending_kv", "pending_gate"):
    setattr(cache, part, mx.ones((1, 1, 8)))
errors = []
try:
    cache.state = cache.state
except AttributeError as error:
    errors.append(f"its own state is set: {type(error).__name__}: {error}")
path = "prompt.safetensors"
save_prompt_cache(path, [cache])
print("saved", Path(path).stat().st_size, "bytes")
try:
    load_prompt_cache(path)
except KeyError as error:
    errors.append(f"what was saved is loaded: {type(error).__name__}: {error}")
print(*errors, sep="\n")
raise SystemExit(0 if len(errors) == 2 and not cache.is_trimmable() else 1)
PY
