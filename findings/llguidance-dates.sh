#!/usr/bin/env bash
# Package:  llguidance 1.9.1, beside pydantic 2.14.4
# Expected: what format date, time and date-time let through is a date and a time by RFC 3339, which
#           the formats are defined by: 29 February in leap years only, second 60 at the end of a
#           UTC day only.
# Seen:     29 February of any year, and second 60 in any minute. pydantic, whose models such
#           schemas usually come from, refuses the answer.
set -euo pipefail
sed -n '2,/^set/s/^# //p' "$0"
home=${FINDINGS_HOME:-}
if [ -z "$home" ]; then home=$(mktemp -d); trap 'rm -rf "$home"' EXIT; fi
[ -x "$home/venv/bin/python" ] || python3 -m venv "$home/venv"
"$home/venv/bin/python" -m pip install -q llguidance==1.9.1 pydantic==2.14.4
cd "$home"
venv/bin/python - <<'PY'
import datetime

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


print("llguidance", llguidance.__version__, "pydantic", pydantic.VERSION)
tries = [
    (datetime.date, "2024-02-29", (True, True)),
    (datetime.date, "2023-02-29", (True, False)),
    (datetime.date, "1900-02-29", (True, False)),
    (datetime.date, "2023-02-30", (False, False)),
    (datetime.time, "10:47:60Z", (True, False)),
    (datetime.datetime, "2023-02-29T10:00:00Z", (True, False)),
    (datetime.datetime, "2024-05-05T17:37:60Z", (True, False)),
]
as_described = True
for kind, text, seen in tries:
    model = pydantic.TypeAdapter(kind)
    taken = accepts(LLMatcher.grammar_from_json_schema(model.json_schema()), f'"{text}"')
    try:
        model.validate_python(text)
        valid = True
    except pydantic.ValidationError:
        valid = False
    print(f"{model.json_schema()} {text}: llguidance takes it {taken}, pydantic {valid}")
    as_described &= (taken, valid) == seen
raise SystemExit(0 if as_described else 1)
PY
