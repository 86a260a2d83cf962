#!/usr/bin/env bash
# Package:  llama-cpp-python 0.3.36 (llama.cpp on a CPU, a tiny Llama with random weights and
#           attention heads of 16 dimensions)
# Expected: keys of type q8_0, whose blocks have 32 numbers, are refused without flash attention as
#           they are with it: "block size 32 does not divide n_embd_head_k=16".
# Seen:     without flash attention the context is made, llama_decode answers 0, and no key is read:
#           the logits are those of a model whose keys are all zero, where each row attends alike to
#           all rows before it. With heads of 32 the same settings are right.
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

WIDTH, VOCAB, LAYERS = 64, 256, 2
AUTO, OFF = -1, 0


def write_llama(path, head, zero_keys=False):
    """Write a Llama model with random weights and no text vocabulary."""
    random = np.random.default_rng(0)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(512)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(2 * WIDTH)
    writer.add_head_count(WIDTH // head)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(head)
    writer.add_vocab_size(VOCAB)
    writer.add_tokenizer_model("none")
    tensors = {"token_embd": (VOCAB, WIDTH), "output": (VOCAB, WIDTH), "output_norm": (WIDTH,)}
    for layer in range(LAYERS):
        block = {"attn_norm": (WIDTH,), "ffn_norm": (WIDTH,), "ffn_down": (WIDTH, 2 * WIDTH)}
        block |= {"ffn_gate": (2 * WIDTH, WIDTH), "ffn_up": (2 * WIDTH, WIDTH)}
        block |= {f"attn_{name}": (WIDTH, WIDTH) for name in ("q", "k", "v", "output")}
        tensors |= {f"blk.{layer}.{name}": shape for name, shape in block.items()}
    for name, shape in tensors.items():
        values = np.ones(shape, np.float32)
        if len(shape) == 2:
            values = random.standard_normal(shape, np.float32) * np.float32(2 / shape[1] ** 0.5)
        if zero_keys and name.endswith("attn_k"):
            values = np.zeros(shape, np.float32)
        writer.add_tensor(f"{name}.weight", values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@lc.llama_log_callback
def log(level, text, data):
    if b"does not divide" in text:
        print("refused:", text.decode().strip())


def opened(path, head, **changes):
    write_llama(path, head, **changes)
    return lc.llama_model_load_from_file(path.encode(), lc.llama_model_default_params())


def context(model, type_k, flash_attention):
    settings = lc.llama_context_default_params()
    settings.n_ctx = 512
    settings.n_threads = settings.n_threads_batch = 1
    settings.flash_attn_type = flash_attention
    settings.type_k = type_k
    return lc.llama_init_from_model(model, settings)


def logits(model, type_k):
    """Read the text without flash attention; return the last row's logits."""
    ctx = context(model, type_k, OFF)
    assert ctx
    batch = lc.llama_batch_init(len(text), 0, 1)
    batch.n_tokens = len(text)
    for row, token in enumerate(text):
        batch.token[row], batch.pos[row], batch.logits[row] = token, row, 1
        batch.n_seq_id[row], batch.seq_id[row][0] = 1, 0
    assert lc.llama_decode(ctx, batch) == 0
    lc.llama_batch_free(batch)
    last = np.ctypeslib.as_array(lc.llama_get_logits_ith(ctx, -1), (VOCAB,)).copy()
    lc.llama_free(ctx)
    return last


lc.llama_log_set(log, None)
print("llama-cpp-python", lc.__version__)
text = [int(token) for token in np.random.default_rng(1).integers(0, VOCAB, 16)]
narrow, wide = opened("16.gguf", 16), opened("32.gguf", 32)
keyless = opened("zero.gguf", 16, zero_keys=True)

refused = context(narrow, lc.GGML_TYPE_Q8_0, AUTO) is None
print(f"heads of 16, q8_0, flash attention auto: refused {refused}")
off = {}
for head, model in ((16, narrow), (32, wide)):
    right, found = logits(model, lc.GGML_TYPE_F16), logits(model, lc.GGML_TYPE_Q8_0)
    off[head] = float(abs(found - right).max() / right.std())
    print(
        f"heads of {head}, no flash attention: first logit {right[0]:.2f} with f16,"
        f" {found[0]:.2f} with q8_0; off by {off[head]:.2f} standard deviations at most"
    )
found, zero = logits(narrow, lc.GGML_TYPE_Q8_0), logits(keyless, lc.GGML_TYPE_F16)
apart = float(abs(found - zero).max())
print(f"heads of 16, q8_0: off by {apart:.6f} from a model whose keys are all zero, with f16")
raise SystemExit(0 if refused and apart < 0.001 and off[16] > 1 and off[32] < 0.2 else 1)
PY
