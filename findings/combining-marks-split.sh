#!/usr/bin/env bash
# Package:  llama-cpp-python 0.3.36 (llama.cpp) and tokenizers 0.23.3 (Hugging Face)
# Expected: the pre-tokenizer gpt-4o of llama.cpp (gpt-oss, Llama 4, Phi-4-mini) splits text as the
#           expression does that those models' tokenizers publish, which keeps a letter and its
#           combining marks together and begins a new word at a capital letter.
# Seen:     llama.cpp splits before and after every combining mark, so a word of Hindi, Thai, Tamil,
#           Hebrew or Arabic with marks, or of decomposed Latin, gives many more tokens, and others
#           than in training. It does not see a capital beyond ASCII either: getÜbersicht and
#           userИмя stay whole. The same vocabulary with llama-bpe gives equal ids.
set -euo pipefail
sed -n '2,/^set/s/^# //p' "$0"
home=${FINDINGS_HOME:-}
if [ -z "$home" ]; then home=$(mktemp -d); trap 'rm -rf "$home"' EXIT; fi
[ -x "$home/venv/bin/python" ] || python3 -m venv "$home/venv"
"$home/venv/bin/python" -m pip install -q llama-cpp-python==0.3.36 gguf==0.19.0 tokenizers==0.23.3
cd "$home"
venv/bin/python - <<'PY'
import json

import gguf
import llama_cpp as lc
import tokenizers
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

CONTRACTION = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
UPPER, LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
BEFORE, BLANKS = r"[^\r\n\p{L}\p{N}]?", r"\s*[\r\n]+|\s+(?!\S)|\s+"
EXPRESSIONS = {
    "gpt-4o": (
        rf"{BEFORE}[{UPPER}]*[{LOWER}]+{CONTRACTION}?|{BEFORE}[{UPPER}]+[{LOWER}]*{CONTRACTION}?"
        rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{BLANKS}"
    ),
    "llama-bpe": (
        rf"{CONTRACTION}|{BEFORE}\p{{L}}+|\p{{N}}{{1,3}}"
        rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{BLANKS}"
    ),
}
TEXTS = ["नमस्ते दुनिया", "สวัสดี", "தமிழ்", "שָׁלוֹם", "مَرْحَبًا", "e\u0301cole", "Tie\u0302\u0301ng"]
TEXTS += ["getÜbersicht", "userИмя", "Hello world, it's 2026", "naïve café", "Привет, мир"]

as_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
learner = Tokenizer(models.BPE())
learner.pre_tokenizer = as_bytes
trainer = trainers.BpeTrainer(
    vocab_size=2000, initial_alphabet=as_bytes.alphabet(), show_progress=False
)
learner.train_from_iterator(TEXTS * 10, trainer)
learned = json.loads(learner.to_str())["model"]
merges = [tuple(merge) for merge in learned["merges"]]
tokens = sorted(learned["vocab"], key=learned["vocab"].get)


def hugging_face(pre):
    """Return a tokenizer of the learned vocabulary that splits by the published expression."""
    tokenizer = Tokenizer(models.BPE(vocab=learned["vocab"], merges=merges))
    split = pre_tokenizers.Split(Regex(EXPRESSIONS[pre]), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, as_bytes])
    return lambda text: tokenizer.encode(text).ids


def llama_cpp(pre):
    """Return the same vocabulary in llama.cpp."""
    writer = gguf.GGUFWriter("vocabulary.gguf", "llama")
    for add in (writer.add_context_length, writer.add_embedding_length, writer.add_block_count):
        add(8)
    writer.add_head_count(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list([*tokens, "<|end|>"])
    writer.add_token_types([gguf.TokenType.NORMAL] * len(tokens) + [gguf.TokenType.CONTROL])
    writer.add_token_merges([" ".join(merge) for merge in merges])
    writer.add_eos_token_id(len(tokens))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    settings = lc.llama_model_default_params()
    settings.vocab_only = True
    model = lc.llama_model_load_from_file(b"vocabulary.gguf", settings)
    vocab = lc.llama_model_get_vocab(model)

    def encode(text):
        data = text.encode()
        buffer = (lc.llama_token * 100)()
        count = lc.llama_tokenize(vocab, data, len(data), buffer, 100, False, False)
        return buffer[:count]

    return encode


quiet = lc.llama_log_callback(lambda *_: None)
lc.llama_log_set(quiet, None)
print("llama-cpp-python", lc.__version__, "tokenizers", tokenizers.__version__)
other = {}
for pre in EXPRESSIONS:
    published, bound = hugging_face(pre), llama_cpp(pre)
    other[pre] = []
    for text in TEXTS:
        ours, theirs = bound(text), published(text)
        if ours != theirs:
            other[pre].append(text)
            print(f"{pre} {text}: {len(theirs)} tokens expected, {len(ours)} in llama.cpp")
    print(f"{pre}: {len(other[pre])} of {len(TEXTS)} texts differ")
raise SystemExit(0 if other == {"gpt-4o": TEXTS[:9], "llama-bpe": []} else 1)
PY
