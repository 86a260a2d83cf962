"""Starting, refusing to start, stopping: exit codes, and one line that says what to do."""

import errno
import os
import signal
import socket
from contextlib import closing
from pathlib import Path

import pytest
from processes import (
    Daemon,
    Done,
    Mesh,
    Stream,
    body,
    command,
    complete,
    edited,
    generate,
    generating,
    sim_text,
    until,
)

from specmesh.errors import Busy, WentAway
from specmesh.paths import bundled, lock_of

PROMPT = "All good things"


@pytest.mark.parametrize("verb", [("generate", "hi"), ("stats",), ("stats", "--json")])
def test_no_daemon(mesh: Mesh, verb: tuple[str, ...]):
    """No daemon: exit 69, one line with every path that was tried and what to do."""
    here = mesh.folder
    command(*verb, "--socket", here / "none.sock").refused(
        69, here / "none.sock", "specmesh verifier"
    )
    done = command(*verb, env={"XDG_RUNTIME_DIR": str(here)})
    own = [here / "specmesh" / f"{role}.sock" for role in ("verifier", "drafter")]
    done.refused(69, *own, "/run/specmesh/verifier.sock")
    command(*verb, env={"SPECMESH_SOCKET": str(here / "named.sock")}).refused(
        69, here / "named.sock"
    )


@pytest.mark.fault("E8.89")
@pytest.mark.fault("E8.90")
def test_stale_socket_of_a_killed_daemon(mesh: Mesh):
    """Clients get 69, and a new daemon takes it over; also with a lock file whose pid lives again."""
    first = mesh.verifier()
    first.kill()
    assert first.socket.exists()
    generate(first, PROMPT).refused(69, first.socket)
    lock_of(first.socket).write_text(f"{os.getpid()}\n")
    again = mesh.verifier()
    assert generate(again, PROMPT, "--max-tokens", 5).out == sim_text(PROMPT, 5) + "\n"


@pytest.mark.fault("E8.88")
def test_second_daemon_on_the_same_socket_or_port(pair: dict[str, Daemon], shared: Mesh):
    """75 with the first one's pid at its socket, 78 at its port, where no socket is left; the first serves on."""
    first = pair["verifier"]
    shared.cannot_start("verifier", "--socket", first.socket).refused(
        75, first.socket, f"pid {first.pid}"
    )
    shared.cannot_start("verifier", "--bind", shared.address).refused(78, shared.address, "in use")
    taken = shared.cannot_start("verifier", "--http", shared.address.removeprefix("tcp://"))
    taken.refused(78, f"({os.strerror(errno.EADDRINUSE)}): is the port taken")
    assert not (shared.folder / "x.sock").exists()
    assert generate(first, PROMPT, "--max-tokens", 5).out == sim_text(PROMPT, 5) + "\n"


@pytest.mark.parametrize(
    ("role", "options", "words"),
    [
        ("verifier", ("--bind", "tcp://0:7071", "--insecure-no-auth"), ["every network"]),
        (
            "verifier",
            ("--bind", "tcp://192.0.2.1:7071"),
            ["not encrypted", "specmesh keys new", "--insecure-no-auth"],
        ),
        (
            "verifier",
            ("--bind", "tcp://192.0.2.1:7071", "--insecure-no-auth"),
            ["no interface", "192.0.2.1", "--wait"],
        ),
        ("verifier", ("--http", "0.0.0.0:1"), ["--api-key-file"]),
        (
            "verifier",
            ("--http", "127.0.0.1:0", "--api-key-file", "/nonexistent/keys"),
            ["cannot be read"],
        ),
        ("verifier", ("--socket", "/run/" + "x" * 120), ["103"]),
        ("verifier", ("--model", "nonsense=1"), ["nonsense=1"]),
        ("drafter", ("--connect", "localhost:7071"), ["--connect", "not an address"]),
        ("drafter", ("--connect", "tcp://192.0.2.1:7071"), ["specmesh keys allow"]),
        ("drafter", ("--keys", "/nowhere"), ["specmesh keys new --keys /nowhere"]),
        ("drafter", ("--keys", "/nowhere", "--insecure-no-auth"), ["leave one out"]),
        ("drafter", ("--engine", "llama", "--model", ""), ["--model"]),
        ("verifier", ("--socket", ""), ["--socket"]),
        ("drafter", ("--config", "brackets.toml"), ["brackets.toml"]),
        ("verifier", ("--engine", "llama", "--model", "fifo.gguf"), ["fifo.gguf"]),
        ("verifier", ("--engine", "llama", "--model", "cut.gguf"), ["cut.gguf", "incomplete"]),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, tuple) else "",
)
@pytest.mark.fault("E6.68")
@pytest.mark.fault("E7.74")
@pytest.mark.fault("E7.76")
def test_bad_settings(mesh: Mesh, role: str, options: tuple[str, ...], words: list[str]):
    """Settings that cannot work: exit 78 and one line that names them; nobody waits for who writes into a FIFO."""
    (mesh.folder / "brackets.toml").write_text("bind = " + 100_000 * "[")
    os.mkfifo(mesh.folder / "fifo.gguf")
    if "cut.gguf" in options:
        (mesh.folder / "cut.gguf").write_bytes(Path(bundled("drafter.gguf")).read_bytes()[:-64])
    mesh.cannot_start(role, *options, cwd=mesh.folder).refused(78, *words)


@pytest.mark.fault("E7.80")
def test_prompt_longer_than_the_context(mesh: Mesh):
    """Exit 2 with the prompt's and the context's token counts, at both sockets; a prompt that just fits works. Nothing
    changes by a drafter with a smaller context: the text is whole."""
    verifier = mesh.verifier("step_ms=1,n_ctx=256")
    drafter = mesh.drafter("draft_ms=0.1,alpha=1,n_ctx=64")
    for daemon in (verifier, drafter):
        generate(daemon, "x" * 270).refused(
            2, "270 tokens", "maximum context length is 256 tokens", "--ctx"
        )
        report = generate(daemon, "x" * 252, "--max-tokens", 50, "--json").json
        assert (report["finish_reason"], report["generated_tokens"]) == ("length", 4)
        for prompt in ("z" * 50, "z" * 150):
            assert generate(daemon, prompt, "--max-tokens", 100).out == sim_text(prompt, 100) + "\n"


def test_drafter_without_a_verifier(mesh: Mesh):
    """A drafter that reaches nobody: /health says so, `generate` exits 69 with the verifier's address, at once."""
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # taken, so that no other test's verifier comes to be there
        port = int(nobody.getsockname()[1])
        drafter = mesh.drafter(ready=False, port=port)
        until(lambda: "loading" not in drafter.stats(), "it runs")
        assert drafter.client.get("/health")["status"] == "unavailable"
        until(
            lambda: "does not answer" in str(drafter.client.get("/health").get("reason")),
            "it has looked for one",
        )
        generate(drafter, PROMPT).refused(69, f"tcp://127.0.0.1:{port}")
        command("ping", "--socket", drafter.socket).refused(69, "does not answer")
        assert command("stats", "--socket", drafter.socket).code == 0
        assert drafter.stop() == 0


@pytest.mark.parametrize("first", ["verifier", "drafter"])
@pytest.mark.fault("E8.86")
def test_signal_when_idle(mesh: Mesh, first: str):
    """SIGTERM and SIGINT when idle: exit 0 at once, the socket is gone, no traceback; the other hears why."""
    daemons, gone = (
        [mesh.verifier(), mesh.drafter()],
        {"verifier": "verifier_lost", "drafter": "drafter_gone"}[first],
    )
    ends, other = sorted(daemons, key=lambda daemon: daemon.role != first)
    for daemon, number in ((ends, signal.SIGTERM), (other, signal.SIGINT)):
        daemon.signal(number)
        assert daemon.wait() == 0
        assert not daemon.socket.exists()
        assert "Traceback" not in daemon.text()
        assert daemon.events("stopped")
        if daemon is ends:
            assert [
                event["reason"] for event in until(lambda: other.events(gone), "it is noted")
            ] == ["stopped"]


@pytest.mark.fault("E8.86")
def test_the_end_of_its_terminal(mesh: Mesh, role: str):
    """SIGHUP, which a shell repeats and the end of a login follows up with SIGTERM: texts end in
    their drain."""
    daemons = {
        "verifier": mesh.verifier("step_ms=20", "--drain", 3600),
        "drafter": mesh.drafter("", "--drain", 3600),
    }
    asked = daemons[role]
    running = generating(asked, PROMPT, "--max-tokens", 300, "--draft-n", 2).read(3)
    for number in (signal.SIGHUP, signal.SIGHUP, signal.SIGTERM, signal.SIGHUP):
        asked.signal(number)
    assert running.end() == Done(0, sim_text(PROMPT, 300) + "\n", "")
    assert asked.wait() == 0
    assert not asked.socket.exists()


def test_a_daemon_under_nohup_outlives_its_terminal(mesh: Mesh):
    ignored = edited("import signal", "signal.signal(signal.SIGHUP, signal.SIG_IGN)")
    verifier = mesh.verifier("step_ms=1", program=ignored)
    verifier.process.send_signal(signal.SIGHUP)
    assert generate(verifier, PROMPT, "--max-tokens", 5).code == 0


@pytest.mark.fault("E8.87")
def test_sigterm_while_loading(mesh: Mesh, role: str):
    """A load that cannot be told to stop is left behind, long before it would be over: exit 0."""
    daemon = {"verifier": mesh.verifier, "drafter": mesh.drafter}[role]("load_s=300", ready=False)
    until(lambda: "loading" in daemon.stats(), "it loads")
    daemon.signal(signal.SIGTERM)
    assert daemon.wait() == 0


@pytest.mark.fault("E8.92")
def test_generate_says_what_it_waits_for(mesh: Mesh):
    """On stderr, and ends when the daemon does."""
    verifier = mesh.verifier("load_s=300", ready=False)
    until(lambda: "loading" in verifier.stats(), "it loads")
    running = generating(verifier, PROMPT)
    assert b"the verifier is loading its model (" in running.process.stderr.readline()
    verifier.kill()
    done = running.end()
    assert (done.code, done.out) == (69, "")


@pytest.mark.fault("E8.86")
def test_a_text_that_fits_into_the_drain_is_finished(mesh: Mesh, role: str):
    """New ones are refused, and the daemon ends with the last one, long before its drain is over."""
    daemons = {
        "verifier": mesh.verifier("step_ms=20", "--drain", 3600),
        "drafter": mesh.drafter("", "--drain", 3600),
    }
    asked = daemons[role]
    running = generating(asked, PROMPT, "--max-tokens", 300, "--draft-n", 2).read(3)
    asked.signal(signal.SIGTERM)

    def refuses() -> bool:
        try:
            complete(asked, body(PROMPT, 1))
        except (Busy, WentAway) as error:
            return "is stopping" in str(error)
        return False

    until(refuses, "new texts are refused")
    assert running.end() == Done(0, sim_text(PROMPT, 300) + "\n", "")
    assert asked.wait() == 0
    assert "Traceback" not in asked.text()


@pytest.mark.fault("E8.86")
def test_second_sigterm_ends_at_once(mesh: Mesh):
    verifier = mesh.verifier("step_ms=20")
    with closing(verifier.client.complete(body(PROMPT, 4000))) as chunks:
        next(chunks)
        verifier.signal(signal.SIGTERM)
        until(lambda: generate(verifier, PROMPT).code == 75, "it is stopping")
        verifier.signal(signal.SIGTERM)
        assert verifier.wait() == 128 + signal.SIGTERM


@pytest.mark.fault("E8.86")
def test_a_text_that_outlasts_the_drain_is_cut(mesh: Mesh, role: str):
    """A text of minutes ends with the drain, with 69 and what came; a verifier goes on without its drafter."""
    verifier, drafter = (
        mesh.verifier("step_ms=20", "--drain", 0.2, "--grace", 0.2),
        mesh.drafter("", "--drain", 0.2),
    )
    asked = drafter if role == "drafter" else verifier
    running = generating(
        asked, PROMPT, "--max-tokens", 4000, "--draft-n", 0, "--reconnect-timeout", 0
    ).read(3)
    with Stream(verifier, body(PROMPT, 200)) as other:
        asked.signal(signal.SIGTERM)
        assert asked.wait() == 0
        done = running.end()
        assert (done.code, "stopping" in done.err) == (69, True), done
        assert sim_text(PROMPT, 4000).startswith(done.out.removesuffix("\n"))
        if role == "drafter":
            assert other.read().text == sim_text(PROMPT, 200)
            until(lambda: verifier.live() == 0, "nothing is left over")


@pytest.mark.fault("E6.69")
def test_socket_is_private(pair: dict[str, Daemon]):
    for daemon in pair.values():
        assert daemon.socket.stat().st_mode & 0o077 == 0
