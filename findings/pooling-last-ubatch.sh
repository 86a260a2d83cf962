#!/usr/bin/env bash
# Package:  llama-cpp-python 0.3.36 (llama.cpp, a tiny Llama with random weights)
# Expected: with pooling type MEAN llama_get_embeddings_seq gives the mean over all ids of the
#           sequence that llama_decode was given; n_ubatch only says how many are computed at a
#           time.
# Seen:     100 ids in one llama_decode with n_ubatch 32 give the mean of the last 4 ids alone,
#           those of the last ubatch, and pooling type CLS the first of those instead of the first
#           id. No error.
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

VOCAB, WIDTH, LENGTH = 256, 64, 100
NONE, MEAN, CLS = 0, 1, 2


def write_llama(path, layers=2, width=64, head=16, vocab=256):
    """Write a Llama model with random weights and no text vocabulary."""
    random = np.random.default_rng(0)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(4096)
    writer.add_embedding_length(width)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(2 * width)
    writer.add_head_count(width // head)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(head)
    writer.add_vocab_size(vocab)
    writer.add_tokenizer_model("none")
    tensors = {"token_embd": (vocab, width), "output": (vocab, width), "output_norm": (width,)}
    for layer in range(layers):
        block = {"attn_norm": (width,), "ffn_norm": (width,), "ffn_down": (width, 2 * width)}
        block |= {"ffn_gate": (2 * width, width), "ffn_up": (2 * width, width)}
        block |= {f"attn_{name}": (width, width) for name in ("q", "k", "v", "output")}
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


quiet = lc.llama_log_callback(lambda *_: None)
lc.llama_log_set(quiet, None)
write_llama("llama.gguf", width=WIDTH, vocab=VOCAB)
model = lc.llama_model_load_from_file(b"llama.gguf", lc.llama_model_default_params())
text = [int(token) for token in np.random.default_rng(1).integers(0, VOCAB, LENGTH)]
print("llama-cpp-python", lc.__version__)


def embed(pooling, n_ubatch):
    """Return the embedding of the sequence, or of each row where nothing is pooled."""
    settings = lc.llama_context_default_params()
    settings.n_ctx = settings.n_batch = 512
    settings.n_ubatch = n_ubatch
    settings.embeddings, settings.pooling_type = True, pooling
    ctx = lc.llama_init_from_model(model, settings)
    batch = lc.llama_batch_init(LENGTH, 0, 1)
    batch.n_tokens = LENGTH
    for row, token in enumerate(text):
        batch.token[row], batch.pos[row], batch.logits[row] = token, row, 1
        batch.n_seq_id[row], batch.seq_id[row][0] = 1, 0
    assert lc.llama_decode(ctx, batch) == 0
    if pooling == NONE:
        pointers = [lc.llama_get_embeddings_ith(ctx, row) for row in range(LENGTH)]
    else:
        pointers = [lc.llama_get_embeddings_seq(ctx, 0)]
    return np.array([np.ctypeslib.as_array(pointer, (WIDTH,)).copy() for pointer in pointers])


def off(one, other):
    return float(abs(one - other).max())


rows = embed(NONE, 512)
whole, parts = embed(MEAN, 512)[0], embed(MEAN, 32)[0]
first = embed(CLS, 32)[0]
print(f"MEAN, n_ubatch 512: off by {off(whole, rows.mean(0)):.3f} from the mean of all 100 rows")
print(f"MEAN, n_ubatch 32:  off by {off(parts, rows.mean(0)):.3f} from that mean, and")
print(f"                    off by {off(parts, rows[96:].mean(0)):.3f} from the mean of the last 4")
print(f"CLS,  n_ubatch 32:  off by {off(first, rows[0]):.3f} from row 0,")
print(f"                    off by {off(first, rows[96]):.3f} from row 96")
as_described = off(whole, rows.mean(0)) < 0.01 < 0.3 < off(parts, rows.mean(0))
as_described &= off(parts, rows[96:].mean(0)) < 0.05 and off(first, rows[96]) < 0.05
raise SystemExit(0 if as_described and off(first, rows[0]) > 0.3 else 1)
PY
