#!/usr/bin/env bash
# Package:  openai 3.57.0 (Python) beside openai 6.49.0 (npm)
# Expected: chat.completions.stream() puts tool calls together by their index, whichever begins
#           first.
# Seen:     in Python a call with index 1 that begins before the one with index 0 raises IndexError
#           out of the loop, and the text so far is lost with it. The npm package gives both calls.
set -euo pipefail
sed -n '2,/^set/s/^# //p' "$0"
home=${FINDINGS_HOME:-}
if [ -z "$home" ]; then home=$(mktemp -d); trap 'rm -rf "$home"' EXIT; fi
[ -x "$home/venv/bin/python" ] || python3 -m venv "$home/venv"
"$home/venv/bin/python" -m pip install -q openai==3.57.0
cd "$home"
npm install --silent --no-audit --no-fund --prefix . openai@6.49.0
cat > server.py <<'PY'
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def call(index, **function):
    return {"tool_calls": [{"index": index, "type": "function", "function": function}]}


def begin(index, name):
    """Return the delta with which a call begins."""
    delta = call(index, name=name, arguments="")
    delta["tool_calls"][0]["id"] = f"id{index}"
    return delta


DELTAS = [{"role": "assistant", "content": "Both at once."}, begin(1, "g"), begin(0, "f")]
DELTAS += [call(1, arguments='{"y": 1}'), call(0, arguments='{"x": 1}')]
CHUNK = {"id": "a", "object": "chat.completion.chunk", "created": 1, "model": "m"}


class Server(BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        choices = [{"index": 0, "delta": delta, "finish_reason": None} for delta in DELTAS]
        choices.append({"index": 0, "delta": {}, "finish_reason": "tool_calls"})
        for choice in choices:
            self.wfile.write(f"data: {json.dumps(CHUNK | {'choices': [choice]})}\n\n".encode())
        self.wfile.write(b"data: [DONE]\n\n")

    def log_message(self, *_):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
print(server.server_port, flush=True)
server.serve_forever()
PY
cat > client.py <<'PY'
import sys

import openai

print("openai (Python)", openai.__version__)
client = openai.OpenAI(base_url=f"http://127.0.0.1:{sys.argv[1]}/v1", api_key="none")
messages = [{"role": "user", "content": "x"}]
try:
    with client.chat.completions.stream(model="m", messages=messages) as stream:
        for event in stream:
            pass
        calls = stream.get_final_completion().choices[0].message.tool_calls
        print("calls", [call.function.name for call in calls])
except IndexError as error:
    print("IndexError:", error)
PY
cat > client.mjs <<'JS'
import OpenAI from "openai";
import { VERSION } from "openai/version";

console.log("openai (npm)", VERSION);
const baseURL = `http://127.0.0.1:${process.argv[2]}/v1`;
const client = new OpenAI({ baseURL, apiKey: "none" });
const messages = [{ role: "user", content: "x" }];
const stream = client.chat.completions.stream({ model: "m", messages });
const completion = await stream.finalChatCompletion();
const calls = completion.choices[0].message.tool_calls;
console.log("calls", calls.map((call) => call.function.name + call.function.arguments).join(" "));
JS
venv/bin/python server.py > port &
server=$!
while [ ! -s port ]; do sleep 0.1; done
venv/bin/python client.py "$(cat port)" | tee python.txt
node client.mjs "$(cat port)" | tee node.txt
kill "$server"
grep -q "IndexError" python.txt
grep -qF 'calls f{"x": 1} g{"y": 1}' node.txt
