#!/usr/bin/env bash
# Package:  llama-cpp-python 0.3.36 (llama.cpp's adaptive-p sampler)
# Expected: llama_sampler_clone copies a sampler with its state, so the clone draws what the
#           original draws: speculative decoding clones the chain before a step that it may have to
#           take back.
# Seen:     the clone of an adaptive-p sampler begins anew with the seed's first random number, so
#           it draws other tokens. The dist sampler's clone draws the same.
set -euo pipefail
sed -n '2,/^set/s/^# //p' "$0"
home=${FINDINGS_HOME:-}
if [ -z "$home" ]; then home=$(mktemp -d); trap 'rm -rf "$home"' EXIT; fi
[ -x "$home/venv/bin/python" ] || python3 -m venv "$home/venv"
"$home/venv/bin/python" -m pip install -q llama-cpp-python==0.3.36 numpy==2.4.6
cd "$home"
venv/bin/python - <<'PY'
import ctypes

import llama_cpp as lc
import numpy as np

logits = np.random.default_rng(0).standard_normal(50)
SEED = 7


def draw(sampler, count):
    """Sample `count` tokens from the same logits and accept them."""
    drawn = []
    for _ in range(count):
        data = (lc.llama_token_data * len(logits))()
        for token, logit in enumerate(logits):
            data[token].id, data[token].logit = token, float(logit)
        tokens = lc.llama_token_data_array(data, len(logits), -1, False)
        lc.llama_sampler_apply(sampler, ctypes.byref(tokens))
        drawn.append(tokens.data[tokens.selected].id)
        lc.llama_sampler_accept(sampler, drawn[-1])
    return drawn


print("llama-cpp-python", lc.__version__)
makers = {
    "dist": lambda: lc.llama_sampler_init_dist(SEED),
    "adaptive-p": lambda: lc.llama_sampler_init_adaptive_p(0.5, 0.9, SEED),
}
same = {}
for name, make in makers.items():
    chain = lc.llama_sampler_chain_init(lc.llama_sampler_chain_default_params())
    lc.llama_sampler_chain_add(chain, make())
    draw(chain, 5)
    clone = lc.llama_sampler_clone(chain)
    original, cloned = draw(chain, 12), draw(clone, 12)
    same[name] = original == cloned
    print(f"{name}: original {original}\n{' ' * len(name)}  clone    {cloned}")
raise SystemExit(0 if same == {"dist": True, "adaptive-p": False} else 1)
PY
