#!/usr/bin/env bash
# Package:  tokenizers 0.23.3 (Hugging Face), tokenizer.json
# Expected: an added token gets the id that its file names, or the file is refused: here id 2, which
#           the model's own vocabulary (ids 0, 1 and 3) leaves free.
# Seen:     an added token that is not in the model's vocabulary gets the number of tokens that there
#           are so far, here 3, without a word. "c" has that id already, so both are encoded as 3,
#           and 3 is decoded as the added token. Named in the vocabulary as well, it keeps its id.
set -euo pipefail
sed -n '2,/^set/s/^# //p' "$0"
home=${FINDINGS_HOME:-}
if [ -z "$home" ]; then home=$(mktemp -d); trap 'rm -rf "$home"' EXIT; fi
[ -x "$home/venv/bin/python" ] || python3 -m venv "$home/venv"
"$home/venv/bin/python" -m pip install -q tokenizers==0.23.3
"$home/venv/bin/python" - <<'PY'
import json

import tokenizers
from tokenizers import Tokenizer

END = "<|end|>"


def read(vocabulary):
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    added = {"id": 2, "content": END, "special": True} | flags
    model = {"type": "BPE", "vocab": vocabulary, "merges": []}
    return Tokenizer.from_str(json.dumps({"added_tokens": [added], "model": model}))


print("tokenizers", tokenizers.__version__)
seen = []
for own in ({"a": 0, "b": 1, "c": 3}, {"a": 0, "b": 1, "c": 3, END: 2}):
    tokenizer = read(own)
    ids = tokenizer.encode(f"ab{END}c").ids
    named = tokenizer.token_to_id(END)
    text = tokenizer.decode([3], skip_special_tokens=False)
    seen.append((named, ids, text))
    print(f"vocabulary {own}: {END} is {named}, ab{END}c is {ids}, 3 is {text!r}")
raise SystemExit(0 if seen == [(3, [0, 1, 3, 3], END), (2, [0, 1, 2, 3], "c")] else 1)
PY
