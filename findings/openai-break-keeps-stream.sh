#!/usr/bin/env bash
# Package:  openai 3.57.0 (Python)
# Expected: leaving the loop over a stream ends the request: the server sees the connection close.
# Seen:     the connection stays open as long as the stream object lives, which is as long as its
#           variable. The server goes on generating for nobody. `with stream:`, stream.close() or
#           dropping the last reference end it at once.
set -euo pipefail
sed -n '2,/^set/s/^# //p' "$0"
home=${FINDINGS_HOME:-}
if [ -z "$home" ]; then home=$(mktemp -d); trap 'rm -rf "$home"' EXIT; fi
[ -x "$home/venv/bin/python" ] || python3 -m venv "$home/venv"
"$home/venv/bin/python" -m pip install -q openai==3.57.0
cd "$home"
venv/bin/python - <<'PY'
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import openai

PIECE = {"index": 0, "delta": {"content": "x" * 1000}, "finish_reason": None}
CHUNK = {"id": "a", "object": "chat.completion.chunk", "created": 1, "model": "m"}
left = threading.Event()


class Server(BaseHTTPRequestHandler):
    """Streams for twenty seconds, or until the client has left."""

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        try:
            for _ in range(1000):
                data = json.dumps(CHUNK | {"choices": [PIECE]})
                self.wfile.write(f"data: {data}\n\n".encode())
                time.sleep(0.02)
        except OSError:
            left.set()

    def log_message(self, *_):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
threading.Thread(target=server.serve_forever, daemon=True).start()
client = openai.OpenAI(base_url=f"http://127.0.0.1:{server.server_port}/v1", api_key="none")
print("openai", openai.__version__)
stream = client.chat.completions.create(model="m", messages=[], stream=True)
for chunk in stream:
    break
after_break = left.wait(3)
stream.close()
after_close = left.wait(5)
print(f"closed within 3 s of break: {after_break}; after close(): {after_close}")
raise SystemExit(0 if (after_break, after_close) == (False, True) else 1)
PY
