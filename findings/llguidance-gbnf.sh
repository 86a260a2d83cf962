#!/usr/bin/env bash
# Package:  llguidance 1.9.1 (its converter gbnf_to_lark), beside llama-cpp-python 0.3.36
# Expected: llama.cpp's grammar, converted, takes the same texts.
# Seen:     fewer. Each rule becomes a lexeme that takes as much as it can, so after [a-z]+ a rule
#           "b" can never come, and the dot does not take a newline. No error: such a grammar lets
#           the model write only other texts, or none.
set -euo pipefail
sed -n '2,/^set/s/^# //p' "$0"
home=${FINDINGS_HOME:-}
if [ -z "$home" ]; then home=$(mktemp -d); trap 'rm -rf "$home"' EXIT; fi
[ -x "$home/venv/bin/python" ] || python3 -m venv "$home/venv"
"$home/venv/bin/python" -m pip install -q llguidance==1.9.1 llama-cpp-python==0.3.36 \
    gguf==0.19.0 numpy==2.4.6
cd "$home"
venv/bin/python - <<'PY'
import ctypes

import gguf
import llama_cpp as lc
import llguidance
from llguidance import LLMatcher, LLTokenizer
from llguidance.gbnf_to_lark import gbnf_to_lark

tokenizer = LLTokenizer("byte")


def accepts(grammar, text):
    """Return whether the text is a whole text of the grammar."""
    matcher = LLMatcher(tokenizer, grammar, log_level=0)
    if matcher.is_error():
        raise ValueError(matcher.get_error())
    tokens = tokenizer.tokenize_str(text)
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


def write_vocabulary(path):
    """Write a vocabulary of the 256 bytes and an end token, without weights."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(256, 512))
    alphabet = [chr(byte if byte in visible else next(others)) for byte in range(256)]
    writer = gguf.GGUFWriter(path, "llama")
    for add in (writer.add_context_length, writer.add_embedding_length, writer.add_block_count):
        add(8)
    writer.add_head_count(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([*alphabet, "<|end|>"])
    writer.add_token_types([gguf.TokenType.NORMAL] * 256 + [gguf.TokenType.CONTROL])
    writer.add_token_merges(["h e"])
    writer.add_eos_token_id(256)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def allowed(sampler, token):
    """Return whether llama.cpp's grammar lets the token come next."""
    data = (lc.llama_token_data * 257)()
    for place in range(257):
        data[place].id = place
    tokens = lc.llama_token_data_array(data, 257, -1, False)
    lc.llama_sampler_apply(sampler, ctypes.byref(tokens))
    return any(entry.id == token and entry.logit > -1e30 for entry in data)


def llama_cpp_accepts(grammar, text):
    sampler = lc.llama_sampler_init_grammar(vocab, grammar.encode(), b"root")
    for byte in text.encode():
        if not allowed(sampler, byte):
            return False
        lc.llama_sampler_accept(sampler, byte)
    return allowed(sampler, 256)


quiet = lc.llama_log_callback(lambda *_: None)
lc.llama_log_set(quiet, None)
write_vocabulary("bytes.gguf")
settings = lc.llama_model_default_params()
settings.vocab_only = True
model = lc.llama_model_load_from_file(b"bytes.gguf", settings)
vocab = lc.llama_model_get_vocab(model)
print("llguidance", llguidance.__version__, "llama-cpp-python", lc.__version__)
tries = [
    ('root ::= word "b"\nword ::= [a-z]+\n', "ab", (True, False)),
    ('root ::= word [0-9]\nword ::= [a-z0-9]+\n', "a1", (True, False)),
    ("root ::= .\n", "\n", (True, False)),
    ("root ::= .\n", "x", (True, True)),
    ('root ::= word "B"\nword ::= [a-z]+\n', "aB", (True, True)),
]
as_described = True
for grammar, text, seen in tries:
    answers = llama_cpp_accepts(grammar, text), accepts(gbnf_to_lark(grammar), text)
    print(f"{grammar!r} {text!r}: llama.cpp {answers[0]}, converted {answers[1]}")
    as_described &= answers == seen
raise SystemExit(0 if as_described else 1)
PY
