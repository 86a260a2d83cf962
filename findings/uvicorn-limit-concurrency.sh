#!/usr/bin/env bash
# Package:  uvicorn 0.54.0 (h11)
# Expected: --limit-concurrency 1 serves one request at a time: by its help the number is what is
#           allowed, and what is beyond it gets 503.
# Seen:     every request gets 503: a connection counts itself, and the limit is reached rather than
#           passed. With a limit of 2 one idle kept connection, as browsers and SDKs hold, is enough
#           to refuse all others.
set -euo pipefail
sed -n '2,/^set/s/^# //p' "$0"
home=${FINDINGS_HOME:-}
if [ -z "$home" ]; then home=$(mktemp -d); trap 'rm -rf "$home"' EXIT; fi
[ -x "$home/venv/bin/python" ] || python3 -m venv "$home/venv"
"$home/venv/bin/python" -m pip install -q uvicorn==0.54.0
cd "$home"
venv/bin/python - <<'PY'
import asyncio
import socket
import threading
import time

import uvicorn

REQUEST = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"


async def app(scope, receive, send):
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"ok"})


def serve(limit):
    """Start a server in a thread; return its port."""
    settings = uvicorn.Config(
        app, port=0, http="h11", log_level="error", lifespan="off", limit_concurrency=limit
    )
    server = uvicorn.Server(settings)
    threading.Thread(target=lambda: asyncio.run(server.serve()), daemon=True).start()
    while not server.started:
        time.sleep(0.01)
    return server.servers[0].sockets[0].getsockname()[1]


def status(port):
    """Return the status of one request, the only one at that moment."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(REQUEST)
        return int(connection.recv(100).split()[1])


print("uvicorn", uvicorn.__version__)
one, two = serve(1), serve(2)
alone = [status(one), status(one)]
print("limit 1, one request after the other:", alone)
free = status(two)
print("limit 2, one request:", free)
idle = socket.create_connection(("127.0.0.1", two))
time.sleep(0.5)
beside_idle = status(two)
print("limit 2, one request beside an idle connection:", beside_idle)
raise SystemExit(0 if (alone, free, beside_idle) == ([503, 503], 200, 503) else 1)
PY
