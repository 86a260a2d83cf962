"""`specmesh stats`: once, and watched."""

import os
import pty
import re
import signal
import subprocess

from processes import PATIENCE, SPECMESH, Daemon, command, environment


def test_stats(pair: dict[str, Daemon]):
    for role, daemon in pair.items():
        done = command("stats", "--socket", daemon.socket)
        assert (done.code, done.err, done.out.split()[:2]) == (0, "", ["role", f"{role},"])


def watching(daemon: Daemon) -> "subprocess.Popen[bytes]":
    words = [*SPECMESH, "stats", "--watch", "--interval", "0.1", "--socket", str(daemon.socket)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment())


def line_with(process: "subprocess.Popen[bytes]", word: bytes) -> None:
    assert process.stdout is not None
    while word not in process.stdout.readline():
        assert process.poll() is None


def test_watch_into_a_pipe(pair: dict[str, Daemon]):
    """stats --watch prints a line each time, at once; Ctrl-C ends it with 130, a reader that leaves without a word."""
    for role, daemon in pair.items():
        process = watching(daemon)
        for _ in range(3):
            line_with(process, role.encode())
        process.send_signal(signal.SIGINT)
        assert (process.wait(PATIENCE), process.communicate()[1]) == (130, b"")
    process = watching(pair["verifier"])
    line_with(process, b"verifier")
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert (process.wait(PATIENCE), process.stderr.read()) == (128 + signal.SIGPIPE, b"")
    process.stderr.close()


def test_watch_on_a_terminal(pair: dict[str, Daemon]):
    """stats --watch on a terminal shows a screen until Ctrl-C, then exits 130; NO_COLOR keeps it without colours."""
    ours, theirs = pty.openpty()
    words = [*SPECMESH, "stats", "--watch", "--socket", str(pair["verifier"].socket)]
    process = subprocess.Popen(
        words, stdout=theirs, stderr=theirs, stdin=theirs, env=environment({"TERM": "xterm", "NO_COLOR": "1"})
    )
    os.close(theirs)
    seen = b""
    while b"sessions" not in seen:
        seen += os.read(ours, 65536)
    assert b"sim-target" in seen
    assert not re.search(rb"\x1b\[[\d;]*3\dm", seen)
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE) == 130
    os.close(ours)
