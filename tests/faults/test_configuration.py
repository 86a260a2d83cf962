"""E7, what other tests do not show: prompts of odd bytes, and paths that lead nowhere, through the real command."""

import subprocess
from pathlib import Path

import pytest
from processes import SPECMESH, Daemon, Mesh, command, environment, free_port, generate, sim_text

fault = pytest.mark.fault


@pytest.fixture(scope="module")
def verifier(shared: Mesh) -> Daemon:
    return shared.verifier("step_ms=1")


@pytest.mark.parametrize(
    "prompt", ["a\0b", "\x1b[31m", "e\u0301 \u200d \U0001f9d1\u200d\U0001f680", "\ufeffx"], ids=ascii
)
@fault("E7.83")
def test_prompts_of_odd_characters(verifier: Daemon, prompt: str):
    """NUL, escapes, joined emoji, a byte order mark: they are a prompt like any other, on standard input."""
    done = generate(verifier, "-", "--max-tokens", 20, stdin=prompt)
    assert (done.code, done.out, done.err) == (0, sim_text(prompt, 20) + "\n", "")


@fault("E7.83")
def test_a_prompt_that_is_no_text(verifier: Daemon):
    """Bytes that are no UTF-8, as an argument: exit 2, one line."""
    words = [*SPECMESH, "generate", b"caf\xe9", "--socket", str(verifier.socket)]
    done = subprocess.run(words, capture_output=True, env=environment(), check=False, timeout=60)
    assert (done.returncode, done.stdout, done.stderr.count(b"\n")) == (2, b"", 1)
    assert done.stderr.startswith(b"specmesh: ")


@fault("E7.75")
def test_a_model_that_is_a_loop_of_links(tmp_path: Path):
    """Exit 78, and the path."""
    (tmp_path / "a.gguf").symlink_to(tmp_path / "b.gguf")
    (tmp_path / "b.gguf").symlink_to(tmp_path / "a.gguf")
    where = ("--bind", f"tcp://127.0.0.1:{free_port()}", "--socket", tmp_path / "v.sock")
    done = command("verifier", "--model", tmp_path / "a.gguf", *where)
    assert (done.code, done.out) == (78, "")
    assert str(tmp_path / "a.gguf") in done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize(
    "options",
    [
        ("--ctx", "1"),
        ("--ctx", "-5"),
        ("--max-sessions", "0"),
        ("--gpu-layers", "-2"),
        ("--threads", "0"),
    ],
    ids=" ".join,
)
@fault(
    "E7.81",
    "a context of 1, no sessions, negative numbers of layers and threads",
    "refused before anything is loaded, exit 78 or 2",
)
def test_numbers_that_would_abort_the_engine(tmp_path: Path, options: tuple[str, ...]):
    """One line that names the option; the process ends by itself, not by an assertion of the engine's."""
    where = ("--bind", f"tcp://127.0.0.1:{free_port()}", "--socket", tmp_path / "v.sock")
    done = command("verifier", "--model", "bundled", *where, *options)
    assert done.code in {2, 78}
    assert options[-2] in done.err
    assert "Traceback" not in done.err
