"""E6, what tests/e2e/test_keys.py does not show: secrets, another user of this machine, strangers that throw things."""

import http.client
import os
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from harness.ports import free_port
from processes import SPECMESH, Mesh, body, command, complete, sim_text

from specmesh.security.keys import SECRET, KeyFolder

PROMPT = "a prompt that nobody else shall see"
API_KEY = "sk-neither-shall-they-this"
NOBODY = 65534
fault = pytest.mark.fault


@fault("E6.72")
def test_secrets_are_told_nowhere(mesh: Mesh, tmp_path: Path):
    folder, file, port = KeyFolder(mesh.folder / "keys"), tmp_path / "api.keys", free_port()
    secret = folder.new().secret
    file.write_text(API_KEY + "\n")
    file.chmod(0o600)
    verifier = mesh.verifier("step_ms=1", "--keys", folder.path, "--http", f"127.0.0.1:{port}", "--api-key-file", file,
                             "--log-level", "debug", program=SPECMESH)  # fmt: skip
    drafter = mesh.drafter("", "--keys", folder.path, "--log-level", "debug", program=SPECMESH)
    told = []
    for daemon in (verifier, drafter):
        assert complete(daemon, body(PROMPT, 20)).text == sim_text(PROMPT, 20)
        here = ("--socket", daemon.socket)
        told += [command(*verb, *here) for verb in (("stats", "--json"), ("stats",), ("ping", "--count", 1))]
        told.append(command("doctor", "--json", env={"SPECMESH_SOCKET": str(daemon.socket)}))
    told += [command("keys", verb, "--keys", folder.path) for verb in ("list", "show")]
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
def test_another_user_does_not_get_in(mesh: Mesh):
    verifier = mesh.verifier("step_ms=1")
    mesh.folder.chmod(0o755)
    become = f"os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})"
    program = f"import os, socket, sys; {become}; socket.socket(socket.AF_UNIX).connect(sys.argv[1])"
    words = [sys.executable, "-c", program, str(verifier.socket)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert "PermissionError" in done.stderr
    with closing(socket.socket(socket.AF_UNIX)) as ours:
        ours.connect(str(verifier.socket))
