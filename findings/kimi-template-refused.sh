#!/usr/bin/env bash
# Package:  llama-cpp-python 0.3.36 (llama.cpp's templates), transformers 5.24.0 (jinja2 3.1.6)
# Expected: the chat templates that llama.cpp ships for Kimi-K2, for use in place of the model's
#           own, render a tool loop in transformers too.
# Seen:     transformers refuses them: they keep the calls' ids by list.append, and its Jinja
#           sandbox allows no call that changes a list. A first question renders, so it shows in the
#           second request only.
set -euo pipefail
sed -n '2,/^set/s/^# //p' "$0"
home=${FINDINGS_HOME:-}
if [ -z "$home" ]; then home=$(mktemp -d); trap 'rm -rf "$home"' EXIT; fi
[ -x "$home/venv/bin/python" ] || python3 -m venv "$home/venv"
"$home/venv/bin/python" -m pip install -q jinja2==3.1.6 transformers==5.24.0
cd "$home"
venv/bin/python -m pip download -q --no-deps --no-binary llama-cpp-python \
    llama-cpp-python==0.3.36
templates=llama_cpp_python-0.3.36/vendor/llama.cpp/models/templates
tar -xzf llama_cpp_python-0.3.36.tar.gz "$templates"
venv/bin/python - "$templates" <<'PY'
import sys
from importlib.metadata import version
from pathlib import Path

from transformers.utils.chat_template_utils import render_jinja_template

FUNCTION = {"name": "weather", "arguments": '{"city": "Oslo"}'}
CALL = {"id": "functions.weather:0", "type": "function", "function": FUNCTION}
QUESTION = {"role": "user", "content": "The weather?"}
LOOP = [QUESTION, {"role": "assistant", "content": "", "tool_calls": [CALL]}]
LOOP += [{"role": "tool", "tool_call_id": CALL["id"], "content": "rain"}]
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOL = {"name": "weather", "description": "Tell it.", "parameters": PARAMETERS}


def render(name, messages):
    """Return "renders", or the error."""
    template = (Path(sys.argv[1]) / f"{name}.jinja").read_text()
    tools = [{"type": "function", "function": TOOL}]
    try:
        render_jinja_template(
            [messages], tools=tools, chat_template=template, add_generation_prompt=True
        )
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "renders"


print("transformers", version("transformers"), "jinja2", version("jinja2"))
REASON = "access to attribute 'append' of 'list' object is unsafe"
as_described = render("Qwen-Qwen3-0.6B", LOOP) == "renders"
for name in ("Kimi-K2-Instruct", "Kimi-K2-Thinking"):
    question, loop = render(name, [QUESTION]), render(name, LOOP)
    print(f"{name}: a question {question}; a tool loop {loop}")
    as_described &= question == "renders" and REASON in loop
raise SystemExit(0 if as_described else 1)
PY
