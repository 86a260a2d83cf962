#!/usr/bin/env bash
# Package:  llama-cpp-python 0.3.36 (llama.cpp), a model with a NextN layer (tiny GLM-4.5)
# Expected: llama_get_embeddings_nextn of a context of type MTP, masked, is the NextN layer's own
#           hidden state of the flagged row, as llama_get_logits_ith is that row's logits. In which
#           batches the rows before were decoded does not matter.
# Seen:     the logits are right, and for MiMo-2 so is the state. For GLM-4.5 the state is that of the
#           batch's first row, whichever row is flagged. Nothing fails.
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
from llama_cpp import llama_cpp_ext as ext

WIDTH, HEAD, VOCAB, EXPERTS, INNER = 64, 16, 256, 2, 128
LAYERS, NEXTN = 1, 1
random = np.random.default_rng(0)


def weights(*shape):
    return random.standard_normal(shape, np.float32) * np.float32(1 / shape[-1] ** 0.5)


def write_model(path, arch):
    """Write a model of one layer and one NextN layer."""
    mimo = arch == "mimo2"
    writer = gguf.GGUFWriter(path, arch)
    writer.add_context_length(512)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS + NEXTN)
    writer.add_nextn_predict_layers(NEXTN)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(WIDTH // HEAD)
    writer.add_head_count_kv(WIDTH // HEAD)
    writer.add_key_length(HEAD)
    writer.add_value_length(HEAD)
    writer.add_rope_dimension_count(HEAD)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_expert_feed_forward_length(INNER)
    if mimo:
        writer.add_sliding_window(512)
        writer.add_sliding_window_pattern([False, True])
    else:
        writer.add_expert_count(EXPERTS)
        writer.add_expert_used_count(EXPERTS)
        writer.add_expert_shared_count(1)
    writer.add_vocab_size(VOCAB)
    writer.add_tokenizer_model("none")
    tensors = {"token_embd": (VOCAB, WIDTH), "output": (VOCAB, WIDTH), "output_norm": (WIDTH,)}
    for layer in range(LAYERS + NEXTN):
        block = {"attn_norm": (WIDTH,), "attn_output": (WIDTH, WIDTH)}
        if mimo:
            block |= {"attn_qkv": (3 * WIDTH, WIDTH), "ffn_norm": (WIDTH,)}
            block |= {"ffn_gate": (INNER, WIDTH), "ffn_up": (INNER, WIDTH)}
            block |= {"ffn_down": (WIDTH, INNER)}
        else:
            block |= {f"attn_{name}": (WIDTH, WIDTH) for name in "qkv"}
            block |= {"post_attention_norm": (WIDTH,), "ffn_gate_inp": (EXPERTS, WIDTH)}
            block |= {"ffn_gate_exps": (EXPERTS, INNER, WIDTH)}
            block |= {"ffn_up_exps": (EXPERTS, INNER, WIDTH)}
            block |= {"ffn_down_exps": (EXPERTS, WIDTH, INNER)}
            block |= {"ffn_gate_shexp": (INNER, WIDTH), "ffn_up_shexp": (INNER, WIDTH)}
            block |= {"ffn_down_shexp": (WIDTH, INNER)}
            writer.add_tensor(f"blk.{layer}.exp_probs_b.bias", np.zeros(EXPERTS, np.float32))
        if layer >= LAYERS:
            block |= {"nextn.eh_proj": (WIDTH, 2 * WIDTH)}
            block |= {"nextn.enorm": (WIDTH,), "nextn.hnorm": (WIDTH,)}
        tensors |= {f"blk.{layer}.{name}": shape for name, shape in block.items()}
    for name, shape in tensors.items():
        values = weights(*shape) if len(shape) > 1 else np.ones(shape, np.float32)
        writer.add_tensor(f"{name}.weight", values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def decode(context, begin, rows, flagged):
    """Decode rows of sequence 0, each an id and a hidden state."""
    batch = lc.llama_batch_init(rows, 0, 1)
    hidden = STATES[begin:]
    batch.embd = hidden.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
    batch.n_tokens = rows
    for row in range(rows):
        position = begin + row
        batch.token[row], batch.pos[row] = IDS[position], position
        batch.n_seq_id[row], batch.seq_id[row][0] = 1, 0
        batch.logits[row] = position == flagged
    assert lc.llama_decode(context, batch) == 0
    batch.embd = None
    lc.llama_batch_free(batch)


def wanted(model, batches, flagged):
    """Decode the rows in batches of these sizes; return the flagged row's state and logits.

    It is in the last batch.
    """
    settings = lc.llama_context_default_params()
    settings.n_ctx = 256
    settings.n_threads = settings.n_threads_batch = 1
    settings.ctx_type = lc.LLAMA_CONTEXT_TYPE_MTP
    context = lc.llama_init_from_model(model, settings)
    ext.llama_set_embeddings_nextn(context, True, True)
    begin = 0
    for rows in batches:
        decode(context, begin, rows, flagged)
        begin += rows
    address = ctypes.cast(ext.llama_get_embeddings_nextn(context), FLOATS)
    state = np.ctypeslib.as_array(address, (WIDTH,)).copy()
    logits = np.ctypeslib.as_array(lc.llama_get_logits_ith(context, -1), (VOCAB,)).copy()
    lc.llama_free(context)
    return state, logits


def off(one, other):
    return float(abs(one - other).max())


FLOATS = ctypes.POINTER(ctypes.c_float)
IDS = [5, 6, 7, 8]
STATES = random.standard_normal((len(IDS), WIDTH)).astype(np.float32)
quiet = lc.llama_log_callback(lambda *_: None)
lc.llama_log_set(quiet, None)
print("llama-cpp-python", lc.__version__)
as_described = True
for arch in ("mimo2", "glm4moe"):
    write_model(f"{arch}.gguf", arch)
    settings = lc.llama_model_default_params()
    settings.load_mtp = True
    model = lc.llama_model_load_from_file(f"{arch}.gguf".encode(), settings)
    first, _ = wanted(model, [1], 0)
    for flagged in (1, 2, 3):
        alone = [1] * (flagged + 1)
        right_state, right_logits = wanted(model, alone, flagged)
        state, logits = wanted(model, [len(IDS)], flagged)
        wrong = off(state, right_state)
        print(
            f"{arch}: row {flagged} of 4 flagged: logits off by {off(logits, right_logits):.3f},"
            f" state by {wrong:.3f}, from that of row 0 by {off(state, first):.3f}"
        )
        as_described &= off(logits, right_logits) < 0.001
        if arch == "mimo2":
            as_described &= wrong < 0.001
        else:
            as_described &= wrong > 1 and off(state, first) < 0.001
raise SystemExit(0 if as_described else 1)
PY
