#!/usr/bin/env bash
# Package:  llama-cpp-python 0.3.36 (LlamaGrammar.from_json_schema)
# Expected: the grammar holds the model to the schema, or the schema is refused.
# Seen:     minimum, maximum, multipleOf and a string's minLength beside a pattern are dropped
#           without a word, and so is a required property that is not declared.
set -euo pipefail
sed -n '2,/^set/s/^# //p' "$0"
home=${FINDINGS_HOME:-}
if [ -z "$home" ]; then home=$(mktemp -d); trap 'rm -rf "$home"' EXIT; fi
[ -x "$home/venv/bin/python" ] || python3 -m venv "$home/venv"
"$home/venv/bin/python" -m pip install -q llama-cpp-python==0.3.36
cd "$home"
venv/bin/python - <<'PY'
import json

import llama_cpp as lc

quiet = lc.llama_log_callback(lambda *_: None)
lc.llama_log_set(quiet, None)
print("llama-cpp-python", lc.__version__)


def grammar_of(schema):
    grammar = lc.LlamaGrammar.from_json_schema(json.dumps(schema), verbose=False)
    return grammar._grammar


pairs = [
    ({"type": "integer"}, {"minimum": 18, "maximum": 65}),
    ({"type": "number"}, {"minimum": 0, "maximum": 1}),
    ({"type": "integer"}, {"multipleOf": 5}),
    ({"type": "string", "pattern": "^a*$"}, {"minLength": 3}),
    ({"type": "object", "properties": {"a": {"type": "null"}}}, {"required": ["b"]}),
]
dropped = []
for schema, more in pairs:
    dropped.append(grammar_of(schema) == grammar_of(schema | more))
    print(f"{json.dumps(schema)} with {json.dumps(more)}: same grammar {dropped[-1]}")
raise SystemExit(0 if all(dropped) else 1)
PY
