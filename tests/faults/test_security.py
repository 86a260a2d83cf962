"""E6, for the parts that tests/e2e/test_keys.py does not show.

Secrets, another user of this machine, strangers' bytes, files in a folder that others can write to.
"""

import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from harness.tables import vectors
from peer import greeting
from processes import SPECMESH, Stream, Usage, body, command, runtime, writes
from served import KEY, many, serve

from specmesh.paths import lock_of
from specmesh.security.keys import KeyFolder

PROMPT = "a prompt that nobody else shall see"
NOBODY = 65534
fault = pytest.mark.fault


@fault("E6.72")
def test_secrets_are_told_nowhere(mesh):
    mesh.program = SPECMESH  # a fork's arguments are not in the list of processes
    keys = mesh.new_keys()
    told = [command("keys", verb, keys=keys[1]) for verb in ("list", "show")]
    servers = serve(mesh, "step_ms=1", *keys, "--log-level", "debug")
    told.append(command("doctor", json=True, env=runtime(mesh.folder)))
    for server in servers.values():
        daemon = server.daemon
        writes(daemon, PROMPT, 20)
        for words in ("stats --json", "stats", "ping --count 1"):
            told.append(command(*words.split(), env={"SPECMESH_SOCKET": str(daemon.socket)}))
        for key in (KEY, KEY[:-1]):
            told.append(server.ask("GET", "/metrics", Authorization=f"Bearer {key}"))
        listed = ["ps", "-wwo", "args", "-p", str(daemon.pid)]
        told += [daemon.text(), subprocess.run(listed, capture_output=True, check=True)]
    everything = str(told)
    assert "sim-target" in everything
    secret = KeyFolder(keys[1]).identity().secret.hex()
    assert [what for what in (secret, KEY, PROMPT) if what in everything] == []


CONNECTS = f"""
import os, socket, sys
os.setgroups([])
os.setgid({NOBODY})
os.setuid({NOBODY})
socket.socket(socket.AF_UNIX).connect(sys.argv[1])
"""


@fault("E6.69")
@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")
def test_another_user_does_not_get_in(mesh):
    verifier = mesh.verifier("step_ms=1")
    mesh.folder.chmod(0o755)
    words = [sys.executable, "-c", CONNECTS, str(verifier.socket)]
    done = subprocess.run(words, capture_output=True, check=False)
    assert b"PermissionError" in done.stderr


STRANGERS = [
    greeting(b"NULL") + b"\x04\x06\x05READY",  # as a client without keys says it
    greeting(b"CURVE") + b"\x04\xc8\x05HELLO" + bytes(194),
    greeting(b"PLAIN") + b"\x04\x0a\x05HELLO\x01a\x01b",
    b"GET / HTTP/1.1\r\n\r\n",
    b"",
]
"""What is said before a handshake could be over; frames follow as if it were."""


@fault("E6.59")
def test_strangers_throw_everything(mesh):
    """Malformed, right and replayed frames behind every handshake have no effect on the text."""
    keys = mesh.new_keys()
    verifier = mesh.verifier("step_ms=2", *keys)
    mesh.drafter("", *keys)
    thrown = b""
    for vector in vectors("control", "token", "rejected"):
        frame = bytes.fromhex(vector["hex"])
        thrown += b"\x02" + struct.pack(">Q", len(frame)) + frame

    def throw(times):
        for start in STRANGERS * times:
            with many(("127.0.0.1", mesh.port), 1, start + thrown):
                pass

    with Stream(verifier, body(PROMPT, 4000, draft_n=4)) as stream:
        stream.drafted(8)
        throw(10)
        usage = Usage(verifier.pid)
        throw(100)
        stream.read(5)
    usage.unchanged()
    stream.checked()
    assert len(verifier.events("drafter_attached")) == 1
    wire = verifier.stats()["wire"]
    assert (wire["handshake_failures"]["hello"], wire["rejected"]) == (0, {})


PRECIOUS = "do not touch\n"


def fifo(place, _):
    os.mkfifo(place)


def foreign(place, _):
    place.touch()
    try:
        os.chown(place, NOBODY, NOBODY)
    except PermissionError:
        pytest.skip("only root can give a file away")


@pytest.fixture
def path(mesh):
    """Return the socket of `Mesh.cannot_start`."""
    mesh.folder.chmod(0o1777)
    return mesh.folder / "x.sock"


@pytest.mark.parametrize("plant", [Path.symlink_to, Path.hardlink_to, fifo, foreign])
@pytest.mark.parametrize("what", ["lock", "socket"])
@fault("E8.89")
def test_what_others_put_there_is_refused(mesh, path, what, plant):
    """One line that names the file, exit 78; the file that was led to is as it was."""
    victim = mesh.folder / "victim"
    place = lock_of(path) if what == "lock" else path
    victim.write_text(PRECIOUS)
    plant(place, victim)
    mesh.cannot_start("verifier").refused(78, place)
    assert victim.read_text() == PRECIOUS
    assert os.path.lexists(place)


def test_no_file_is_made_where_a_link_leads(mesh, path):
    """A link to nothing makes no daemon write that file, and no client wait."""
    victim = mesh.folder / "new-lock"
    lock_of(path).symlink_to(victim)
    mesh.cannot_start("verifier").refused(78)
    assert not victim.exists()
    lock_of(path).unlink()
    os.mkfifo(lock_of(path))
    assert command("generate", "x", socket=path).code == 69
