#!/usr/bin/env bash
# Package:  pyzmq 27.3.0 (libzmq 4.3.5)
# Expected: a message over the receiver's MAXMSGSIZE is lost, since the connection is cut; the
#           messages queued behind it go out when the DEALER has connected anew.
# Seen:     the messages behind it in the same batch of the I/O thread (8 KiB) are lost too, without
#           an error at the sender: ten small ones never arrive. Later ones do.
set -euo pipefail
sed -n '2,/^set/s/^# //p' "$0"
home=${FINDINGS_HOME:-}
if [ -z "$home" ]; then home=$(mktemp -d); trap 'rm -rf "$home"' EXIT; fi
[ -x "$home/venv/bin/python" ] || python3 -m venv "$home/venv"
"$home/venv/bin/python" -m pip install -q pyzmq==27.3.0
cd "$home"
venv/bin/python - <<'PY'
import zmq

context = zmq.Context()
receiver, sender = context.socket(zmq.ROUTER), context.socket(zmq.DEALER)
receiver.maxmsgsize, sender.reconnect_ivl = 1000, 50


def arrived(seconds):
    """Return what arrives until nothing came for some seconds."""
    messages = []
    while receiver.poll(1000 * seconds):
        messages.append(receiver.recv_multipart()[1].decode())
    return messages


print("pyzmq", zmq.pyzmq_version(), "libzmq", zmq.zmq_version())
sender.connect("ipc://place")
small = [f"small {number}" for number in range(10)]
sender.send(b"first")
sender.send(bytes(1001))
for message in small:
    sender.send(message.encode())
receiver.bind("ipc://place")  # only now can the queue go out
print("queued: first, one of 1001 bytes, then", small)
print("arrived:", once := arrived(3))
for message in small:
    sender.send(message.encode())
print("sent once more, arrived:", later := arrived(2))
context.destroy(linger=0)
raise SystemExit(0 if once == ["first"] and later == small else 1)
PY
