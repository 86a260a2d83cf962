"""Settings of flags, variables and files: their order, their paths and the errors about them."""

import json
import re

import pytest
from click.testing import CliRunner
from harness.tables import cases

from specmesh import paths
from specmesh.cli import main
from specmesh.client import local_sockets
from specmesh.config import ModelSettings
from specmesh.daemons import serve
from specmesh.errors import ConfigError
from specmesh.security.keys import KeyFolder

fault = pytest.mark.fault


@pytest.fixture(autouse=True)
def folders(tmp_path, monkeypatch):
    """The user's and the system's folder of settings."""
    found = [tmp_path / "user", tmp_path / "system"]
    monkeypatch.setattr(paths, "config_folders", lambda: found)
    return found


@pytest.fixture
def write(tmp_path):
    """Write a file of settings; return its path."""

    def written(text, name="settings.toml"):
        path = tmp_path / name
        path.write_text(text)
        return path

    return written


def run(*args, env=None):
    return CliRunner().invoke(main, [str(arg) for arg in args], env=env)


def shown(role, *args, env=None):
    """Return the value and origin of each key, as `config show` prints them."""
    done = run("config", "show", role, "--json", *args, env=env)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)["settings"]


@pytest.fixture
def start(monkeypatch):
    """Run a daemon's command; return the settings that the daemon would start with."""
    found = []
    for role in paths.ROLES:
        monkeypatch.setattr(serve, f"serve_{role}", found.append)

    def started(*args, env=None):
        done = run(*args, env=env)
        assert done.exit_code == 0, done.output
        return found.pop()

    return started


SIM = ("verifier", "--engine", "sim", "--model", "step_ms=1")


@cases(
    "flags, env, ctx",
    """
    [["--ctx", 30], {"SPECMESH_VERIFIER_CTX": "40"}, 30]
    [[], {"SPECMESH_VERIFIER_CTX": "40"}, 40]
    [[], {}, 20]
    """,
)
def test_a_flag_beats_a_variable_beats_a_file(write, start, flags, env, ctx):
    file = write("ctx = 20\n")
    assert start(*SIM, "--config", file, *flags, env=env).model.ctx == ctx


def test_a_setting_that_nobody_chose_is_none(start):
    assert start(*SIM).model.ctx is None


@cases(
    "variable, flags, text, addresses",
    r"""
    [null, [], "", [$BOX]]
    [null, [], "connect = \"tcp://127.0.0.1:7072, tcp://127.0.0.1:7071\"", [$SPARK, $BOX]]
    ["tcp://127.0.0.1:7071,tcp://127.0.0.1:7072", [], "connect = \"tcp://127.0.0.1:7072\"",
     [$BOX, $SPARK]]
    [null, ["--connect", "tcp://127.0.0.1:7072,tcp://127.0.0.1:7071"],
     "connect = [\"tcp://127.0.0.1:7071\"]", [$SPARK, $BOX]]
    """,
    BOX="tcp://127.0.0.1:7071",
    SPARK="tcp://127.0.0.1:7072",
)
def test_several_verifiers(write, start, variable, flags, text, addresses):
    """A list may be in the environment, a flag and a file; it is shown as a file has it."""
    file = write(f'engine = "ngram"\n{text}\n')
    env = {"SPECMESH_DRAFTER_CONNECT": variable}
    assert start("drafter", "--config", file, *flags, env=env).connect == tuple(addresses)
    if not flags:
        assert shown("drafter", "--config", file, env=env)["connect"]["value"] == addresses


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def test_paths_in_a_home(home, write, start):
    """~ stands for the home in a file, a variable and a flag."""
    write("k", "api-keys").chmod(0o600)
    write("", "target.gguf")
    KeyFolder(home / "keys").new()
    write('model = "~/target.gguf"\nchat-template = "~/t.jinja"\nhttp = "127.0.0.1:1"\n')
    env = {"SPECMESH_VERIFIER_API_KEY_FILE": "~/api-keys", "SPECMESH_VERIFIER_KEYS": "~/keys"}
    found = start("verifier", "--config", "~/settings.toml", "--socket", "~/v.sock", env=env)
    assert found.model.model == str(home / "target.gguf")
    assert found.model.chat_template == home / "t.jinja"
    assert (found.keys, found.socket) == (home / "keys", home / "v.sock")
    assert found.port.keys == ("k",)


def test_a_clients_socket_in_a_home(home, monkeypatch):
    monkeypatch.setenv("SPECMESH_SOCKET", "~/v.sock")
    assert local_sockets().paths == [home / "v.sock"]


def test_the_users_file_comes_before_the_systems(folders):
    assert shown("drafter")["ctx"]["origin"] == "default"
    for ctx, folder in enumerate(reversed(folders), 100):
        folder.mkdir()
        file = folder / "drafter.toml"
        file.write_text(f"ctx = {ctx}\n")
        assert shown("drafter")["ctx"] == {"value": ctx, "origin": str(file)}
    assert shown("verifier")["ctx"]["origin"] == "default"


@pytest.mark.parametrize("role", ["verifier", "drafter"])
def test_show_is_a_file_again(role, write):
    """`config show` prints settings as lines of a file, and defaults as comments."""
    file = write('model = "ein \\"groß\\".gguf"\nlog-level = "debug"\ninsecure-no-auth = true\n')
    printed = run("config", "show", role, "--config", file).stdout
    assert f'log-level = "debug"                       # {file}\n' in printed
    assert "\n# max-sessions = 8\n" in printed
    again = shown(role, "--config", write(printed, "again.toml"))
    for key, setting in shown(role, "--config", file).items():
        assert again[key]["value"] == setting["value"]


def test_hidden_options_are_not_shown():
    assert "stretch" not in run("config", "show", "verifier").stdout


@cases(
    "command, name, value, named",
    """
    ["verifier", "SPECMESH_VERIFIER_CTX", "abc", "'abc' is not a valid integer"]
    ["config show drafter", "SPECMESH_DRAFTER_CTX", "abc", "'--ctx'"]
    ["generate x", "SPECMESH_GENERATE_DRAFT_N", "some", "'24'"]
    """,
)
def test_bad_variables(command, name, value, named):
    done = run(*command.split(), env={name: value})
    assert (done.exit_code, done.stdout) == (78, "")
    assert done.stderr.startswith(f"specmesh: {name}: ")
    assert named in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_file_that_is_missing(tmp_path):
    assert run("drafter", "--config", tmp_path / "none.toml").exit_code == 78


@cases(
    "content, named",
    r"""
    ["bnd = \"tcp://127.0.0.1:1\"", "bnd.*did you mean bind\\?"]
    ["max_sessions = 3", "max_sessions.*did you mean max-sessions\\?"]
    ["connect = \"tcp://127.0.0.1:7071\"", "connect.*config show verifier"]
    ["[verifier]\nctx = 512", "unknown key verifier"]
    ["ctx = \"many\"", "'--ctx'.*'many' is not a valid integer"]
    ["ctx = 7", "'--ctx'.*7 is not in the range"]
    ["ctx = [4]", "'--ctx'.*'\\[4\\]' is not a valid integer"]
    ["gpu-layers = -2", "'--gpu-layers'.*-2 is not in the range"]
    ["insecure-no-auth = 7", "'--insecure-no-auth'.*'7' is not a valid boolean"]
    ["engine = \"cuda\"", "'--engine'.*'cuda' is not one of.*llama"]
    ["ctx = 512\nctx = 513\n", "Cannot overwrite.*line 2"]
    ["bind = tcp://127.0.0.1:7071", "line 1.*quotes: bind = \"tcp://127.0.0.1:7071\""]
    ["ctx = 1\n# café\n", "2: not UTF-8"]
    [$LONG, "longer than"]
    """,
    LONG="#" * (2**20 + 1),
)
@fault("E7.74")
def test_bad_files(content, named, tmp_path):
    file = tmp_path / "verifier.toml"
    file.write_text(content, "latin-1")
    done = run("verifier", "--config", file)
    assert done.exit_code == 78, done.output
    assert re.fullmatch(f"specmesh: {file}:.*{named}.*\n", done.stderr)


def test_settings_of_the_proposer_are_not_a_verifiers(write, start):
    """A vLLM server reads [vllm] in the same file."""
    write("", "target.gguf")
    path = write('engine = "sim"\nmodel = "step_ms=1"\n\n[vllm]\nbind = "tcp://127.0.0.1:9"\n')
    assert start("verifier", "--config", path).bind == "tcp://127.0.0.1:7071"


@fault("E7.82")
@cases(
    "engine, model, gpu_layers",
    """
    ["llama", "m.gguf", 0]
    ["ngram", null, null]
    ["sim", "step_ms=1", -1]
    ["auto", null, 9]
    """,
)
def test_a_gpu_is_required_of_engines_that_cannot_use_one(engine, model, gpu_layers):
    with pytest.raises(ConfigError, match="--require-gpu"):
        ModelSettings(engine=engine, model=model, gpu_layers=gpu_layers, require_gpu=True)


@pytest.mark.parametrize("gpu_layers", [None, -1, 9])
def test_a_gpu_is_required_of_llama(gpu_layers):
    ModelSettings(engine="llama", model="m.gguf", gpu_layers=gpu_layers, require_gpu=True)


@cases(
    "env, flags, waits",
    """
    [{}, [], false]
    [{}, ["--wait"], true]
    [{"SPECMESH_VERIFIER_WAIT": "true"}, [], true]
    [{"NOTIFY_SOCKET": "/run/systemd/notify"}, [], true]
    [{"SPECMESH_LAUNCHD": "1"}, [], true]
    [{"NOTIFY_SOCKET": ""}, [], false]
    """,
)
def test_services_wait(env, flags, waits, start):
    """So do daemons that are asked to."""
    assert start(*SIM, *flags, env=env).wait is waits


def test_settings_are_not_waited_for_to_be_shown(tmp_path):
    env = {"SPECMESH_VERIFIER_WAIT": "true"}
    done = run("config", "show", "verifier", "--config", tmp_path / "later.toml", env=env)
    assert (done.exit_code, "later.toml" in done.stderr) == (78, True)


@fault("E7.81")
def test_layers_elsewhere_need_layers_on_a_gpu():
    with pytest.raises(ConfigError, match="--gpu-layers 0"):
        ModelSettings(engine="llama", model="m.gguf", rpc=("127.0.0.1:1",))
