#!/usr/bin/env bash
# Package:  llama-cpp-python 0.3.36 (llama.cpp), a model with recurrent layers (tiny LFM2)
# Expected: after llama_memory_seq_cp the two sequences are independent: cutting the copy back
#           leaves the original as it was, as with a plain attention model.
# Seen:     llama_memory_seq_rm on the copy cuts the original too. Its last rows are lost, and it
#           cannot be continued: llama_decode at its next position answers -1.
set -euo pipefail
sed -n '2,/^set/s/^# //p' "$0"
home=${FINDINGS_HOME:-}
if [ -z "$home" ]; then home=$(mktemp -d); trap 'rm -rf "$home"' EXIT; fi
[ -x "$home/venv/bin/python" ] || python3 -m venv "$home/venv"
"$home/venv/bin/python" -m pip install -q llama-cpp-python==0.3.36 gguf==0.19.0 numpy==2.4.6
cd "$home"
venv/bin/python - <<'PY'
import gguf
import llama_cpp as lc
import numpy as np

WIDTH, HEAD, VOCAB, LAYERS, KERNEL = 64, 16, 256, 3, 4
random = np.random.default_rng(0)


def weights(rows, columns):
    return random.standard_normal((rows, columns), np.float32) * np.float32(2 / columns**0.5)


def write_model(path):
    """Write a model of two short convolutions with an attention layer between them."""
    writer = gguf.GGUFWriter(path, "lfm2")
    writer.add_context_length(512)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(2 * WIDTH)
    writer.add_head_count(WIDTH // HEAD)
    writer.add_head_count_kv([0, WIDTH // HEAD, 0])
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(HEAD)
    writer.add_shortconv_l_cache(KERNEL)
    writer.add_vocab_size(VOCAB)
    writer.add_tokenizer_model("none")
    tensors = {"token_embd": (VOCAB, WIDTH), "output": (VOCAB, WIDTH), "token_embd_norm": (WIDTH,)}
    for layer in range(LAYERS):
        block = {"attn_norm": (WIDTH,), "ffn_norm": (WIDTH,), "ffn_down": (WIDTH, 2 * WIDTH)}
        block |= {"ffn_gate": (2 * WIDTH, WIDTH), "ffn_up": (2 * WIDTH, WIDTH)}
        if layer == 1:
            block |= {f"attn_{name}": (WIDTH, WIDTH) for name in ("q", "k", "v", "output")}
            block |= {"attn_q_norm": (HEAD,), "attn_k_norm": (HEAD,)}
        else:
            block |= {"shortconv.conv": (WIDTH, KERNEL), "shortconv.in_proj": (3 * WIDTH, WIDTH)}
            block |= {"shortconv.out_proj": (WIDTH, WIDTH)}
        tensors |= {f"blk.{layer}.{name}": shape for name, shape in block.items()}
    for name, shape in tensors.items():
        values = weights(*shape) if len(shape) == 2 else np.ones(shape, np.float32)
        writer.add_tensor(f"{name}.weight", values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()



def decode(ctx, ids, first, sequence=0):
    """Decode ids of a sequence at the positions from `first` on; return llama_decode's answer."""
    batch = lc.llama_batch_init(len(ids), 0, 1)
    batch.n_tokens = len(ids)
    for row, token in enumerate(ids):
        batch.token[row], batch.pos[row], batch.logits[row] = token, first + row, 1
        batch.n_seq_id[row], batch.seq_id[row][0] = 1, sequence
    answer = lc.llama_decode(ctx, batch)
    lc.llama_batch_free(batch)
    return answer


quiet = lc.llama_log_callback(lambda *_: None)
lc.llama_log_set(quiet, None)
write_model("lfm2.gguf")
model = lc.llama_model_load_from_file(b"lfm2.gguf", lc.llama_model_default_params())
settings = lc.llama_context_default_params()
settings.n_ctx, settings.n_seq_max, settings.n_rs_seq = 512, 2, 8
ctx = lc.llama_init_from_model(model, settings)
memory = lc.llama_get_memory(ctx)
print("llama-cpp-python", lc.__version__)

ORIGINAL, COPY = 0, 1
text = [int(token) for token in random.integers(0, VOCAB, 16)]
decode(ctx, text[:10], 0)
decode(ctx, text[10:], 10)
lc.llama_memory_seq_cp(memory, ORIGINAL, COPY, -1, -1)
before = lc.llama_memory_seq_pos_max(memory, ORIGINAL)
answer = lc.llama_memory_seq_rm(memory, COPY, 14, -1)
after = lc.llama_memory_seq_pos_max(memory, ORIGINAL)
print(f"seq_rm of the copy from position 14 on: {answer}")
print(f"last position of the original: {before} before, {after} after")
copy_goes_on = decode(ctx, [7], 14, COPY)
original_goes_on = decode(ctx, [7], 16, ORIGINAL)
print(f"the copy at position 14: {copy_goes_on}; the original at 16: {original_goes_on}")
as_described = (before, after, copy_goes_on, original_goes_on) == (15, 13, 0, -1)
raise SystemExit(0 if as_described else 1)
PY
