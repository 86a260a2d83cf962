#!/usr/bin/env bash
# Package:  litellm 1.110.2
# Expected: completion() with an `anthropic/` model sends a tool's schema with the same meaning, or
#           refuses it.
# Seen:     of its root only type, properties, required, additionalProperties and $defs are sent.
#           A $ref there, as Pydantic writes it for a model that holds itself, becomes an object of
#           no properties, so any arguments fit. Where patternProperties are all that is allowed,
#           they are gone and nothing is allowed. Of `definitions` that refer to themselves the
#           references stay, and what they name does not. With an `openai/` model the schema
#           arrives as it is.
set -euo pipefail
sed -n '2,/^set/s/^# //p' "$0"
home=${FINDINGS_HOME:-}
if [ -z "$home" ]; then home=$(mktemp -d); trap 'rm -rf "$home"' EXIT; fi
[ -x "$home/venv/bin/python" ] || python3 -m venv "$home/venv"
"$home/venv/bin/python" -m pip install -q litellm==1.110.2
cd "$home"
# What it would otherwise ask of the network is in the package.
export LITELLM_LOCAL_MODEL_COST_MAP=True LITELLM_LOCAL_ANTHROPIC_BETA_HEADERS=True
venv/bin/python - <<'PY'
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version

import litellm
from pydantic import BaseModel

litellm.suppress_debug_info = True
NO_USAGE = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
SAID = {"role": "assistant", "content": "x"}
OPENAI = {"id": "a", "object": "chat.completion", "created": 1, "model": "m", "usage": NO_USAGE}
OPENAI |= {"choices": [{"index": 0, "finish_reason": "stop", "message": SAID}]}
ANTHROPIC = {"id": "a", "type": "message", "role": "assistant", "model": "m"}
ANTHROPIC |= {"content": [{"type": "text", "text": "x"}], "stop_reason": "end_turn"}
ANTHROPIC |= {"stop_sequence": None, "usage": {"input_tokens": 1, "output_tokens": 1}}
asked = []


class Server(BaseHTTPRequestHandler):
    def do_POST(self):
        asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        answer = ANTHROPIC if self.path.endswith("/messages") else OPENAI
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def log_message(self, *_):
        pass


class Node(BaseModel):
    name: str
    inner: list["Node"] = []


server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
threading.Thread(target=server.serve_forever, daemon=True).start()
url = f"http://127.0.0.1:{server.server_port}"


def sent(schema, provider):
    """Return the schema that the server gets."""
    tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
    question = [{"role": "user", "content": "x"}]
    base = url if provider == "anthropic" else f"{url}/v1"
    litellm.completion(
        model=f"{provider}/m", api_base=base, api_key="none", messages=question, tools=tools
    )
    tool = asked.pop()["tools"][0]
    return tool["input_schema"] if provider == "anthropic" else tool["function"]["parameters"]


recursive = Node.model_json_schema()
own = {"type": "array", "items": {"$ref": "#/definitions/Tree"}}
tree = {"type": "object", "properties": {"inner": own}}
older = {"type": "object", "properties": {"tree": {"$ref": "#/definitions/Tree"}}}
older |= {"definitions": {"Tree": tree}}
numbers = {"type": "object", "minProperties": 1, "additionalProperties": False}
numbers |= {"patternProperties": {"^n": {"type": "integer"}}}
plain = {"type": "object", "properties": {"a": {"$ref": "#/$defs/A"}}, "required": ["a"]}
plain |= {"additionalProperties": False, "$defs": {"A": {"type": "integer", "minimum": 3}}}
nothing = {"type": "object", "properties": {}}
tries = [
    (recursive, {"$defs": recursive["$defs"]} | nothing),
    (older, {"type": "object", "properties": {"tree": tree}}),
    (numbers, {"additionalProperties": False} | nothing),
    (plain, plain),
]
print("litellm", version("litellm"))
as_described = True
for schema, seen in tries:
    got = sent(schema, "anthropic")
    print(f"given:     {json.dumps(schema)}\nanthropic: {json.dumps(got)}")
    as_described &= got == seen and sent(schema, "openai") == schema
print("openai:    as given")
raise SystemExit(0 if as_described else 1)
PY
