"""`specmesh keys`."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from specmesh.cli import main
from specmesh.security.keys import KeyFolder, Listing

KEY, OTHER = "ab" * 32, "cd" * 32


class Keys:
    """Runs `specmesh keys` on a folder of its own."""

    def __init__(self, path: Path) -> None:
        self.folder = KeyFolder(path)

    def __call__(self, *words: str, code: int = 0) -> Result:
        done = CliRunner().invoke(main, ["keys", words[0], "--keys", str(self.folder.path), *words[1:]])
        assert done.exit_code == code, done.output
        return done


@pytest.fixture
def run(tmp_path: Path) -> Keys:
    return Keys(tmp_path / "keys")


def test_new_and_show(run: Keys):
    """Both print the public key alone to stdout, never the secret."""
    made = run("new")
    shown = run("show")
    identity = run.folder.identity()
    assert made.stdout == shown.stdout == identity.public.hex() + "\n"
    assert identity.secret.hex() not in made.output + shown.output
    assert "--force" in run("new", code=78).stderr
    assert run("new", "--force").stdout != made.stdout


def test_allow_revoke_list(run: Keys):
    """Drafters by name, or by how their key begins; verifiers by their address; a stranger is no success."""
    run("new")
    run("allow", KEY)
    run("allow", OTHER, "--name", "mac")
    run("allow", OTHER, "--verifier", "tcp://192.0.2.1:7071")
    lines = [line.split() for line in run("list").stdout.splitlines()]
    assert lines == [
        ["drafter", KEY[:8], KEY],
        ["drafter", "mac", OTHER],
        ["verifier", "tcp://192.0.2.1:7071", OTHER],
    ]
    told = json.loads(run("list", "--json").stdout)
    assert told["drafters"] == [{"key": KEY, "label": KEY[:8]}, {"key": OTHER, "label": "mac"}]
    assert told["verifiers"] == [{"key": OTHER, "label": "tcp://192.0.2.1:7071"}]
    assert "revoked mac" in run("revoke", "mac").stderr
    assert run.folder.listed(Listing.DRAFTERS) == {KEY: KEY[:8]}
    assert "keys list" in run("revoke", "mac", code=78).stderr


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("allow", "abc"), 78, "64 hexadecimal digits"),
        (("allow", KEY, "--verifier", "bigbox"), 78, "tcp://HOST:PORT"),
        (("allow", KEY, "--verifier", "tcp://a:1", "--name", "b"), 2, "leave one out"),
        (("allow", KEY, "--name", "two words"), 78, "one word"),
    ],
)
def test_what_cannot_be_allowed(run: Keys, words: tuple[str, ...], code: int, said: str):
    """Each mistake is one line that says what to write."""
    run("new")
    assert said in run(*words, code=code).stderr
    assert run.folder.listed(Listing.DRAFTERS) == {}
