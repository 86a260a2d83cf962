"""Settings of the proposer: variables, then [vllm] of the file, then defaults."""

from pathlib import Path

import pytest
from harness.tables import cases

from specmesh import paths
from specmesh.errors import ConfigError
from specmesh.vllm.settings import ProposerSettings, read_settings, unknown_variables


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The user's folder of settings."""
    monkeypatch.setattr(paths, "config_folders", lambda: [tmp_path])
    return tmp_path


@pytest.fixture
def write(folder):
    return (folder / "verifier.toml").write_text


def test_defaults():
    assert read_settings({}) == ProposerSettings()


def test_variables_and_keys_have_the_same_names(write):
    write('model = "x.gguf"\n[vllm]\nrows = 4\nno-socket = true\nhttp = "http://a/v1"\n')
    found = read_settings({"SPECMESH_VLLM_ROWS": "5", "SPECMESH_VLLM_KEYS": "/k"})
    expected = ProposerSettings(rows=5, no_socket=True, http="http://a/v1", keys=Path("/k"))
    assert found == expected


def test_empty_variables_are_as_none():
    names = ("BIND", "KEYS", "INSECURE", "HTTP", "SOCKET", "NO_SOCKET", "ROWS", "PATIENCE")
    assert read_settings({f"SPECMESH_VLLM_{name}": "" for name in names}) == ProposerSettings()


def test_variables_that_mean_nothing_are_known():
    known = {"SPECMESH_VLLM_CONFIG": "", "SPECMESH_VLLM_NO_SOCKET": "1", "SPECMESH_MODEL": "x"}
    others = {"SPECMESH_VLLM_ROW": "4", "SPECMESH_VLLM_SERVICE_HOST": "10.0.0.1"}
    assert unknown_variables(known | others) == sorted(others)


def test_a_named_file(tmp_path):
    path = tmp_path / "other.toml"
    path.write_text("[vllm]\npatience = 0.5\n")
    assert read_settings({"SPECMESH_VLLM_CONFIG": str(path)}).patience == 0.5


@cases(
    "name, value",
    """["ROWS", "0"] ["ROWS", "many"] ["ROWS", "257"]
    ["PATIENCE", "2"] ["PATIENCE", "-1"] ["PATIENCE", "soon"] ["PATIENCE", "nan"]
    ["INSECURE", "perhaps"] ["LOG_LEVEL", "loud"]
    ["BIND", "7071"] ["BIND", "ipc://verifier"] ["BIND", "tcp://127.0.0.1"]
    ["BIND", "tcp://127.0.0.1:70000"] ["HTTP", "100.64.0.7:8000"] ["HTTP", "http://a b/v1"]""",
)
def test_wrong_values_are_named(name, value):
    with pytest.raises(ConfigError, match=f"SPECMESH_VLLM_{name}: '{value}' is"):
        read_settings({f"SPECMESH_VLLM_{name}": value})


@cases(
    "text, fault",
    """["vllm = 1", "no table"] ["[vllm]\\nrow = 1", "unknown key row"]
    ["[vllm", "Expected"] ["[vllm]\\nrows = 0", "no number from 1"]
    ["[vllm]\\nkeys = ''", "is no path"] ["[vllm]\\nbind = 7071", "7071 is not tcp://"]""",
)
def test_wrong_files_are_named(write, folder, text, fault):
    write(text)
    with pytest.raises(ConfigError, match=fault) as raised:
        read_settings({})
    assert str(folder / "verifier.toml") in str(raised.value)


def test_a_named_file_that_is_missing(tmp_path):
    with pytest.raises(ConfigError, match="SPECMESH_VLLM_CONFIG"):
        read_settings({"SPECMESH_VLLM_CONFIG": str(tmp_path / "none.toml")})


def test_the_socket_is_a_verifiers_unless_it_is_unwanted():
    assert ProposerSettings().socket_path == paths.default_socket("verifier")
    assert ProposerSettings(socket=Path("/s")).socket_path == Path("/s")
    assert ProposerSettings(no_socket=True).socket_path is None
