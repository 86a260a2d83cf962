#!/usr/bin/env bash
# Package:  jsonschema 4.26.0, beside llguidance 1.9.1 and jsonschema-rs 0.61.2
# Expected: 4.02 and 19.99 are multiples of 0.01, and 0.3 of 0.1, as JSON numbers are decimal.
# Seen:     jsonschema divides as floats and refuses them, while llguidance writes and jsonschema-rs
#           accepts them. So an answer held to the schema fails the client's validation.
set -euo pipefail
sed -n '2,/^set/s/^# //p' "$0"
home=${FINDINGS_HOME:-}
if [ -z "$home" ]; then home=$(mktemp -d); trap 'rm -rf "$home"' EXIT; fi
[ -x "$home/venv/bin/python" ] || python3 -m venv "$home/venv"
"$home/venv/bin/python" -m pip install -q jsonschema==4.26.0 jsonschema-rs==0.61.2 \
    llguidance==1.9.1
cd "$home"
venv/bin/python - <<'PY'
from importlib.metadata import version

import jsonschema
import jsonschema_rs
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


print("jsonschema", version("jsonschema"), "llguidance", llguidance.__version__)
seen = {}
for step, value in ((0.01, 4.02), (0.01, 19.99), (0.1, 0.3), (0.01, 4.025)):
    schema = {"type": "number", "multipleOf": step}
    written = accepts(LLMatcher.grammar_from_json_schema(schema), str(value))
    other = jsonschema_rs.validator_for(schema).is_valid(value)
    seen[value] = (jsonschema.Draft202012Validator(schema).is_valid(value), other, written)
    print(f"{value} of {step}: jsonschema {seen[value][0]}, jsonschema-rs {other}, "
          f"llguidance {written}")
multiple = (False, True, True)
as_described = seen == {4.02: multiple, 19.99: multiple, 0.3: multiple, 4.025: (False,) * 3}
raise SystemExit(0 if as_described else 1)
PY
