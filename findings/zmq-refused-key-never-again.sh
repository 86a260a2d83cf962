#!/usr/bin/env bash
# Package:  pyzmq 27.3.0 (libzmq 4.3.5), CURVE with a ZAP handler
# Expected: a client whose key is refused (ZAP status 400) tries again at the reconnect interval, as
#           it does when nobody listens, and so gets in once its key is allowed.
# Seen:     it never connects again, though the socket stays open. Its key is allowed a second
#           later, and nothing happens. Only a fresh socket gets in.
set -euo pipefail
sed -n '2,/^set/s/^# //p' "$0"
home=${FINDINGS_HOME:-}
if [ -z "$home" ]; then home=$(mktemp -d); trap 'rm -rf "$home"' EXIT; fi
[ -x "$home/venv/bin/python" ] || python3 -m venv "$home/venv"
"$home/venv/bin/python" -m pip install -q pyzmq==27.3.0
cd "$home"
venv/bin/python - <<'PY'
import threading
import time

import zmq
from zmq.utils.monitor import recv_monitor_message

context = zmq.Context()
status = b"400"


def serve_zap():
    """Answer each question about a key with `status`."""
    handler = context.socket(zmq.REP)
    handler.linger = 0
    handler.bind("inproc://zeromq.zap.01")
    while True:
        try:
            version, request, *_ = handler.recv_multipart()
        except zmq.ContextTerminated:
            return
        handler.send_multipart([version, request, status, b"", b"user", b""])


def events(monitor, seconds):
    """Return the names of the events of the next seconds."""
    seen, end = [], time.monotonic() + seconds
    while monitor.poll(max(0, 1000 * (end - time.monotonic()))):
        seen.append(recv_monitor_message(monitor)["event"].name)
    return seen


threading.Thread(target=serve_zap, daemon=True).start()
public, secret = zmq.curve_keypair()
server = context.socket(zmq.ROUTER)
server.curve_server, server.curve_secretkey, server.zap_domain = True, secret, b"verifier"
port = server.bind_to_random_port("tcp://127.0.0.1")


def connect():
    """Connect with a key of its own; return the socket and the monitor of its events."""
    client = context.socket(zmq.DEALER)
    client.curve_publickey, client.curve_secretkey = zmq.curve_keypair()
    client.curve_serverkey, client.reconnect_ivl = public, 50
    monitor = client.get_monitor_socket()
    client.connect(f"tcp://127.0.0.1:{port}")
    return client, monitor


print("pyzmq", zmq.pyzmq_version(), "libzmq", zmq.zmq_version())
client, monitor = connect()
at_first = events(monitor, 1)
status = b"200"
again = events(monitor, 3)
fresh, fresh_monitor = connect()
fresh.send(b"hello")
arrived = bool(server.poll(5000))
print("refused:", at_first)
print("allowed, within 3 s:", again)
print("a fresh socket's message arrived:", arrived)
for monitor in (monitor, fresh_monitor):
    monitor.close(linger=0)
context.destroy(linger=0)
as_described = at_first[-2:] == ["HANDSHAKE_FAILED_AUTH", "DISCONNECTED"]
raise SystemExit(0 if as_described and again == [] and arrived else 1)
PY
