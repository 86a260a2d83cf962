#!/usr/bin/env bash
# Package:  uvicorn 0.54.0 with h11 0.16.0, beside httptools 0.9.0
# Expected: a request line in absolute form, GET http://host/v1/models, is served like /v1/models:
#           RFC 9112 says a server must accept it, and clients that take the server for a proxy send
#           it.
# Seen:     with h11 the application gets the whole URL as the path and answers 404; with httptools,
#           which uvicorn chooses where it is installed, it gets /v1/models. So whether another
#           package is there decides whether the request works.
set -euo pipefail
sed -n '2,/^set/s/^# //p' "$0"
home=${FINDINGS_HOME:-}
if [ -z "$home" ]; then home=$(mktemp -d); trap 'rm -rf "$home"' EXIT; fi
[ -x "$home/venv/bin/python" ] || python3 -m venv "$home/venv"
"$home/venv/bin/python" -m pip install -q uvicorn==0.54.0 h11==0.16.0 httptools==0.9.0
cd "$home"
venv/bin/python - <<'PY'
import asyncio
import socket
import threading
import time

import h11
import uvicorn

REQUEST = b"GET http://a.example/v1/models HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n\r\n"
paths = {}


def application(kind):
    async def app(scope, receive, send):
        paths[kind] = scope["path"]
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"ok"})

    return app


print("uvicorn", uvicorn.__version__, "h11", h11.__version__)
for kind in ("h11", "httptools"):
    settings = uvicorn.Config(
        application(kind), port=0, http=kind, log_level="error", lifespan="off"
    )
    server = uvicorn.Server(settings)
    threading.Thread(target=lambda: asyncio.run(server.serve()), daemon=True).start()
    while not server.started:
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(REQUEST)
        connection.recv(1000)
    print(f"{kind}: the application's path is {paths[kind]}")
expected = {"h11": "http://a.example/v1/models", "httptools": "/v1/models"}
raise SystemExit(0 if paths == expected else 1)
PY
