#!/usr/bin/env bash
# Package:  llama-cpp-python 0.3.36 (llama.cpp, a tiny Gemma 3 with random weights and a window of
#           64)
# Expected: a context with swa_full keeps all rows of its sliding-window layers, so a saved and
#           restored sequence can be cut back as the original can, or else llama_memory_seq_rm
#           answers false.
# Seen:     llama_state_seq_get_data leaves out what lies before the window. The restored sequence
#           goes on rightly, but when it is cut back to before the window, seq_rm answers true and
#           the next logits are wrong without any error. Only llama_memory_seq_pos_min shows it.
set -euo pipefail
sed -n '2,/^set/s/^# //p' "$0"
home=${FINDINGS_HOME:-}
if [ -z "$home" ]; then home=$(mktemp -d); trap 'rm -rf "$home"' EXIT; fi
[ -x "$home/venv/bin/python" ] || python3 -m venv "$home/venv"
"$home/venv/bin/python" -m pip install -q llama-cpp-python==0.3.36 gguf==0.19.0 numpy==2.4.6
cd "$home"
venv/bin/python - <<'PY'
import ctypes

import gguf
import llama_cpp as lc
import numpy as np

WIDTH, HEAD, VOCAB, LAYERS, WINDOW = 64, 16, 256, 6, 64


def write_model(path):
    """Write a Gemma 3 whose layers, all but the sixth, see the last WINDOW rows only."""
    random = np.random.default_rng(0)
    writer = gguf.GGUFWriter(path, "gemma3")
    writer.add_context_length(1024)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(2 * WIDTH)
    writer.add_head_count(WIDTH // HEAD)
    writer.add_key_length(HEAD)
    writer.add_value_length(HEAD)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_sliding_window(WINDOW)
    writer.add_vocab_size(VOCAB)
    writer.add_tokenizer_model("none")
    norms = ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm")
    tensors = {"token_embd": (VOCAB, WIDTH), "output_norm": (WIDTH,)}
    for layer in range(LAYERS):
        block = {name: (WIDTH,) for name in norms}
        block |= {"attn_q_norm": (HEAD,), "attn_k_norm": (HEAD,), "ffn_down": (WIDTH, 2 * WIDTH)}
        block |= {f"attn_{name}": (WIDTH, WIDTH) for name in ("q", "k", "v", "output")}
        block |= {"ffn_gate": (2 * WIDTH, WIDTH), "ffn_up": (2 * WIDTH, WIDTH)}
        tensors |= {f"blk.{layer}.{name}": shape for name, shape in block.items()}
    for name, shape in tensors.items():
        values = np.ones(shape, np.float32)
        if len(shape) == 2:
            values = random.standard_normal(shape, np.float32) * np.float32(2 / shape[1] ** 0.5)
        writer.add_tensor(f"{name}.weight", values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def context():
    settings = lc.llama_context_default_params()
    settings.n_ctx = settings.n_batch = 512
    settings.n_threads = settings.n_threads_batch = 1
    settings.swa_full = True
    return lc.llama_init_from_model(model, settings)


def decode(ctx, ids, first):
    """Decode ids at the positions from `first` on in one step; return the last row's logits."""
    batch = lc.llama_batch_init(len(ids), 0, 1)
    batch.n_tokens = len(ids)
    for row, token in enumerate(ids):
        batch.token[row], batch.pos[row], batch.logits[row] = token, first + row, 1
        batch.n_seq_id[row], batch.seq_id[row][0] = 1, 0
    assert lc.llama_decode(ctx, batch) == 0
    lc.llama_batch_free(batch)
    return np.ctypeslib.as_array(lc.llama_get_logits_ith(ctx, -1), (VOCAB,)).copy()


quiet = lc.llama_log_callback(lambda *_: None)
lc.llama_log_set(quiet, None)
write_model("gemma3.gguf")
model = lc.llama_model_load_from_file(b"gemma3.gguf", lc.llama_model_default_params())
text = [int(token) for token in np.random.default_rng(1).integers(0, VOCAB, 300)]
NEXT, SHORT = 7, 100
print("llama-cpp-python", lc.__version__, "window", lc.llama_model_n_swa(model))

original, restored = context(), context()
decode(original, text, 0)
size = lc.llama_state_seq_get_size(original, 0)
state = (ctypes.c_uint8 * size)()
lc.llama_state_seq_get_data(original, state, size, 0)
assert lc.llama_state_seq_set_data(restored, state, size, 0) == size

end = len(text)
goes_on = abs(decode(restored, [NEXT], end) - decode(original, [NEXT], end)).max()
print(f"goes on after {end} ids: restored off by {goes_on:.3f} from the original")
right = decode(context(), text[:SHORT] + [NEXT], 0)
off = {}
for name, ctx in (("original", original), ("restored", restored)):
    memory = lc.llama_get_memory(ctx)
    first = lc.llama_memory_seq_pos_min(memory, 0)
    answer = lc.llama_memory_seq_rm(memory, 0, SHORT, -1)
    off[name] = abs(decode(ctx, [NEXT], SHORT) - right).max()
    print(f"{name}: first row kept {first}, seq_rm to {SHORT} {answer}, off by {off[name]:.3f}")
    assert answer
raise SystemExit(0 if goes_on < 0.05 and off["original"] < 0.05 and off["restored"] > 1 else 1)
PY
