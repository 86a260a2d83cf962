#!/usr/bin/env bash
# Package:  llama-cpp-python 0.3.36 (llama.cpp, vocabularies that are split as GPT-2 and Llama 3 do)
# Expected: llama_detokenize gives back the text that llama_tokenize was given. Its header calls it
#           the inverse, and llama_token_to_piece, token by token, gives the text back exactly.
# Seen:     for the pre-tokenizers gpt-2 and llama-bpe it removes blanks before punctuation and in
#           contractions: "f ( a , b )" becomes "f ( a, b )". For qwen2 it does not.
set -euo pipefail
sed -n '2,/^set/s/^# //p' "$0"
home=${FINDINGS_HOME:-}
if [ -z "$home" ]; then home=$(mktemp -d); trap 'rm -rf "$home"' EXIT; fi
[ -x "$home/venv/bin/python" ] || python3 -m venv "$home/venv"
"$home/venv/bin/python" -m pip install -q llama-cpp-python==0.3.36 gguf==0.19.0
cd "$home"
venv/bin/python - <<'PY'
import ctypes

import gguf
import llama_cpp as lc

TEXT = b"f ( a , b ) ; it 's x . y ! = z ?"
visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
others = iter(range(256, 512))
alphabet = [chr(byte if byte in visible else next(others)) for byte in range(256)]


def vocabulary(pre):
    """Load a vocabulary of the 256 bytes, without weights."""
    writer = gguf.GGUFWriter("vocabulary.gguf", "llama")
    for add in (writer.add_context_length, writer.add_embedding_length, writer.add_block_count):
        add(8)
    writer.add_head_count(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list([*alphabet, "<|end|>"])
    writer.add_token_types([gguf.TokenType.NORMAL] * 256 + [gguf.TokenType.CONTROL])
    writer.add_token_merges(["h e"])
    writer.add_eos_token_id(256)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    settings = lc.llama_model_default_params()
    settings.vocab_only = True
    model = lc.llama_model_load_from_file(b"vocabulary.gguf", settings)
    return lc.llama_model_get_vocab(model)


def round_trip(vocab):
    """Return the text by llama_detokenize and by llama_token_to_piece."""
    tokens = (lc.llama_token * 100)()
    count = lc.llama_tokenize(vocab, TEXT, len(TEXT), tokens, 100, False, False)
    buffer = ctypes.create_string_buffer(200)
    length = lc.llama_detokenize(vocab, tokens, count, buffer, 200, False, False)
    pieces = b""
    for token in tokens[:count]:
        piece = ctypes.create_string_buffer(50)
        size = lc.llama_token_to_piece(vocab, token, piece, 50, 0, False)
        pieces += piece.raw[:size]
    return buffer.raw[:length], pieces


quiet = lc.llama_log_callback(lambda *_: None)
lc.llama_log_set(quiet, None)
print("llama-cpp-python", lc.__version__)
print("given    ", TEXT.decode())
cleaned = {}
for pre in ("gpt-2", "llama-bpe", "qwen2"):
    text, pieces = round_trip(vocabulary(pre))
    cleaned[pre] = text != TEXT and pieces == TEXT
    print(f"{pre:9}", text.decode())
raise SystemExit(0 if cleaned == {"gpt-2": True, "llama-bpe": True, "qwen2": False} else 1)
PY
