#!/usr/bin/env bash
# Package:  xgrammar 0.2.9 (strict_mode off: other properties are allowed, as JSON Schema has it)
# Expected: a required property is required whether or not it is declared under properties, and
#           patternProperties hold beside properties, or the schema is refused.
# Seen:     both are dropped without a warning: {} is taken although b is required, and {"x1":
#           "text"} although a name with x must have a number. Siblings of a $ref are dropped too.
set -euo pipefail
sed -n '2,/^set/s/^# //p' "$0"
home=${FINDINGS_HOME:-}
if [ -z "$home" ]; then home=$(mktemp -d); trap 'rm -rf "$home"' EXIT; fi
[ -x "$home/venv/bin/python" ] || python3 -m venv "$home/venv"
"$home/venv/bin/python" -m pip install -q apache-tvm-ffi==0.1.15.post2 numpy==2.4.6 \
    pydantic==2.14.4 jsonschema==4.26.0
"$home/venv/bin/python" -m pip install -q --no-deps xgrammar==0.2.9
cd "$home"
venv/bin/python - <<'PY'
import json
import sys
from importlib.metadata import version
from unittest.mock import MagicMock

import tvm_ffi  # before the stand-ins, as it looks for a real torch

for heavy in ("torch", "transformers"):  # imported for masks and tokenizers, not for grammars
    sys.modules[heavy] = MagicMock()

import xgrammar
from xgrammar.testing import _is_grammar_accept_string as accepts

import jsonschema

print("xgrammar", version("xgrammar"))
number = {"type": "integer"}
tries = [
    ({"type": "object", "required": ["b"]}, "{}"),
    ({"type": "object", "properties": {"a": number}, "required": ["b"]}, '{"a": 1}'),
    (
        {"type": "object", "properties": {"a": number}, "patternProperties": {"^x": number}},
        '{"a": 1, "x1": "text"}',
    ),
    ({"$ref": "#/$defs/s", "$defs": {"s": {"type": "string"}}, "maxLength": 1}, '"long"'),
]
as_described = True
for schema, text in tries:
    grammar = xgrammar.Grammar.from_json_schema(json.dumps(schema), strict_mode=False)
    taken = accepts(grammar, text)
    valid = jsonschema.Draft202012Validator(schema).is_valid(json.loads(text))
    print(f"{json.dumps(schema)}\n    {text}: valid {valid}, taken {taken}")
    as_described &= taken and not valid
raise SystemExit(0 if as_described else 1)
PY
