"""E7, what tests/e2e/test_bad_models.py does not show: prompts of odd characters, through the real command."""

import subprocess

import pytest
from processes import PATIENCE, SPECMESH, Daemon, Mesh, environment, generate, sim_text

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
    words = [*SPECMESH, "generate", b"caf\xe9", "--socket", str(verifier.socket)]
    done = subprocess.run(words, capture_output=True, env=environment(), check=False, timeout=PATIENCE)
    assert (done.returncode, done.stdout, done.stderr.count(b"\n")) == (2, b"", 1)
    assert done.stderr.startswith(b"specmesh: ")
