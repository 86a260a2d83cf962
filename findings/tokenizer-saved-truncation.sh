#!/usr/bin/env bash
# Package:  tokenizers 0.23.3 and transformers 5.24.0 (Hugging Face), tokenizer.json
# Expected: two readers of one tokenizer.json give the same ids for a text, and what a call was told
#           about its own result is not part of the tokenizer.
# Seen:     transformers writes the truncation of its newest call into the tokenizer.json that it
#           saves, so one that was saved after training has the length of the training's texts.
#           `tokenizers` heeds it: there a longer text is cut without a word. transformers itself
#           does not: the same file read by it gives all ids.
set -euo pipefail
sed -n '2,/^set/s/^# //p' "$0"
home=${FINDINGS_HOME:-}
if [ -z "$home" ]; then home=$(mktemp -d); trap 'rm -rf "$home"' EXIT; fi
[ -x "$home/venv/bin/python" ] || python3 -m venv "$home/venv"
"$home/venv/bin/python" -m pip install -q tokenizers==0.23.3 transformers==5.24.0
cd "$home"
"$home/venv/bin/python" - <<'PY' 2> /dev/null
import tempfile

import tokenizers
import transformers
from tokenizers import Tokenizer
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

print("tokenizers", tokenizers.__version__, "transformers", transformers.__version__)
vocabulary = {letter: number for number, letter in enumerate("abcdef")}
trained = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(BPE(vocabulary, [])))
trained("abcdef", truncation=True, max_length=3)
with tempfile.TemporaryDirectory() as folder:
    trained.save_pretrained(folder)
    file = f"{folder}/tokenizer.json"
    cut = Tokenizer.from_file(file).encode("abcdef").ids
    whole = PreTrainedTokenizerFast(tokenizer_file=file)("abcdef")["input_ids"]
print("by tokenizers", cut, "by transformers", whole)
raise SystemExit(0 if (cut, whole) == ([0, 1, 2], [0, 1, 2, 3, 4, 5]) else 1)
PY
