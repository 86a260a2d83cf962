"""Options that only llama.cpp has: as flags, variables and settings, and what contradicts what."""

import json
import shlex
import tomllib
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner
from harness.tables import cases

from specmesh import paths
from specmesh.cli import main
from specmesh.daemons import serve
from specmesh.errors import ConfigError
from specmesh.llama_options import (
    CACHE_TYPES,
    Adapter,
    LlamaOptions,
    Override,
    parse_adapters,
    parse_overrides,
    parse_tensor_split,
)

fault = pytest.mark.fault
ROLES = ("verifier", "drafter")


@pytest.fixture(autouse=True)
def folders(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "config_folders", lambda: [tmp_path / "user"])


@pytest.fixture
def options(monkeypatch, tmp_path):
    """Run a daemon's command; return the options that it would load its model with."""
    found = []
    for role in paths.ROLES:
        monkeypatch.setattr(serve, f"serve_{role}", found.append)
    model = tmp_path / "m.gguf"
    model.write_bytes(b"")

    def started(role, *args, env=None):
        command = [role, "--engine", "llama", "--model", str(model), *args]
        done = CliRunner().invoke(main, command, env=env)
        assert done.exit_code == 0, done.output
        return found.pop().model.llama

    return started


GIVEN = LlamaOptions(
    cache_type_k="q8_0",
    cache_type_v="q4_0",
    flash_attn="on",
    device=("RPC0", "CUDA1"),
    split_mode="row",
    tensor_split=(3.0, 1.0),
    main_gpu=1,
    n_cpu_moe=4,
    override_tensor=(Override(r"blk\.[0-9]{1,2}\.ffn", "CPU"), Override("exps", "CUDA0")),
    no_mmap=True,
    mlock=True,
    ubatch_size=1024,
    rope_scaling="yarn",
    rope_scale=4.0,
    yarn_orig_ctx=32768,
    lora=(Adapter(Path("/a b.gguf"), 0.5), Adapter(Path("/c.gguf"))),
)
FLAGS = shlex.split(
    r"""
    --cache-type-k q8_0 --cache-type-v q4_0 --flash-attn on --device RPC0,CUDA1 --split-mode row
    --tensor-split 3,1 --main-gpu 1 --n-cpu-moe 4
    --override-tensor 'blk\.[0-9]{1,2}\.ffn=CPU,exps=CUDA0' --no-mmap --mlock --ubatch-size 1024
    --rope-scaling yarn --rope-scale 4 --yarn-orig-ctx 32768
    --lora '/a b.gguf:0.5' --lora /c.gguf
    """
)
FILE = r"""
cache-type-k = "q8_0"
cache-type-v = "q4_0"
flash-attn = "on"
device = ["RPC0", "CUDA1"]
split-mode = "row"
tensor-split = [3, 1]
main-gpu = 1
n-cpu-moe = 4
override-tensor = ['blk\.[0-9]{1,2}\.ffn=CPU', "exps=CUDA0"]
no-mmap = true
mlock = true
lora = ["/a b.gguf:0.5", "/c.gguf"]
ubatch-size = 1024
rope-scaling = "yarn"
rope-scale = 4.0
yarn-orig-ctx = 32768
"""


@pytest.mark.parametrize("role", ROLES)
def test_flags(options, role):
    assert options(role, *FLAGS) == GIVEN


@pytest.mark.parametrize("role", ROLES)
def test_settings(options, role, tmp_path):
    """Services have them in their file."""
    file = tmp_path / "settings.toml"
    file.write_text(FILE)
    assert options(role, "--config", str(file)) == GIVEN


@pytest.mark.parametrize("role", ROLES)
def test_variables(options, role):
    """The values of a list are between commas, and may have blanks."""
    env = {}
    for key, value in tomllib.loads(FILE).items():
        texts = value if isinstance(value, list) else [value]
        name = f"SPECMESH_{role}_{key}".upper().replace("-", "_")
        env[name] = ",".join(map(str, texts))
    assert options(role, env=env) == GIVEN


@pytest.mark.parametrize("role", ROLES)
def test_nothing_is_given(options, role):
    assert options(role).given() == []


def test_zero_is_the_models_own(options):
    assert options("verifier", "--yarn-orig-ctx", "0").given() == []


def test_experts_on_the_cpu(options):
    assert options("verifier", "--cpu-moe") == LlamaOptions(cpu_moe=True)


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("kind", CACHE_TYPES)
def test_types_of_caches(options, role, kind):
    given = options(role, "--cache-type-k", kind, "--cache-type-v", kind)
    assert given == LlamaOptions(cache_type_k=kind, cache_type_v=kind)


def test_settings_are_shown_as_they_were_given(tmp_path):
    file = tmp_path / "settings.toml"
    file.write_text(FILE)
    command = ["config", "show", "verifier", "--config", str(file), "--json"]
    shown = json.loads(CliRunner().invoke(main, command).stdout)["settings"]
    assert shown["lora"]["value"] == ["/a b.gguf:0.5", "/c.gguf"]
    assert shown["tensor-split"]["value"] == ["3", "1"]


def test_a_shell_completes_the_files_of_adapters(tmp_path):
    (tmp_path / "adapter.gguf").write_bytes(b"")
    complete = ShellComplete(main, {}, "specmesh", "_SPECMESH_COMPLETE")
    [found] = complete.get_completions(["verifier", "--lora"], f"{tmp_path}/ad")
    assert found.type == "file"


# --- what contradicts what: one line, 78


@fault("E7.81")
@pytest.mark.parametrize("role", ROLES)
@cases(
    "flags, named",
    r"""
    ["--cache-type-v q8_0 --flash-attn off", "--cache-type-v q8_0 needs flash attention"]
    ["--split-mode tensor --flash-attn off", "--split-mode tensor needs flash attention"]
    ["--device CUDA0,CUDA0", "--device CUDA0,CUDA0 has a device twice"]
    ["--device none,CUDA0", "none beside a device"]
    ["--device none --split-mode row", "--split-mode is for devices"]
    ["--device none --tensor-split 1,1", "--tensor-split is for devices"]
    ["--device none --gpu-layers 9", "--gpu-layers wants a device"]
    ["--device none --require-gpu", "--require-gpu wants a device"]
    ["--device CUDA0 --gpu-layers 0", "--gpu-layers 0 allows none"]
    ["--split-mode row --gpu-layers 0", "--gpu-layers 0 allows none"]
    ["--tensor-split 1,1 --gpu-layers 0", "--gpu-layers 0 allows none"]
    ["--main-gpu 1", "--main-gpu means nothing with --split-mode layer"]
    ["--main-gpu 1 --split-mode tensor", "--main-gpu means nothing with --split-mode tensor"]
    ["--main-gpu 2 --split-mode none --device A,B", "--main-gpu 2 is not among the devices"]
    ["--tensor-split 3,1 --split-mode none", "--split-mode none takes one"]
    ["--tensor-split 0,0", "gives no device anything"]
    ["--tensor-split 3,x", "'x' is no share"]
    ["--tensor-split 3,-1", "'-1' is no share"]
    ["--tensor-split nan", "'nan' is no share"]
    ["--tensor-split 1,1,1 --device A,B", "shares for 3 devices, --device names 2"]
    ["--cpu-moe --n-cpu-moe 3", "leave one out"]
    ["--override-tensor exps", "'exps' is not PATTERN=BUFFER"]
    ["--override-tensor =CPU", "'=CPU' is not PATTERN=BUFFER"]
    ["--override-tensor a=CPU,a=CUDA0", "'a' twice"]
    ["--lora a.gguf,a.gguf:2", "a.gguf twice"]
    ["--lora :2", "names no file"]
    ["--rope-scaling none --rope-scale 2", "--rope-scaling none forbids it"]
    ["--rope-scaling none --yarn-orig-ctx 9", "--yarn-orig-ctx is for YaRN"]
    ["--rope-scaling linear --rope-scale 2 --yarn-orig-ctx 9", "--yarn-orig-ctx is for YaRN"]
    ["--engine sim --model step_ms=1 --lora a.gguf", "--engine sim has no --lora"]
    """,
)
def test_contradictions(role, flags, named):
    refused(f"{role} --engine llama --model bundled {flags}", named)


@fault("E7.81")
@cases(
    "flags, named",
    """
    ["--rpc 127.0.0.1:1 --device none", "--rpc wants a device"]
    ["--reproducible --lora a.gguf,b.gguf", "leave --reproducible out"]
    """,
)
def test_contradictions_at_a_verifier(flags, named):
    refused(f"verifier --model bundled {flags}", named)


@cases(
    "flags, named",
    """
    ["--engine ngram --flash-attn on", "--engine ngram has no --flash-attn"]
    ["--engine ngram --model bundled", "--engine ngram has no --model"]
    ["--engine ngram --threads 2", "--engine ngram has no --threads"]
    ["--engine sim", "give --model settings of the simulated engine"]
    ["--engine mlx --model a/b --threads 2", "--engine mlx has no --threads"]
    ["--engine mlx --model a/b --mlock --cpu-moe", "--engine mlx has no --cpu-moe, --mlock"]
    ["--engine mlx --model a/b --lora a.gguf:2", "--engine mlx has no --lora"]
    """,
)
def test_other_engines_of_drafters(flags, named):
    refused(f"drafter {flags}", named)


@cases(
    "flags, named",
    """
    ["--model a/b --mlock", "--engine mlx has no --mlock"]
    ["--model a/b --rpc 127.0.0.1:1", "--engine mlx has no --rpc"]
    ["--model a/b --insecure-rpc", "--engine mlx has no --insecure-rpc"]
    ["--model a/b --swa-full on", "--engine mlx has no --swa-full"]
    ["--model a/b --threads 2", "--engine mlx has no --threads"]
    ["--model a/b --mtp auto", "--engine mlx has no --mtp auto"]
    ["--model a/b --stretch spark-7b", "--stretch is for the demo's models"]
    ["--model bundled", "GGUF file, which MLX does not load"]
    ["--model a/b --distributed", "has no rank"]
    """,
)
def test_mlx_at_a_verifier(flags, named):
    refused(f"verifier --engine mlx {flags}", named)


def refused(command, named):
    done = CliRunner().invoke(main, command.split())
    assert done.exit_code == 78, done.output
    assert named in done.stderr
    assert done.stderr.count("\n") == 1


@cases(
    "flag, value",
    """
    ["--cache-type-k", "q2_k"]
    ["--flash-attn", "maybe"]
    ["--split-mode", "graph"]
    ["--main-gpu", "-1"]
    ["--n-cpu-moe", "-1"]
    ["--ubatch-size", "0"]
    ["--rope-scaling", "longrope"]
    ["--rope-scale", "0"]
    ["--rope-scale", "nan"]
    ["--yarn-orig-ctx", "99999999999"]
    """,
)
@pytest.mark.parametrize("role", ROLES)
def test_values(role, flag, value):
    done = CliRunner().invoke(main, [role, "--model", "bundled", flag, value])
    assert done.exit_code in (2, 78)
    assert flag in done.stderr


# --- the texts of options


@cases(
    "given, shares",
    """
    [["3,1"], [3.0, 1.0]]
    [["3/1"], [3.0, 1.0]]
    [["0.5", "1"], [0.5, 1.0]]
    [["0,1,"], [0.0, 1.0]]
    [[], []]
    """,
)
def test_shares(given, shares):
    assert parse_tensor_split(given) == tuple(shares)


@cases(
    "given, pairs",
    r"""
    [["exps=CPU"], [["exps", "CPU"]]]
    [["a=CPU,b=CUDA0"], [["a", "CPU"], ["b", "CUDA0"]]]
    [["a=CPU", "b=CUDA0"], [["a", "CPU"], ["b", "CUDA0"]]]
    [["x{1,2}=CPU,y{3,}=CPU"], [["x{1,2}", "CPU"], ["y{3,}", "CPU"]]]
    [["a=RPC0[127.0.0.1:50052]"], [["a", "RPC0[127.0.0.1:50052]"]]]
    """,
)
def test_overrides(given, pairs):
    assert parse_overrides(given) == tuple(Override(*pair) for pair in pairs)


@cases(
    "given, adapters",
    """
    [["a.gguf"], [["a.gguf", 1.0]]]
    [["a.gguf:0.5"], [["a.gguf", 0.5]]]
    [["a.gguf:-1,b:c.gguf:2e-1"], [["a.gguf", -1.0], ["b:c.gguf", 0.2]]]
    [["a:b.gguf"], [["a:b.gguf", 1.0]]]
    [["a.gguf:nan"], [["a.gguf:nan", 1.0]]]
    """,
)
def test_adapters(given, adapters):
    assert parse_adapters(given) == tuple(Adapter(Path(path), scale) for path, scale in adapters)


def test_adapters_in_a_home(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    assert parse_adapters(["~/a.gguf:2"]) == (Adapter(Path("/home/me/a.gguf"), 2.0),)


def test_a_wrong_option_names_the_remedy():
    with pytest.raises(ConfigError, match=": leave one out"):
        LlamaOptions(cpu_moe=True, n_cpu_moe=1)
