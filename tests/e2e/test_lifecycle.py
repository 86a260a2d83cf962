"""Starting, refusing to start, stopping: exit codes, and one line with the remedy."""

import errno
import os
import shlex
import signal
import socket
from pathlib import Path

import pytest
from harness.tables import cases, lines
from meshes import running
from processes import (
    Done,
    Stream,
    body,
    command,
    complete,
    edited,
    generate,
    generating,
    sim_text,
    until,
    writes,
)

from specmesh.errors import Busy, WentAway
from specmesh.paths import bundled, lock_of

fault = pytest.mark.fault
PROMPT = "All good things"
WHOLE = Done(0, sim_text(PROMPT, 300) + "\n", "")


@cases("verb", '["generate", "hi"] ["stats"] ["stats", "--json"]')
def test_no_daemon(mesh, verb):
    """The line has every path that was tried and the remedy."""
    none = mesh.folder / "none.sock"
    command(*verb, "--socket", none).refused(69, none, "specmesh verifier")
    command(*verb, env={"SPECMESH_SOCKET": str(none)}).refused(69, none)
    done = command(*verb, env={"XDG_RUNTIME_DIR": str(mesh.folder)})
    own = [mesh.folder / "specmesh" / f"{role}.sock" for role in ("verifier", "drafter")]
    done.refused(69, *own, "/run/specmesh/verifier.sock")


@fault("E8.89", "E8.90")
def test_stale_socket_of_a_killed_daemon(mesh):
    """Clients get 69; a new daemon takes it over, even if the lock file's pid lives again."""
    first = mesh.verifier()
    first.kill()
    assert first.socket.exists()
    generate(first, PROMPT).refused(69, first.socket)
    lock_of(first.socket).write_text(f"{os.getpid()}\n")
    writes(mesh.verifier(), PROMPT, 5)


@fault("E8.88")
def test_second_daemon_on_the_same_socket(pair, shared):
    """It ends with 75 and the first one's pid; the first serves on."""
    first = pair["verifier"]
    done = shared.cannot_start("verifier", "--socket", first.socket)
    done.refused(75, first.socket, f"pid {first.pid}")
    writes(first, PROMPT, 5)


@fault("E8.88")
def test_second_daemon_on_the_same_port(pair, shared):
    shared.cannot_start("verifier", "--bind", shared.address).refused(78, shared.address, "in use")
    taken = shared.cannot_start("verifier", "--http", shared.address.removeprefix("tcp://"))
    taken.refused(78, f"({os.strerror(errno.EADDRINUSE)}): is the port taken")
    assert not (shared.folder / "x.sock").exists()


BAD_SETTINGS = lines(f"""
verifier --bind tcp://0:7071 --insecure-no-auth | every network
verifier --bind tcp://192.0.2.1:7071 | not encrypted | specmesh keys new | --insecure-no-auth
verifier --bind tcp://192.0.2.1:7071 --insecure-no-auth | no interface | 192.0.2.1 | --wait
verifier --http 0.0.0.0:1 | --api-key-file
verifier --http [::1]:0 --api-key-file /nonexistent | there is no /nonexistent
verifier --socket /run/{"x" * 120} | 103
verifier --model nonsense=1 | nonsense=1
drafter --connect localhost:7071 | --connect | not an address
drafter --connect tcp://192.0.2.1:7071 | specmesh keys allow
drafter --keys /nowhere | specmesh keys new --keys /nowhere
drafter --keys /nowhere --insecure-no-auth | leave one out
drafter --engine llama --model '' | --model
verifier --socket '' | --socket
verifier --suffix-cache 987654321 | 987654321 MiB | MiB of memory that are free here
drafter --config brackets.toml | brackets.toml
verifier --engine llama --model fifo.gguf | fifo.gguf
verifier --engine llama --model cut.gguf | cut.gguf | incomplete
""")
"""A daemon's command and the words of its error."""


@pytest.mark.parametrize("case", BAD_SETTINGS)
@fault("E6.68", "E7.74", "E7.76")
def test_bad_settings(mesh, case):
    """Exit 78 and one line that names them; a FIFO without a writer is not waited for."""
    (mesh.folder / "brackets.toml").write_text("bind = " + 100_000 * "[")
    os.mkfifo(mesh.folder / "fifo.gguf")
    whole = Path(bundled("drafter.gguf")).read_bytes()
    (mesh.folder / "cut.gguf").write_bytes(whole[:-64])
    words, *named = case.split(" | ")
    mesh.cannot_start(*shlex.split(words), cwd=mesh.folder).refused(78, *named)


@pytest.fixture(scope="module")
def small():
    """A verifier with a context of 256 tokens, and a drafter with a smaller one."""
    with running() as mesh:
        verifier = mesh.verifier("step_ms=1,n_ctx=256")
        yield {"verifier": verifier, "drafter": mesh.drafter("draft_ms=0.1,alpha=1,n_ctx=64")}


@fault("E7.80")
def test_prompt_longer_than_the_context(small, role):
    """The line has both numbers of tokens."""
    done = generate(small[role], "x" * 270)
    done.refused(2, "270 tokens", "maximum context length is 256 tokens", "--ctx")


def test_a_smaller_context_of_the_drafter_changes_nothing(small, role):
    writes(small[role], "z" * 50, 100)


def test_drafter_without_a_verifier(mesh):
    """/health reports it, and `generate` exits 69 at once with the verifier's address."""
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # taken, so that no other test's verifier comes to be there
        port = int(nobody.getsockname()[1])
        drafter = mesh.drafter(ready=False, port=port)
        until(lambda: "does not answer" in str(drafter.client.get("/health")), "it has looked")
        generate(drafter, PROMPT).refused(69, f"tcp://127.0.0.1:{port}")
        command("ping", socket=drafter.socket).refused(69, "does not answer")
        assert command("stats", socket=drafter.socket).code == 0
        assert drafter.stop() == 0


def ends_at(daemon, number):
    """Check that an idle daemon ends at once by this signal."""
    daemon.signal(number)
    assert daemon.wait() == 0
    assert not daemon.socket.exists()
    assert "Traceback" not in daemon.text()
    assert daemon.events("stopped")


@cases("role, noted", '[0, "verifier_lost"] [1, "drafter_gone"]')
@fault("E8.86")
def test_signal_when_idle(mesh, role, noted):
    """Exit 0 at once, the socket is gone, no traceback; the other daemon knows the reason."""
    daemons = [mesh.verifier(), mesh.drafter()]
    ends_at(daemons[role], signal.SIGTERM)
    other = daemons[1 - role]
    assert other.event(noted)["reason"] == "stopped"
    ends_at(other, signal.SIGINT)


@pytest.fixture
def draining(mesh, role):
    """A daemon with a long drain, and the other one of the pair."""
    verifier = mesh.verifier("step_ms=20", "--drain", 3600)
    drafter = mesh.drafter("", "--drain", 3600)
    return drafter if role == "drafter" else verifier


@fault("E8.86")
def test_the_end_of_its_terminal(draining):
    """A shell repeats SIGHUP, and the end of a login adds SIGTERM: texts end in their drain."""
    running = generating(draining, PROMPT, max_tokens=300, draft_n=2).read(3)
    for number in (signal.SIGHUP, signal.SIGHUP, signal.SIGTERM, signal.SIGHUP):
        draining.signal(number)
    assert running.end() == WHOLE
    assert draining.wait() == 0
    assert not draining.socket.exists()


def test_a_daemon_under_nohup_outlives_its_terminal(mesh):
    ignored = edited("import signal", "signal.signal(signal.SIGHUP, signal.SIG_IGN)")
    verifier = mesh.verifier("step_ms=1", program=ignored)
    verifier.process.send_signal(signal.SIGHUP)
    assert generate(verifier, PROMPT, max_tokens=5).code == 0


@fault("E8.87")
def test_sigterm_while_loading(mesh, role):
    daemon = getattr(mesh, role)("load_s=300", ready=False)
    until(lambda: "loading" in daemon.stats(), "it loads")
    daemon.signal(signal.SIGTERM)
    assert daemon.wait() == 0


@fault("E8.92")
def test_generate_says_what_it_waits_for(mesh):
    """On stderr, and ends when the daemon does."""
    verifier = mesh.verifier("load_s=300", ready=False)
    until(lambda: "loading" in verifier.stats(), "it loads")
    running = generating(verifier, PROMPT)
    assert b"the verifier is loading its model (" in running.process.stderr.readline()
    verifier.kill()
    done = running.end()
    assert (done.code, done.out) == (69, "")


@fault("E8.86")
def test_a_text_that_fits_into_the_drain_is_finished(draining):
    """New ones are refused, and the daemon ends with the last one, long before its drain."""
    running = generating(draining, PROMPT, max_tokens=300, draft_n=2).read(3)
    draining.signal(signal.SIGTERM)

    def refuses():
        try:
            complete(draining, body(PROMPT, 1))
        except (Busy, WentAway) as error:
            return "is stopping" in str(error)
        return False

    until(refuses, "new texts are refused")
    assert running.end() == WHOLE
    assert draining.wait() == 0
    assert "Traceback" not in draining.text()


@fault("E8.86")
def test_second_sigterm_ends_at_once(mesh):
    verifier = mesh.verifier("step_ms=20")
    with Stream(verifier, body(PROMPT, 4000)):
        verifier.signal(signal.SIGTERM)
        until(lambda: generate(verifier, PROMPT).code == 75, "it is stopping")
        verifier.signal(signal.SIGTERM)
        assert verifier.wait() == 128 + signal.SIGTERM


@fault("E8.86")
def test_a_text_that_outlasts_the_drain_is_cut(mesh, role):
    """It ends with the drain, with 69 and its beginning; a verifier goes on without its drafter."""
    verifier = mesh.verifier("step_ms=20", "--drain", 0.2, "--grace", 0.2)
    drafter = mesh.drafter("", "--drain", 0.2)
    asked = drafter if role == "drafter" else verifier
    options = {"max_tokens": 4000, "draft_n": 0, "reconnect_timeout": 0}
    running = generating(asked, PROMPT, **options).read(3)
    with Stream(verifier, body(PROMPT, 200)) as other:
        asked.signal(signal.SIGTERM)
        assert asked.wait() == 0
        done = running.end()
        assert done.code == 69
        assert "stopping" in done.err
        done.begins(PROMPT)
        if role == "drafter":
            other.read().checked()
            verifier.idle()


@fault("E6.69")
def test_socket_is_private(pair):
    for daemon in pair.values():
        assert daemon.socket.stat().st_mode & 0o077 == 0
