#!/usr/bin/env bash
# Package:  mlx-lm 0.32.2, mlx 0.32.4 (CPU), a tiny Gemma 3 with random weights and a window of 16
# Expected: speculative_generate_step gives the same greedy ids as generate_step whatever the draft
#           model, or raises ValueError, as it does for caches that cannot be trimmed.
# Seen:     with a target that has sliding-window layers, in the caches that the model makes for
#           itself, the ids become others as soon as the text is about as long as the window. It
#           asks once, while the caches are empty, whether they can be trimmed; a full window
#           cannot, and trimming it then does nothing without a word. With a window longer than the
#           text the ids are the same.
set -euo pipefail
sed -n '2,/^set/s/^# //p' "$0"
home=${FINDINGS_HOME:-}
if [ -z "$home" ]; then home=$(mktemp -d); trap 'rm -rf "$home"' EXIT; fi
[ -x "$home/venv/bin/python" ] || python3 -m venv "$home/venv"
"$home/venv/bin/python" -m pip install -q mlx[cpu]==0.32.4 mlx-lm==0.32.2 numpy==2.4.6
cd "$home"
export TMPDIR=$PWD  # where MLX keeps what it compiles
venv/bin/python - <<'PY'
from importlib.metadata import version

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten
from mlx_lm.generate import generate_step, speculative_generate_step
from mlx_lm.models import gemma3_text

mx.set_default_device(mx.cpu)
mx.random.seed(1)
TOKENS = 40


def model(layers, window):
    """Make a model of random weights; every third layer sees everything."""
    made = gemma3_text.Model(
        gemma3_text.ModelArgs(
            model_type="gemma3_text",
            hidden_size=64,
            num_hidden_layers=layers,
            intermediate_size=128,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=32,
            vocab_size=128,
            sliding_window=window,
            sliding_window_pattern=3,
        )
    )
    weights = []
    for name, value in tree_flatten(made.parameters()):
        if value.ndim == 2:
            value = mx.random.normal(value.shape) * (2 / value.shape[1] ** 0.5)
        weights.append((name, value))
    made.load_weights(weights)
    return made


def first_difference(target, draft, prompt):
    """Return the place of the first other id with drafts, or None."""
    alone = [int(token) for token, _ in generate_step(prompt, target, max_tokens=TOKENS)]
    steps = speculative_generate_step(
        prompt, target, draft, num_draft_tokens=3, max_tokens=TOKENS
    )
    drafted = [int(token) for token, _, _ in steps]
    places = [place for place in range(TOKENS) if alone[place] != drafted[place]]
    return places[0] if places else None


print("mlx-lm", version("mlx-lm"), "mlx", version("mlx"))
random = np.random.default_rng(0)
seen = {}
for window in (16, 512):
    target, draft = model(3, window), model(3, 512)
    for length in (5, 12, 20):
        prompt = mx.array(random.integers(0, 128, length))
        seen[window, length] = first_difference(target, draft, prompt)
        print(f"window {window}, prompt of {length}: first other id at {seen[window, length]}")
short = [seen[16, length] for length in (5, 12, 20)]
long = [seen[512, length] for length in (5, 12, 20)]
raise SystemExit(0 if None not in short and long == [None, None, None] else 1)
PY
