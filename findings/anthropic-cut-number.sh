#!/usr/bin/env bash
# Package:  anthropic 2.14.0 (Python) with jiter 0.19.0
# Expected: when an answer is cut by max_tokens inside a tool call, the helper's final message
#           leaves out the value that is not whole, or raises.
# Seen:     half a string or literal is left out, but half a number is taken as whole: of {"amount":
#           1250} cut after 12 the input is {"amount": 12}, and nothing but stop_reason tells it
#           from a right call. A list keeps the items so far.
set -euo pipefail
sed -n '2,/^set/s/^# //p' "$0"
home=${FINDINGS_HOME:-}
if [ -z "$home" ]; then home=$(mktemp -d); trap 'rm -rf "$home"' EXIT; fi
[ -x "$home/venv/bin/python" ] || python3 -m venv "$home/venv"
"$home/venv/bin/python" -m pip install -q anthropic==2.14.0 jiter==0.19.0
cd "$home"
venv/bin/python - <<'PY'
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version

import anthropic

CUT = {
    '{"amount": 12': {"amount": 12},
    '{"to": "Ann", "amount": 12': {"to": "Ann", "amount": 12},
    '{"to": "An': {},
    '{"ids": [1, 2': {"ids": [1, 2]},
    '{"now": tr': {},
}


def events(arguments):
    """Return the events of an answer that ends inside its tool call."""
    message = {"id": "a", "type": "message", "role": "assistant", "content": [], "model": "m"}
    message |= {"stop_reason": None, "usage": {"input_tokens": 1, "output_tokens": 1}}
    yield {"type": "message_start", "message": message}
    block = {"type": "tool_use", "id": "t", "name": "pay", "input": {}}
    yield {"type": "content_block_start", "index": 0, "content_block": block}
    delta = {"type": "input_json_delta", "partial_json": arguments}
    yield {"type": "content_block_delta", "index": 0, "delta": delta}
    yield {"type": "content_block_stop", "index": 0}
    end = {"stop_reason": "max_tokens", "stop_sequence": None}
    yield {"type": "message_delta", "delta": end, "usage": {"output_tokens": 9}}
    yield {"type": "message_stop"}


class Server(BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        for event in events(body["messages"][0]["content"]):
            self.wfile.write(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())

    def log_message(self, *_):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
threading.Thread(target=server.serve_forever, daemon=True).start()
client = anthropic.Anthropic(base_url=f"http://127.0.0.1:{server.server_port}", api_key="none")
print("anthropic", anthropic.__version__, "jiter", version("jiter"))
as_described = True
for arguments, seen in CUT.items():
    question = [{"role": "user", "content": arguments}]
    with client.messages.stream(model="m", max_tokens=9, messages=question) as stream:
        message = stream.get_final_message()
    print(f"{arguments} gives {message.content[0].input}, {message.stop_reason}")
    as_described &= message.content[0].input == seen
raise SystemExit(0 if as_described else 1)
PY
