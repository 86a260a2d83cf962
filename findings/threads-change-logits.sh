#!/usr/bin/env bash
# Package:  llama-cpp-python 0.3.36 (llama.cpp on a CPU, a tiny Llama with random weights)
# Expected: the number of threads decides how fast a step is, not what it computes.
# Seen:     with flash attention (the default) the logits of one row after 1,000 ids differ between
#           one thread and two: the cache is shared out among the threads, and their parts are added
#           up in another order. Without flash attention all bits are equal. So the same seed may
#           give another text on a machine with other cores.
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

VOCAB = 256


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


def decode(ctx, ids, first):
    """Decode ids at the positions from `first` on; return the last row's logits."""
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
write_llama("llama.gguf", vocab=VOCAB)
model = lc.llama_model_load_from_file(b"llama.gguf", lc.llama_model_default_params())
text = [int(token) for token in np.random.default_rng(1).integers(0, VOCAB, 1000)]
print("llama-cpp-python", lc.__version__)


def logits(threads, flash_attention):
    settings = lc.llama_context_default_params()
    settings.n_ctx = settings.n_batch = 1024
    settings.n_threads, settings.n_threads_batch = threads, 1
    settings.flash_attn_type = 1 if flash_attention else 0
    ctx = lc.llama_init_from_model(model, settings)
    decode(ctx, text, 0)
    last = decode(ctx, [7], len(text))
    lc.llama_free(ctx)
    return last


off = {}
for flash_attention in (True, False):
    alone = logits(1, flash_attention)
    for threads in (1, 2, 4):
        off[flash_attention, threads] = abs(logits(threads, flash_attention) - alone).max()
        print(
            f"flash attention {flash_attention}, {threads} threads:"
            f" off by {off[flash_attention, threads]:.6f} from one thread"
        )
same = not (off[True, 1] or off[False, 1] or off[False, 2] or off[False, 4])
raise SystemExit(0 if same and off[True, 2] > 1e-4 and off[True, 4] > 1e-4 else 1)
PY
