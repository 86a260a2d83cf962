#!/usr/bin/env bash
# Package:  llguidance 1.9.1
# Expected: const, enum, minimum and maximum with whole numbers hold exactly, whatever their size:
#           JSON Schema knows no limit, and identifiers and money in small units have 64 bits.
# Seen:     beyond 2^53 they are rounded to a float. {"const": 1234567890123456789} forces the model
#           to write 1234567890123456768, another identifier, and a minimum lets a smaller number
#           through.
set -euo pipefail
sed -n '2,/^set/s/^# //p' "$0"
home=${FINDINGS_HOME:-}
if [ -z "$home" ]; then home=$(mktemp -d); trap 'rm -rf "$home"' EXIT; fi
[ -x "$home/venv/bin/python" ] || python3 -m venv "$home/venv"
"$home/venv/bin/python" -m pip install -q llguidance==1.9.1
cd "$home"
venv/bin/python - <<'PY'
import json

import llguidance
from llguidance import LLMatcher, LLTokenizer

tokenizer = LLTokenizer("byte")


def accepts(grammar, text):
    """Return whether the text is a whole text of the grammar."""
    matcher = LLMatcher(tokenizer, grammar, log_level=0)
    if matcher.is_error():
        raise ValueError(matcher.get_error())
    tokens = tokenizer.tokenize_str(text)
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


print("llguidance", llguidance.__version__)
tries = [
    ({"const": 1234567890123456789}, "1234567890123456789", False),
    ({"const": 1234567890123456789}, "1234567890123456768", True),
    ({"enum": [9007199254740993]}, "9007199254740993", False),
    ({"enum": [9007199254740993]}, "9007199254740992", True),
    ({"type": "integer", "minimum": 9007199254740993}, "9007199254740992", True),
    ({"type": "integer", "maximum": 9007199254740993}, "9007199254740993", False),
    ({"const": 123456789}, "123456789", True),
]
as_described = True
for schema, text, seen in tries:
    answer = accepts(LLMatcher.grammar_from_json_schema(schema), text)
    valid = json.loads(text) in (schema.get("const"), *schema.get("enum", []))
    valid |= json.loads(text) >= schema.get("minimum", float("inf"))
    valid |= json.loads(text) <= schema.get("maximum", -float("inf"))
    print(f"{json.dumps(schema)}: {text} is {'' if valid else 'not '}valid, taken {answer}")
    as_described &= answer == seen
raise SystemExit(0 if as_described else 1)
PY
