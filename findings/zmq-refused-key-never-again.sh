#!/usr/bin/env bash
# Package:  pyzmq 27.3.0 (libzmq 4.3.5), CURVE with pyzmq's own authenticator (ZAP)
# Expected: a client whose key is refused tries again at the reconnect interval, as it does when
#           nobody listens, and so gets in once its key is allowed.
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
import time

import zmq
from zmq.auth.thread import ThreadAuthenticator
from zmq.utils.monitor import recv_monitor_message


class Keys:
    """Allows every key, or none."""

    allowed = False

    def callback(self, domain, key):
        return self.allowed


def events(monitor, seconds):
    """Return the names of the events of the next seconds."""
    seen, end = [], time.monotonic() + seconds
    while monitor.poll(max(0, 1000 * (end - time.monotonic()))):
        seen.append(recv_monitor_message(monitor)["event"].name)
    return seen


context, keys = zmq.Context(), Keys()
authenticator = ThreadAuthenticator(context)
authenticator.start()
authenticator.configure_curve_callback(domain="verifier", credentials_provider=keys)
public, secret = zmq.curve_keypair()
server = context.socket(zmq.ROUTER)
server.curve_server, server.curve_secretkey, server.zap_domain = True, secret, b"verifier"
port = server.bind_to_random_port("tcp://127.0.0.1")


def connect():
    """Connect with a key of its own."""
    client = context.socket(zmq.DEALER)
    client.curve_publickey, client.curve_secretkey = zmq.curve_keypair()
    client.curve_serverkey, client.reconnect_ivl = public, 50
    monitor = client.get_monitor_socket()
    client.connect(f"tcp://127.0.0.1:{port}")
    return client, monitor


print("pyzmq", zmq.pyzmq_version(), "libzmq", zmq.zmq_version())
_, monitor = connect()
at_first = events(monitor, 2)
keys.allowed = True
again = events(monitor, 3)
fresh, _ = connect()
fresh.send(b"hello")
arrived = bool(server.poll(10_000))
print("refused:", at_first)
print("allowed, within 3 s:", again)
print("a fresh socket's message arrived:", arrived)
authenticator.stop()
context.destroy(linger=0)
as_described = at_first[-2:] == ["HANDSHAKE_FAILED_AUTH", "DISCONNECTED"]
raise SystemExit(0 if as_described and again == [] and arrived else 1)
PY
