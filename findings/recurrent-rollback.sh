#!/usr/bin/env bash
# Package:  llama-cpp-python 0.3.36 (llama.cpp), a model with recurrent layers (tiny LFM2)
# Expected: a context with n_rs_seq 8 can take back up to 8 rows, or else llama_memory_seq_rm
#           answers false.
# Seen:     it answers true, and the next logits are those of another text, without any error, when
#           the cut goes to the first row of the newest step or into the step before it, and after a
#           state was saved and restored. Only cuts of one sequence that leave a row of the newest
#           step are right.
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


def context():
    settings = lc.llama_context_default_params()
    settings.n_ctx = 512
    settings.n_threads = settings.n_threads_batch = 1
    settings.n_rs_seq = 8
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


def cut(ctx, length):
    return lc.llama_memory_seq_rm(lc.llama_get_memory(ctx), 0, length, -1)


quiet = lc.llama_log_callback(lambda *_: None)
lc.llama_log_set(quiet, None)
write_model("lfm2.gguf")
model = lc.llama_model_load_from_file(b"lfm2.gguf", lc.llama_model_default_params())
print("llama-cpp-python", lc.__version__)
text = [int(token) for token in random.integers(0, VOCAB, 16)]
NEXT = 7


def one_step():
    """Read 10 ids, then 6 in one step: as a verifier that tests 5 drafts."""
    ctx = context()
    decode(ctx, text[:10], 0)
    decode(ctx, text[10:], 10)
    return ctx


def single_steps():
    ctx = context()
    decode(ctx, text[:10], 0)
    for place in range(10, 16):
        decode(ctx, [text[place]], place)
    return ctx


def restored():
    ctx, other = one_step(), context()
    size = lc.llama_state_seq_get_size(ctx, 0)
    state = (ctypes.c_uint8 * size)()
    lc.llama_state_seq_get_data(ctx, state, size, 0)
    assert lc.llama_state_seq_set_data(other, state, size, 0) == size
    return other


tries = [("within the newest step", one_step, 15), ("within the newest step", one_step, 11)]
tries += [("to its first row", one_step, 10), ("into the step before", one_step, 8)]
tries += [("after six steps of one row", single_steps, 13)]
tries += [("after a restored state", restored, 14)]
as_described = True
for name, make, length in tries:
    ctx = make()
    answer = cut(ctx, length)
    logits = decode(ctx, [NEXT], length)
    right = decode(context(), text[:length] + [NEXT], 0)
    off = float(abs(logits - right).max())
    print(f"{name}: 16 rows cut to {length}: seq_rm {answer}, next logits off by {off:.3f}")
    as_described &= answer and (off < 0.001 if name.startswith("within") else off > 1)
raise SystemExit(0 if as_described else 1)
PY
