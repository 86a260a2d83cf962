#!/usr/bin/env bash
# Package:  llama-cpp-python 0.3.36 (llama.cpp), a model with recurrent layers (tiny LFM2)
# Expected: with n_rs_seq 8 a sequence keeps the states of its newest rows. So llama_memory_seq_rm
#           of its last row is right or answers false, also where that row came in one llama_decode
#           with those of other sequences.
# Seen:     with unequal numbers of rows, and sequences that were not first read in the order of
#           their ids, llama_memory_seq_rm answers true and the next logits are those of another
#           text, without any error. llama.cpp computes the unequal step in parts. A later part may
#           move a sequence's cell to another place, but not the states kept for taking rows back.
#           Equal numbers of rows, or one llama_decode for each sequence, are right.
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


def context():
    settings = lc.llama_context_default_params()
    settings.n_ctx = 512
    settings.n_seq_max = 3
    settings.n_threads = settings.n_threads_batch = 1
    settings.n_rs_seq = 8
    return lc.llama_init_from_model(model, settings)


def decode(ctx, parts):
    """Decode parts (sequence, first position, ids) in one step; return the last row's logits."""
    batch = lc.llama_batch_init(sum(len(ids) for _, _, ids in parts), 0, 1)
    batch.n_tokens = 0
    for seq, first, ids in parts:
        for place, token in enumerate(ids, first):
            row = batch.n_tokens
            batch.token[row], batch.pos[row], batch.logits[row] = token, place, 1
            batch.n_seq_id[row], batch.seq_id[row][0] = 1, seq
            batch.n_tokens += 1
    assert lc.llama_decode(ctx, batch) == 0
    lc.llama_batch_free(batch)
    return np.ctypeslib.as_array(lc.llama_get_logits_ith(ctx, -1), (VOCAB,)).copy()


quiet = lc.llama_log_callback(lambda *_: None)
lc.llama_log_set(quiet, None)
write_model("lfm2.gguf")
model = lc.llama_model_load_from_file(b"lfm2.gguf", lc.llama_model_default_params())
print("llama-cpp-python", lc.__version__)
texts = random.integers(0, VOCAB, (3, 16)).tolist()
NEXT, BEGUN = 7, 10


def worst(order, rows, together):
    """Read 10 ids of each sequence in an order, then some rows of each; take back each's last one.

    Return the largest difference of the next logits to those of the same ids read anew, as a share
    of their spread.
    """
    off = 0.0
    for seq in range(3):
        ctx = context()
        for other in order:
            decode(ctx, [(other, 0, texts[other][:BEGUN])])
        step = [(each, BEGUN, texts[each][BEGUN : BEGUN + rows[each]]) for each in range(3)]
        for parts in [step] if together else [[part] for part in step]:
            decode(ctx, parts)
        length = BEGUN + rows[seq] - 1
        assert lc.llama_memory_seq_rm(lc.llama_get_memory(ctx), seq, length, -1)
        found = decode(ctx, [(seq, length, [NEXT])])
        fresh = context()
        right = decode(fresh, [(0, 0, [*texts[seq][:length], NEXT])])
        off = max(off, float(abs(found - right).max() / (right.max() - right.mean())))
        lc.llama_free(ctx)
        lc.llama_free(fresh)
    return off


tries = [((1, 0, 2), (4, 2, 2), True), ((1, 0, 2), (4, 2, 2), False)]
tries += [((1, 0, 2), (4, 4, 4), True), ((0, 1, 2), (4, 2, 2), True)]
as_described = True
for number, (order, rows, together) in enumerate(tries):
    off = worst(order, rows, together)
    way = "one decode" if together else "one decode each"
    print(f"sequences begun in the order {order}, then {rows} rows in {way}:")
    print(f"    seq_rm of the last row answers true, next logits off by {off:.3f} of their spread")
    as_described &= off > 0.3 if number == 0 else off < 0.001
raise SystemExit(0 if as_described else 1)
PY
