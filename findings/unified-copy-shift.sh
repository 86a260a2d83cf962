#!/usr/bin/env bash
# Package:  llama-cpp-python 0.3.36 (llama.cpp, a tiny Llama with random weights, kv_unified)
# Expected: llama_memory_seq_add moves the positions of the sequence that is named. A copy made by
#           llama_memory_seq_cp can be shifted to make room (context shift), and the original stays.
# Seen:     in a unified cache the rows that both share are moved for both. The original, 20 rows
#           long, ends at position 14 afterwards and cannot be continued: llama_decode answers -1.
#           With one cache for each sequence the original stays as it was.
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
ORIGINAL, COPY = 0, 1


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


def decode(ctx, ids, first, sequence):
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
write_llama("llama.gguf", vocab=VOCAB)
model = lc.llama_model_load_from_file(b"llama.gguf", lc.llama_model_default_params())
text = [int(token) for token in np.random.default_rng(1).integers(0, VOCAB, 20)]
print("llama-cpp-python", lc.__version__)
seen = {}
for unified in (True, False):
    settings = lc.llama_context_default_params()
    settings.n_ctx, settings.n_seq_max, settings.kv_unified = 512, 2, unified
    ctx = lc.llama_init_from_model(model, settings)
    memory = lc.llama_get_memory(ctx)
    decode(ctx, text, 0, ORIGINAL)
    lc.llama_memory_seq_cp(memory, ORIGINAL, COPY, -1, -1)
    assert lc.llama_memory_seq_rm(memory, COPY, 5, 10)
    lc.llama_memory_seq_add(memory, COPY, 10, -1, -5)
    ends = [lc.llama_memory_seq_pos_max(memory, sequence) for sequence in (ORIGINAL, COPY)]
    seen[unified] = (*ends, decode(ctx, [7], len(text), ORIGINAL))
    print(
        f"unified {unified}: the original ends at {ends[0]}, the copy at {ends[1]};"
        f" the original goes on at 20: {seen[unified][2]}"
    )
raise SystemExit(0 if seen == {True: (14, 14, -1), False: (19, 14, 0)} else 1)
PY
