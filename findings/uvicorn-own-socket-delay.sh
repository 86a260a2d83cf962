#!/usr/bin/env bash
# Package:  uvicorn 0.54.0 (asyncio), sockets made by socket.create_server
# Expected: a server given its listening socket answers as fast as one that binds for itself.
# Seen:     each answer on a kept connection takes 40 ms more. asyncio switches Nagle's algorithm
#           off only for sockets whose protocol is IPPROTO_TCP; that of socket.create_server, and of
#           a plain socket.socket, is 0. Head and body are two writes, and the second waits for the
#           client's delayed acknowledgement. Setting TCP_NODELAY on the listening socket cures it.
set -euo pipefail
sed -n '2,/^set/s/^# //p' "$0"
home=${FINDINGS_HOME:-}
if [ -z "$home" ]; then home=$(mktemp -d); trap 'rm -rf "$home"' EXIT; fi
[ -x "$home/venv/bin/python" ] || python3 -m venv "$home/venv"
"$home/venv/bin/python" -m pip install -q uvicorn==0.54.0
cd "$home"
venv/bin/python - <<'PY'
import asyncio
import http.client
import socket
import statistics
import threading
import time

import uvicorn


async def app(scope, receive, send):
    if scope["type"] == "http":
        head = [(b"content-type", b"application/json"), (b"content-length", b"2")]
        await send({"type": "http.response.start", "status": 200, "headers": head})
        await send({"type": "http.response.body", "body": b"{}"})


def median_ms(listener=None):
    """Serve on the listener, or let uvicorn bind; return the median time of 15 kept requests."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", lifespan="off"))
    sockets = [listener] if listener else None
    serving = threading.Thread(target=lambda: asyncio.run(server.serve(sockets)), daemon=True)
    serving.start()
    while not server.started:
        time.sleep(0.01)
    port = (listener or server.servers[0].sockets[0]).getsockname()[1]
    connection, times = http.client.HTTPConnection("127.0.0.1", port), []
    for _ in range(15):
        began = time.perf_counter()
        connection.request("GET", "/")
        connection.getresponse().read()
        times.append(1000 * (time.perf_counter() - began))
    return statistics.median(times)


print("uvicorn", uvicorn.__version__)
cured = socket.create_server(("127.0.0.1", 0))
cured.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
own = median_ms()
given = median_ms(socket.create_server(("127.0.0.1", 0)))
set_before = median_ms(cured)
print(f"uvicorn binds: {own:.1f} ms; create_server: {given:.1f} ms; with TCP_NODELAY: "
      f"{set_before:.1f} ms")
raise SystemExit(0 if given > 30 > max(own, set_before) else 1)
PY
