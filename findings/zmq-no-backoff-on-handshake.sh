#!/usr/bin/env bash
# Package:  pyzmq 27.3.0 (libzmq 4.3.5), CURVE
# Expected: with RECONNECT_IVL_MAX set, the waits between tries grow up to it, whatever keeps the
#           client out: documented as an exponential back-off between reconnections.
# Seen:     they grow only while nobody listens. Where the handshake fails, as after the server got
#           a new key, the client connects anew at the base interval for ever: here about 20 times a
#           second, each with a CURVE handshake at the server.
set -euo pipefail
sed -n '2,/^set/s/^# //p' "$0"
home=${FINDINGS_HOME:-}
if [ -z "$home" ]; then home=$(mktemp -d); trap 'rm -rf "$home"' EXIT; fi
[ -x "$home/venv/bin/python" ] || python3 -m venv "$home/venv"
"$home/venv/bin/python" -m pip install -q pyzmq==27.3.0
cd "$home"
venv/bin/python - <<'PY'
import time

import zmq
from zmq.utils.monitor import recv_monitor_message

BASE, MOST, SECONDS = 50, 5000, 4
context = zmq.Context()


def waits(port, server_key):
    """Connect for some seconds; return the waits before each new try, in milliseconds."""
    client = context.socket(zmq.DEALER)
    client.curve_publickey, client.curve_secretkey = zmq.curve_keypair()
    client.curve_serverkey = server_key
    client.reconnect_ivl, client.reconnect_ivl_max = BASE, MOST
    monitor = client.get_monitor_socket()
    client.connect(f"tcp://127.0.0.1:{port}")
    seen, end = [], time.monotonic() + SECONDS
    while monitor.poll(max(0, 1000 * (end - time.monotonic()))):
        event = recv_monitor_message(monitor)
        if event["event"] == zmq.Event.CONNECT_RETRIED:
            seen.append(int(event["value"]))
    client.close(linger=0)
    return seen


print("pyzmq", zmq.pyzmq_version(), "libzmq", zmq.zmq_version())
server = context.socket(zmq.ROUTER)
server.curve_server, server.curve_secretkey = True, zmq.curve_keypair()[1]
port = server.bind_to_random_port("tcp://127.0.0.1")
other_key = waits(port, zmq.curve_keypair()[0])
server.close(linger=0)
closed_port = waits(port, zmq.curve_keypair()[0])
print("closed port:", closed_port)
print(f"another server key: {len(other_key)} tries in {SECONDS} s, waits {sorted(set(other_key))}")
context.destroy(linger=0)
grows = closed_port[:4] == [50, 100, 200, 400]
raise SystemExit(0 if grows and len(other_key) > 20 and set(other_key) == {BASE} else 1)
PY
