#!/usr/bin/env bash
# Package:  xgrammar 0.2.9
# Expected: a pattern speaks of a string's value, and the text is JSON: a quote or a backslash that
#           the pattern asks for is written with its escape.
# Seen:     the pattern is laid on the JSON text itself. Where it asks for a quote, the text is no
#           JSON; where it asks for a backslash and a letter, the parser reads another character;
#           and the right spelling is refused. No warning.
set -euo pipefail
sed -n '2,/^set/s/^# //p' "$0"
home=${FINDINGS_HOME:-}
if [ -z "$home" ]; then home=$(mktemp -d); trap 'rm -rf "$home"' EXIT; fi
[ -x "$home/venv/bin/python" ] || python3 -m venv "$home/venv"
"$home/venv/bin/python" -m pip install -q apache-tvm-ffi==0.1.15.post2 numpy==2.4.6 \
    pydantic==2.14.4
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

print("xgrammar", version("xgrammar"))
tries = [("^a\"b$", '"a"b"', '"a\\"b"'), ("^C:\\\\b$", '"C:\\b"', '"C:\\\\b"')]
as_described = True
for pattern, written, right in tries:
    schema = {"type": "string", "pattern": pattern}
    grammar = xgrammar.Grammar.from_json_schema(json.dumps(schema))
    try:
        meaning = repr(json.loads(written))
    except ValueError:
        meaning = "no JSON"
    taken, right_taken = accepts(grammar, written), accepts(grammar, right)
    print(f"pattern {pattern}: {written} ({meaning}) taken {taken}; {right} taken {right_taken}")
    as_described &= taken and not right_taken
raise SystemExit(0 if as_described else 1)
PY
