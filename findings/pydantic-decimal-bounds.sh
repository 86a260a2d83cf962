#!/usr/bin/env bash
# Package:  pydantic 2.14.4, beside llguidance 1.9.1
# Expected: the JSON schema of a Decimal with max_digits and decimal_places says so, or the answers
#           that are held to it may be any number that the model takes.
# Seen:     the schema is "number or string" without any bound, so a held answer such as 12345.678
#           or "price" is refused by the very model that the schema was made of.
set -euo pipefail
sed -n '2,/^set/s/^# //p' "$0"
home=${FINDINGS_HOME:-}
if [ -z "$home" ]; then home=$(mktemp -d); trap 'rm -rf "$home"' EXIT; fi
[ -x "$home/venv/bin/python" ] || python3 -m venv "$home/venv"
"$home/venv/bin/python" -m pip install -q pydantic==2.14.4 llguidance==1.9.1
cd "$home"
venv/bin/python - <<'PY'
import json
from decimal import Decimal
from typing import Annotated

import llguidance
import pydantic
from llguidance import LLMatcher, LLTokenizer

tokenizer = LLTokenizer("byte")


def accepts(grammar, text):
    """Return whether the text is a whole text of the grammar."""
    matcher = LLMatcher(tokenizer, grammar, log_level=0)
    if matcher.is_error():
        raise ValueError(matcher.get_error())
    tokens = tokenizer.tokenize_str(text)
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


model = pydantic.TypeAdapter(Annotated[Decimal, pydantic.Field(max_digits=5, decimal_places=2)])
schema = model.json_schema()
print("pydantic", pydantic.VERSION, "llguidance", llguidance.__version__)
print(json.dumps(schema))
grammar = LLMatcher.grammar_from_json_schema(schema)
seen = []
for text in ("123.45", "12345.678", '"price"'):
    try:
        model.validate_json(text)
        valid = True
    except pydantic.ValidationError:
        valid = False
    seen.append((accepts(grammar, text), valid))
    print(f"{text}: written under the schema {seen[-1][0]}, valid for the model {valid}")
raise SystemExit(0 if seen == [(True, True), (True, False), (True, False)] else 1)
PY
