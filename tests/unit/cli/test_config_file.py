"""Settings: in which file, what beats what, and what every mistake is answered with."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from specmesh import paths
from specmesh.cli import main
from specmesh.client import Client
from specmesh.config import DrafterSettings, ModelSettings, VerifierSettings
from specmesh.daemons import serve
from specmesh.errors import ConfigError
from specmesh.security.keys import KeyFolder


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """A user's and a system's folder of this test's own."""
    found = [tmp_path / "user", tmp_path / "system"]
    monkeypatch.setattr(paths, "config_folders", lambda: found)
    return found


def specmesh(*args: object, env: dict[str, str] | None = None) -> Result:
    return CliRunner().invoke(main, [str(arg) for arg in args], env=env)


def shown(
    role: str, *args: object, env: dict[str, str] | None = None
) -> dict[str, dict[str, object]]:
    done = specmesh("config", "show", role, "--json", *args, env=env)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)["settings"]  # type: ignore[no-any-return]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The settings of each daemon that was to be started; none is."""
    found: list[Any] = []
    for role in paths.ROLES:
        monkeypatch.setattr(serve, f"serve_{role}", found.append)
    return found


def test_a_flag_beats_all(tmp_path: Path, started: list[VerifierSettings]):
    """What the daemon itself gets, with a flag, the environment and a file at odds; None where nobody chose."""
    file = tmp_path / "verifier.toml"
    file.write_text('ctx = 20\nengine = "sim"\nmodel = "step_ms=1"\n')
    env = {"SPECMESH_VERIFIER_CTX": "40"}
    for flags, variables in ((["--ctx", 30], env), ([], env), ([], {})):
        done = specmesh("verifier", "--config", file, *flags, env=variables)
        assert done.exit_code == 0, done.output
    assert specmesh("verifier", "--engine", "sim", "--model", "step_ms=1").exit_code == 0
    assert [settings.model.ctx for settings in started] == [30, 40, 20, None]


BOX, SPARK = "tcp://127.0.0.1:7071", "tcp://127.0.0.1:7072"


@pytest.mark.parametrize(
    ("options", "env", "text", "addresses"),
    [
        ([], "", "", [BOX]),
        ([], "", f'connect = "{SPARK}, {BOX}"', [SPARK, BOX]),
        ([], f"{BOX},{SPARK}", f'connect = "{SPARK}"', [BOX, SPARK]),
        (["--connect", f"{SPARK},{BOX}"], "", f'connect = ["{BOX}"]', [SPARK, BOX]),
    ],
)
def test_several_verifiers(
    options: list[str],
    env: str,
    text: str,
    addresses: list[str],
    tmp_path: Path,
    started: list[DrafterSettings],
):
    """A list as flags, in the environment and in the file; shown as a file has it."""
    file = tmp_path / "drafter.toml"
    file.write_text(f'engine = "ngram"\n{text}\n')
    variables = {"SPECMESH_DRAFTER_CONNECT": env} if env else {}
    done = specmesh("drafter", "--config", file, *options, env=variables)
    assert done.exit_code == 0, done.output
    assert started[0].connect == tuple(addresses)
    if not options:
        assert shown("drafter", "--config", file, env=variables)["connect"]["value"] == addresses


def test_paths_in_a_home(tmp_path: Path, started: list[Any], monkeypatch: pytest.MonkeyPatch):
    """~ in a file, a variable and a flag that no shell has read: of every path, the client's
    socket too."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "api-keys").touch(0o600)
    (tmp_path / "api-keys").write_text("k")
    (tmp_path / "target.gguf").touch()
    KeyFolder(tmp_path / "keys").new()
    file = tmp_path / "verifier.toml"
    file.write_text('model = "~/target.gguf"\nchat-template = "~/t.jinja"\nhttp = "127.0.0.1:1"\n')
    env = {"SPECMESH_VERIFIER_API_KEY_FILE": "~/api-keys", "SPECMESH_VERIFIER_KEYS": "~/keys"}
    done = specmesh("verifier", "--config", "~/verifier.toml", "--socket", "~/v.sock", env=env)
    assert done.exit_code == 0, done.output
    [found] = started
    assert found.model.model == str(tmp_path / "target.gguf")
    assert found.model.chat_template == tmp_path / "t.jinja"
    assert (found.keys, found.socket) == (tmp_path / "keys", tmp_path / "v.sock")
    assert found.port.keys == ("k",)
    monkeypatch.setenv("SPECMESH_SOCKET", "~/v.sock")
    assert Client().tried == [tmp_path / "v.sock"]


def test_which_file(folders: list[Path], tmp_path: Path):
    """The user's, else the system's, else none; a named one instead of both."""
    for role in ("verifier", "drafter"):
        assert shown(role)["ctx"]["origin"] == "default"
    for number, folder in enumerate(reversed(folders)):
        folder.mkdir()
        (folder / "drafter.toml").write_text(f"ctx = {100 + number}\n")
        assert shown("drafter")["ctx"] == {
            "value": 100 + number,
            "origin": str(folder / "drafter.toml"),
        }
    assert shown("verifier")["ctx"]["origin"] == "default"
    assert specmesh("drafter", "--config", tmp_path / "none.toml").exit_code == 78


@pytest.mark.parametrize("role", ["verifier", "drafter"])
def test_show_is_a_file_again(role: str, tmp_path: Path):
    """What `config show` prints says the same when it is read: what is set; defaults are comments."""
    file = tmp_path / "a.toml"
    file.write_text(
        'model = "ein Modell \\"groß\\".gguf"\nlog-level = "debug"\ninsecure-no-auth = true\n'
    )
    printed = specmesh("config", "show", role, "--config", file).stdout
    assert f'log-level = "debug"                       # {file}\n' in printed
    assert "\n# max-sessions = 8\n" in printed
    assert "stretch" not in printed, "a hidden option is shown where it is set"
    again = tmp_path / "b.toml"
    again.write_text(printed)
    first, second = shown(role, "--config", file), shown(role, "--config", again)
    assert {key: told["value"] for key, told in first.items()} == {
        key: told["value"] for key, told in second.items()
    }


BAD = [
    # role, the file, what must be named
    ("verifier", b'bnd = "tcp://127.0.0.1:1"', ["bnd", "did you mean bind?"]),
    ("verifier", b"max_sessions = 3", ["max_sessions", "did you mean max-sessions?"]),
    ("verifier", b'connect = "tcp://127.0.0.1:7071"', ["connect", "config show verifier"]),
    ("verifier", b"[verifier]\nctx = 512", ["unknown key verifier"]),
    ("verifier", b'ctx = "many"', ["'--ctx'", "'many' is not a valid integer"]),
    ("verifier", b"ctx = 7", ["'--ctx'", "7 is not in the range"]),
    ("verifier", b"ctx = [4]", ["'--ctx'", "'[4]' is not a valid integer"]),
    ("drafter", b"gpu-layers = -2", ["'--gpu-layers'", "-2 is not in the range"]),
    ("verifier", b"insecure-no-auth = 7", ["'--insecure-no-auth'", "'7' is not a valid boolean"]),
    ("drafter", b'engine = "cuda"', ["'--engine'", "'cuda' is not one of", "llama"]),
    ("verifier", b"ctx = 512\nctx = 513\n", ["Cannot overwrite", "line 2"]),
    (
        "verifier",
        b"bind = tcp://127.0.0.1:7071",
        ["line 1", 'quotes: bind = "tcp://127.0.0.1:7071"'],
    ),
    ("verifier", b"ctx = 1\n# caf\xe9\n", ["2: not UTF-8"]),
    ("verifier", b"#" * (2**20 + 1), ["longer than"]),
]


@pytest.mark.parametrize(
    ("command", "name", "value", "named"),
    [
        ("verifier", "SPECMESH_VERIFIER_CTX", "abc", "'abc' is not a valid integer"),
        ("config show drafter", "SPECMESH_DRAFTER_CTX", "abc", "'--ctx'"),
        ("generate x", "SPECMESH_GENERATE_DRAFT_N", "some", "'24'"),
    ],
)
def test_bad_variables(command: str, name: str, value: str, named: str):
    done = specmesh(*command.split(), env={name: value})
    assert (done.exit_code, done.stdout) == (78, "")
    [told] = done.stderr.splitlines()
    assert told.startswith(f"specmesh: {name}: ")
    assert named in told


@pytest.mark.parametrize(("role", "content", "named"), BAD)
@pytest.mark.fault("E7.74")
def test_bad_files(role: str, content: bytes, named: list[str], tmp_path: Path):
    file = tmp_path / f"{role}.toml"
    file.write_bytes(content)
    done = specmesh(role, "--config", file)
    assert done.exit_code == 78, done.output
    [told] = done.stderr.splitlines()
    assert told.startswith(f"specmesh: {file}:")
    assert all(part in told for part in named), told


@pytest.mark.fault("E7.82")
@pytest.mark.parametrize(
    ("engine", "model", "gpu_layers"),
    [("llama", "m.gguf", 0), ("ngram", None, None), ("sim", "step_ms=1", -1), ("auto", None, 9)],
)
def test_a_gpu_is_required_of_what_can_use_one(
    engine: str, model: str | None, gpu_layers: int | None
):
    with pytest.raises(ConfigError, match="--require-gpu"):
        ModelSettings(engine, model, gpu_layers=gpu_layers, require_gpu=True)
    ModelSettings("llama", "m.gguf", gpu_layers=gpu_layers or None, require_gpu=True)


@pytest.mark.parametrize(
    ("variables", "flags", "waits"),
    [
        ({}, (), False),
        ({}, ("--wait",), True),
        ({"SPECMESH_VERIFIER_WAIT": "true"}, (), True),
        ({"NOTIFY_SOCKET": "/run/systemd/notify"}, (), True),
        ({"SPECMESH_LAUNCHD": "1"}, (), True),
        ({"NOTIFY_SOCKET": ""}, (), False),
    ],
)
def test_who_waits(
    variables: dict[str, str], flags: tuple[str, ...], waits: bool, started: list[VerifierSettings]
):
    """Services, and who asks for it."""
    done = specmesh("verifier", "--engine", "sim", "--model", "step_ms=1", *flags, env=variables)
    assert done.exit_code == 0, done.output
    assert started[0].wait is waits


@pytest.mark.fault("E7.81")
def test_layers_elsewhere_need_layers_on_a_gpu():
    with pytest.raises(ConfigError, match="--gpu-layers 0"):
        ModelSettings("llama", "m.gguf", rpc=("127.0.0.1:1",))
