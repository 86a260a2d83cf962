#!/usr/bin/env bash
# Package:  llguidance 1.9.1
# Expected: a text of the grammar, read by a JSON parser, is valid under the schema: a declared
#           property has its schema however its name is spelled.
# Seen:     where other properties are allowed (the default), a declared name may come once more
#           with an escape in it, with any value. A parser takes the last one: {"unit": "cm"}
#           becomes {"unit": "m"} although the schema has {"unit": {"const": "cm"}}. The same goes
#           for patternProperties and for a property that is forbidden by false.
set -euo pipefail
sed -n '2,/^set/s/^# //p' "$0"
home=${FINDINGS_HOME:-}
if [ -z "$home" ]; then home=$(mktemp -d); trap 'rm -rf "$home"' EXIT; fi
[ -x "$home/venv/bin/python" ] || python3 -m venv "$home/venv"
"$home/venv/bin/python" -m pip install -q llguidance==1.9.1 jsonschema==4.26.0
cd "$home"
venv/bin/python - <<'PY'
import json

import jsonschema
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
unit = {"type": "object", "properties": {"unit": {"const": "cm"}}, "required": ["unit"]}
tries = [
    (unit, '{"unit": "m"}', False),
    (unit, '{"unit": "cm", "unit": "m"}', False),
    (unit, '{"unit": "cm", "un\\u0069t": "m"}', True),
    ({"type": "object", "properties": {"size": False}}, '{"s\\u0069ze": 1}', True),
    ({"type": "object", "patternProperties": {"^x": {"type": "null"}}}, '{"\\u0078y": 1}', True),
]
as_described = True
for schema, text, seen in tries:
    answer = accepts(LLMatcher.grammar_from_json_schema(schema), text)
    value = json.loads(text)
    valid = jsonschema.Draft202012Validator(schema).is_valid(value)
    print(f"{json.dumps(schema)}\n    {text} means {value}: valid {valid}, taken {answer}")
    as_described &= answer == seen and not valid
raise SystemExit(0 if as_described else 1)
PY
