#!/usr/bin/env bash
# Package:  llama-cpp-python 0.3.36 (llama.cpp), on a CPU with flash attention
# Expected: llama.cpp turns flash attention on by itself where it can ("auto"), so a decode of one
#           row or a few takes at most as long as without it.
# Seen:     after 2,048 ids of a small model one row takes twice, and 16 rows three times as long
#           as with "off": below 64 rows the kernel reads the text anew for each row and head.
set -euo pipefail
sed -n '2,/^set/s/^# //p' "$0"
home=${FINDINGS_HOME:-}
if [ -z "$home" ]; then home=$(mktemp -d); trap 'rm -rf "$home"' EXIT; fi
[ -x "$home/venv/bin/python" ] || python3 -m venv "$home/venv"
"$home/venv/bin/python" -m pip install -q llama-cpp-python==0.3.36 gguf==0.19.0 numpy==2.4.6
cd "$home"
venv/bin/python - <<'PY'
import ctypes
import time
from statistics import median

import gguf
import llama_cpp as lc
import numpy as np

WIDTH, HEAD, VOCAB, INNER, LAYERS = 512, 64, 256, 256, 4
BEFORE = 2048  # ids of the text
CTX = 4096
ROWS = (1, 16)
OFF, AUTO = 0, -1  # llama_flash_attn_type
REPEATS = 7
random = np.random.default_rng(0)


def weights(*shape):
    return random.standard_normal(shape, np.float32) * np.float32(1 / shape[-1] ** 0.5)


def write_model(path):
    """Write a Llama of random weights."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(CTX)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(WIDTH // HEAD)
    writer.add_head_count_kv(WIDTH // HEAD)
    writer.add_rope_dimension_count(HEAD)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(VOCAB)
    writer.add_tokenizer_model("none")
    tensors = {"token_embd": (VOCAB, WIDTH), "output": (VOCAB, WIDTH), "output_norm": (WIDTH,)}
    for layer in range(LAYERS):
        block = {"attn_norm": (WIDTH,), "ffn_norm": (WIDTH,)}
        block |= {f"attn_{name}": (WIDTH, WIDTH) for name in ("q", "k", "v", "output")}
        block |= {"ffn_gate": (INNER, WIDTH), "ffn_up": (INNER, WIDTH), "ffn_down": (WIDTH, INNER)}
        tensors |= {f"blk.{layer}.{name}": shape for name, shape in block.items()}
    for name, shape in tensors.items():
        values = np.ones(shape, np.float32) if name.endswith("norm") else weights(*shape)
        writer.add_tensor(f"{name}.weight", values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
def silent(level, text, data):
    """Print nothing of llama.cpp's log."""


def decode(context, batch, begin, count):
    """Decode so many rows behind `begin` ids; return the seconds."""
    batch.n_tokens = count
    for row in range(count):
        batch.token[row] = (begin + row) % VOCAB
        batch.pos[row] = begin + row
        batch.n_seq_id[row] = 1
        batch.seq_id[row][0] = 0
        batch.logits[row] = 1
    began = time.perf_counter()
    assert lc.llama_decode(context, batch) == 0
    lc.llama_synchronize(context)
    return time.perf_counter() - began


lc.llama_log_set(silent, None)
write_model("flash.gguf")
model_params = lc.llama_model_default_params()
model_params.n_gpu_layers = 0
model = lc.llama_model_load_from_file(b"flash.gguf", model_params)


def context_with(flash):
    """Return a context that has read a text, with flash attention off or by llama.cpp's choice."""
    params = lc.llama_context_default_params()
    params.n_ctx = CTX
    params.n_batch = params.n_ubatch = 512
    params.n_threads = params.n_threads_batch = 1
    params.flash_attn_type = flash
    context = lc.llama_init_from_model(model, params)
    for begin in range(0, BEFORE, 512):
        decode(context, batch, begin, 512)
    return context


batch = lc.llama_batch_init(512, 0, 1)
contexts = {flash: context_with(flash) for flash in (OFF, AUTO)}
slower = []
for rows in ROWS:
    seconds = {OFF: [], AUTO: []}
    for _ in range(REPEATS):
        for flash, context in contexts.items():
            seconds[flash].append(decode(context, batch, BEFORE, rows))
            lc.llama_memory_seq_rm(lc.llama_get_memory(context), 0, BEFORE, -1)
    off, auto = (median(seconds[flash]) for flash in (OFF, AUTO))
    slower.append(auto / off)
    print(f"{rows} rows: off {off * 1e3:.1f} ms, auto {auto * 1e3:.1f} ms; ratio {auto / off:.2f}")
raise SystemExit(min(slower) < 1.1)
PY
