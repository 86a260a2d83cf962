"""E6, for the parts that tests/e2e/test_keys.py does not show.

Secrets, another user of this machine, strangers' bytes, files in a folder that others can write to.
"""

import http.client
import os
import socket
import struct
import subprocess
import sys
from contextlib import closing, suppress
from pathlib import Path

import pytest
from harness.loops import hello
from harness.ports import free_port
from peer import greeting
from processes import PATIENCE, SPECMESH, Mesh, Stream, Usage, body, command, complete, sim_text

from specmesh.paths import lock_of
from specmesh.security.keys import SECRET, KeyFolder
from specmesh.wire import messages as m
from specmesh.wire.codec import encode

PROMPT = "a prompt that nobody else shall see"
API_KEY = "sk-neither-shall-they-this"
NOBODY = 65534
fault = pytest.mark.fault


@fault("E6.72")
def test_secrets_are_told_nowhere(mesh, tmp_path):
    folder = KeyFolder(mesh.folder / "keys")
    file = tmp_path / "api.keys"
    port = free_port()
    secret = folder.new().secret
    file.write_text(API_KEY + "\n")
    file.chmod(0o600)
    options = ("--keys", folder.path, "--log-level", "debug")
    api = ("--http", f"127.0.0.1:{port}", "--api-key-file", file)
    verifier = mesh.verifier("step_ms=1", *options, *api, program=SPECMESH)
    drafter = mesh.drafter("", *options, program=SPECMESH)
    told = []
    for daemon in (verifier, drafter):
        assert complete(daemon, body(PROMPT, 20)).text == sim_text(PROMPT, 20)
        here = ("--socket", daemon.socket)
        told += [
            command(*verb, *here)
            for verb in (("stats", "--json"), ("stats",), ("ping", "--count", 1))
        ]
        told.append(command("doctor", json=True, env={"SPECMESH_SOCKET": str(daemon.socket)}))
    told += [command("keys", verb, keys=folder.path) for verb in ("list", "show")]
    for key in (API_KEY, API_KEY[:-1]):
        with closing(http.client.HTTPConnection("127.0.0.1", port)) as connection:
            connection.request("GET", "/metrics", headers={"Authorization": f"Bearer {key}"})
            told.append(connection.getresponse().read().decode())
    words = ["ps", "-wwo", "args", "-p", f"{verifier.pid},{drafter.pid}"]
    listed = subprocess.run(words, capture_output=True, text=True, check=True)
    everything = "\n".join(map(str, [*told, listed.stdout, verifier.text(), drafter.text()]))
    assert "sim-target" in everything
    stored = (folder.path / SECRET).read_text().split()[-1]
    assert [what for what in (stored, secret.hex(), API_KEY, PROMPT) if what in everything] == []


@fault("E6.69")
@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")
def test_another_user_does_not_get_in(mesh):
    verifier = mesh.verifier("step_ms=1")
    mesh.folder.chmod(0o755)
    become = f"os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})"
    program = (
        f"import os, socket, sys; {become}; socket.socket(socket.AF_UNIX).connect(sys.argv[1])"
    )
    words = [sys.executable, "-c", program, str(verifier.socket)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert "PermissionError" in done.stderr
    with closing(socket.socket(socket.AF_UNIX)) as ours:
        ours.connect(str(verifier.socket))


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
    folder = KeyFolder(mesh.folder / "keys")
    folder.new()
    verifier = mesh.verifier("step_ms=2", "--keys", folder.path)
    mesh.drafter("", "--keys", folder.path)
    greeted = encode(hello("mallory"))
    options = {"max_tokens": 5, "temperature": 0, "seed": 1, "draft_n": 4}
    order = m.Open(ref=1, prompt="hi", options=options)
    frames = [greeted, encode(order), encode(m.Draft(1, 0, 0, (1, 2))), b"junk", b""]
    thrown = b"".join(b"\x02" + struct.pack(">Q", len(frame)) + frame for frame in frames)

    def throw(times: int) -> None:
        for start in STRANGERS * times:
            with (
                suppress(OSError),
                closing(socket.create_connection(("127.0.0.1", mesh.port), PATIENCE)) as stranger,
            ):
                stranger.sendall(start + thrown)

    with Stream(verifier, body(PROMPT, 4000, draft_n=4)) as stream:
        stream.drafted(8)
        throw(10)
        usage = Usage(verifier.pid)
        throw(100)
        stream.read(5)
    usage.unchanged()
    assert stream.text == sim_text(PROMPT, len(stream.ids))
    assert len(verifier.events("drafter_attached")) == 1
    stats = verifier.stats()
    assert stats["wire"]["handshake_failures"]["hello"] == 0
    assert stats["wire"]["rejected"] == {}


PRECIOUS = "do not touch\n"


def fifo(place: Path, _: Path) -> None:
    os.mkfifo(place)


def foreign(place: Path, _: Path) -> None:
    place.touch()
    try:
        os.chown(place, 65534, 65534)
    except PermissionError:
        pytest.skip("only root can give a file away")


@pytest.fixture
def path(mesh: Mesh) -> Path:
    """Return the socket of `Mesh.cannot_start`."""
    mesh.folder.chmod(0o1777)
    return mesh.folder / "x.sock"


@pytest.mark.parametrize("plant", [Path.symlink_to, Path.hardlink_to, fifo, foreign])
@pytest.mark.parametrize("what", ["lock", "socket"])
@fault("E8.89")
def test_what_others_put_there_is_refused(mesh, path, what, plant):
    """One line that names the file, exit 78; the file that was led to is as it was."""
    victim, place = mesh.folder / "victim", lock_of(path) if what == "lock" else path
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
