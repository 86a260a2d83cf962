#!/usr/bin/env bash
# Package:  litellm 1.110.2
# Expected: anthropic.messages.acreate() over a server with OpenAI's API gives each piece of a
#           tool call's arguments to the call of its index, as acompletion() of the same package
#           does, also where two calls grow in turns.
# Seen:     every piece goes to the call that began last: of f {"x": 1} and g {"y": 2} the first
#           gets no arguments, which counts as {}, and the second {"x": 1}{"y": 2}, which is no
#           JSON. Calls that come one after the other are right.
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
import asyncio
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version

import litellm

litellm.suppress_debug_info = True


def begin(index, name):
    """Return the delta with which a call begins."""
    call = {"index": index, "id": f"id{index}", "type": "function"}
    return {"tool_calls": [call | {"function": {"name": name, "arguments": ""}}]}


def piece(index, arguments):
    return {"tool_calls": [{"index": index, "function": {"arguments": arguments}}]}


ORDERS = {
    "one by one": [begin(0, "f"), piece(0, '{"x": 1}'), begin(1, "g"), piece(1, '{"y": 2}')],
    "in turns": [begin(0, "f"), begin(1, "g"), piece(0, '{"x": 1}'), piece(1, '{"y": 2}')],
}
CHUNK = {"id": "a", "object": "chat.completion.chunk", "created": 1, "model": "m"}
RIGHT = {"f": '{"x": 1}', "g": '{"y": 2}'}


class Server(BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        deltas = [{"role": "assistant"}, *ORDERS[body["messages"][0]["content"]]]
        choices = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
        choices.append({"index": 0, "delta": {}, "finish_reason": "tool_calls"})
        for choice in choices:
            self.wfile.write(f"data: {json.dumps(CHUNK | {'choices': [choice]})}\n\n".encode())
        self.wfile.write(b"data: [DONE]\n\n")

    def log_message(self, *_):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
threading.Thread(target=server.serve_forever, daemon=True).start()
tools = [{"name": name, "input_schema": {"type": "object"}} for name in RIGHT]
common = {"model": "hosted_vllm/m", "api_base": f"http://127.0.0.1:{server.server_port}/v1"}
common |= {"api_key": "none", "max_tokens": 9, "stream": True}


async def by_messages(question):
    """Return the arguments by the names of the calls, from Anthropic's events."""
    stream = await litellm.anthropic.messages.acreate(messages=question, tools=tools, **common)
    names = {}
    arguments = {}
    lines = b"".join([data async for data in stream]).decode().splitlines()
    for event in (json.loads(line[6:]) for line in lines if line.startswith("data: ")):
        if event["type"] == "content_block_start":
            names[event["index"]] = event["content_block"]["name"]
            arguments[names[event["index"]]] = ""
        elif event["type"] == "content_block_delta":
            arguments[names[event["index"]]] += event["delta"]["partial_json"]
    return arguments


async def by_completion(question):
    """Return the arguments by the names of the calls, from OpenAI's chunks."""
    stream = await litellm.acompletion(messages=question, **common)
    answer = litellm.stream_chunk_builder([chunk async for chunk in stream])
    calls = answer.choices[0].message.tool_calls
    return {call.function.name: call.function.arguments for call in calls}


async def main():
    print("litellm", version("litellm"))
    mixed = {"f": "", "g": '{"x": 1}{"y": 2}'}
    as_described = True
    for order, seen in {"one by one": RIGHT, "in turns": mixed}.items():
        question = [{"role": "user", "content": order}]
        messages = await by_messages(question)
        completion = await by_completion(question)
        print(f"{order}: messages give {messages}, completions {completion}")
        as_described &= messages == seen and completion == RIGHT
    return 0 if as_described else 1


raise SystemExit(asyncio.run(main()))
PY
