#!/usr/bin/env bash
# Package:  llguidance 1.9.1, beside Node.js (ECMA 262 with the flag u) and Python's re
# Expected: a character class in a schema's `pattern` is ECMA 262's, as JSON Schema has it, or the
#           schema is refused.
# Seen:     it is Rust's. `&&`, `--` and `~~` intersect and subtract in silence: ^[+--]$, the range
#           from + to -, takes + alone, and ^[a-z&&b]$ takes b alone, so the model is kept from
#           right answers. An inner [ opens a second class: ^[^[]$ and the usual class of ASCII
#           punctuation, [!-/:-@[-`{-~], are refused as not closed.
set -euo pipefail
sed -n '2,/^set/s/^# //p' "$0"
home=${FINDINGS_HOME:-}
if [ -z "$home" ]; then home=$(mktemp -d); trap 'rm -rf "$home"' EXIT; fi
[ -x "$home/venv/bin/python" ] || python3 -m venv "$home/venv"
"$home/venv/bin/python" -m pip install -q llguidance==1.9.1
cd "$home"
cat > ecma.mjs <<'JS'
const [pattern, text] = process.argv.slice(2);
console.log(new RegExp(pattern, "u").test(text));
JS
venv/bin/python -W ignore::FutureWarning - <<'PY'
import json
import re
import subprocess

import llguidance
from llguidance import LLMatcher, LLTokenizer

tokenizer = LLTokenizer("byte")
TRIES = [
    ("^[+--]$", "+", "taken"),
    ("^[+--]$", ",", "not taken"),
    ("^[+--]$", "-", "not taken"),
    ("^[a-z&&b]$", "b", "taken"),
    ("^[a-z&&b]$", "a", "not taken"),
    ("^[a-z&&b]$", "&", "not taken"),
    ("^[0-9~~5]$", "4", "taken"),
    ("^[0-9~~5]$", "5", "not taken"),
    ("^[^[]$", "a", "unclosed character class"),
    ("^[!-/:-@[-`{-~]$", "!", "unclosed character class"),
    (r"^[!-/:-@\[-`{-~]$", "!", "taken"),
]


def ecma(pattern, text):
    """Return whether ECMA 262 finds the pattern in the text."""
    command = ["node", "ecma.mjs", pattern, text]
    return subprocess.check_output(command, text=True).strip() == "true"


def constrained(pattern, text):
    """Return what a grammar of the pattern does with the text."""
    grammar = LLMatcher.grammar_from_json_schema({"type": "string", "pattern": pattern})
    matcher = LLMatcher(tokenizer, grammar, log_level=0)
    if matcher.is_error():
        return matcher.get_error().splitlines()[-1].removeprefix("error: ")
    tokens = tokenizer.tokenize_str(json.dumps(text))
    whole = matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()
    return "taken" if whole else "not taken"


print("llguidance", llguidance.__version__)
as_described = True
for pattern, text, seen in TRIES:
    valid = ecma(pattern, text) and re.search(pattern, text) is not None
    answer = constrained(pattern, text)
    print(f"{pattern}: {text} is {'' if valid else 'not '}valid, {answer}")
    as_described &= valid and answer == seen
raise SystemExit(0 if as_described else 1)
PY
