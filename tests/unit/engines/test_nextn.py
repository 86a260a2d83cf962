"""The NextN layers of a file, by its header: whatever llama.cpp would end the process for."""

from pathlib import Path

import gguf
import numpy as np
import pytest
from harness.tables import rows
from structlog.testing import capture_logs

from specmesh.config import ModelSettings
from specmesh.engines.llama.engine import LlamaVerifier
from specmesh.engines.llama.header import Header, Tensor, Value
from specmesh.engines.llama.nextn import NextN, nextn_of
from specmesh.errors import ConfigError

WIDTH = 64
SHAPES = {
    "nextn.eh_proj": (2 * WIDTH, WIDTH, 1, 1),
    "nextn.enorm": (WIDTH, 1, 1, 1),
    "nextn.hnorm": (WIDTH, 1, 1, 1),
}
DENSE = ("ffn_gate", "ffn_up", "ffn_down")
SHARED = ("ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp")
EXPERTS = ("ffn_gate_inp", "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps", *SHARED)
JOINED = ("ffn_gate_inp", "ffn_gate_up_exps", "ffn_down_exps", *SHARED)
MLA = {"attention__key_length_mla": 192, "attention__value_length_mla": 128}


def header(arch, tensors, layers=1, **changes):
    """Return the header of a file of two other layers."""
    values = {
        "nextn_predict_layers": layers,
        "block_count": 2 + layers,
        "embedding_length": WIDTH,
        **{name.replace("__", "."): value for name, value in changes.items()},
    }
    found = {f"{arch}.{name}": Value("u32", value) for name, value in values.items()}
    found["general.architecture"] = Value("str", arch)
    shapes = {**dict.fromkeys(tensors, (WIDTH, WIDTH, 1, 1)), **SHAPES}
    there = {}
    for layer in range(2, 2 + layers):
        for name, shape in shapes.items():
            there[f"blk.{layer}.{name}.weight"] = Tensor(shape, "f16")
    return Header(Path("model.gguf"), found, there, True)


def without(made, name):
    """Return a header without tensors of a name."""
    kept = {key: tensor for key, tensor in made.tensors.items() if f".{name}.weight" not in key}
    return Header(made.path, made.values, kept, True)


QWEN = header("qwen35", DENSE)
MIMO = header("mimo2", ("attn_qkv", *DENSE), layers=3)
GLM = header("glm4moe", EXPERTS)
STEP = header("step35", DENSE, layers=2)
EMPTY = Header(QWEN.path, QWEN.values, {}, True)
MADE = {
    "qwen35": QWEN,
    "mimo2": MIMO,
    "glm4moe": GLM,
    "step35": STEP,
    "experts": header("step35", EXPERTS),
    "joined": header("hy_v3", JOINED),
    "latent": header("deepseek2", EXPERTS, **MLA),
}
LAYERS = rows(
    """
    ["qwen35", 1] ["mimo2", 3] ["glm4moe", 1] ["step35", 2]
    ["experts", 1] ["joined", 1] ["latent", 1]
    """
)
LACKING = rows(
    """
    ["qwen35", "nextn.eh_proj"] ["qwen35", "nextn.hnorm"] ["qwen35", "ffn_up"]
    ["mimo2", "attn_qkv"] ["glm4moe", "ffn_gate_inp"] ["experts", "ffn_up_exps"]
    ["step35", "ffn_down"] ["joined", "ffn_down_exps"]
    """
)
OTHER = rows(
    """
    [{"embedding_length": 128}, "(256, 128) is wanted"]
    [{"layers": 2}, "runs one NextN layer of qwen35, and there are 2"]
    [{"block_count": 1}, "all its layers are NextN layers"]
    [{"embedding_length_out": 128}, "not as wide as its embeddings"]
    [{"arch": "exaone-moe"}, "does not run the NextN layers of exaone-moe"]
    [{"arch": "deepseek2", "tensors": ["ffn_gate_inp"]}, "no multi-head latent attention"]
    """
)


@pytest.mark.parametrize(("name", "layers"), LAYERS)
def test_layers_that_draft(name, layers):
    assert nextn_of([MADE[name]]) == NextN(layers)


def test_tensors_in_another_part():
    assert nextn_of([EMPTY, QWEN]) == NextN(1)


@pytest.mark.parametrize("arch", ["llama", "qwen35"])
def test_files_without_such_layers(arch):
    assert nextn_of([header(arch, (), layers=0)]) == NextN()


def test_a_header_without_values():
    assert nextn_of([Header(Path("x"), {}, {}, True)]) == NextN()


@pytest.mark.parametrize(("name", "tensor"), LACKING)
def test_layers_without_a_tensor(name, tensor):
    found = nextn_of([without(MADE[name], tensor)])
    assert (found.layers, found.fault) == (0, f"it lacks blk.2.{tensor}.weight")


def test_a_stripped_file():
    """Nothing of the layer is there, so llama.cpp need not look for it."""
    found = nextn_of([EMPTY])
    assert dict(found.without) == {"qwen35.nextn_predict_layers": 0, "qwen35.block_count": 2}


@pytest.mark.parametrize(("changes", "fault"), OTHER)
def test_layers_that_cannot_be_used(changes, fault):
    found = nextn_of([header(**{"arch": "qwen35", "tensors": DENSE, **changes})])
    assert not found.layers
    assert fault in found.fault


def test_more_layers_than_there_are():
    with pytest.raises(ConfigError, match="9 NextN layers of 2 layers"):
        nextn_of([header("qwen35", DENSE, layers=9, block_count=2)])


def copied(source, path, lacks="", values=None):
    """Write a copy of a GGUF file without the tensors of a name, with other values."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(path, reader.fields["general.architecture"].contents())
    for key, field in reader.fields.items():
        if not key.startswith("GGUF.") and key != "general.architecture":
            value = (values or {}).get(key, field.contents())
            writer.add_key_value(key, value, field.types[0], field.types[-1])
    for tensor in reader.tensors:
        if not lacks or lacks not in tensor.name:
            writer.add_tensor(tensor.name, np.array(tensor.data))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def opened(path, *, mtp=True):
    return LlamaVerifier(
        ModelSettings(engine="llama", model=str(path), ctx=64, max_sessions=2, threads=1, mtp=mtp)
    )


@pytest.fixture(scope="module")
def sources(make_gguf):
    """Paths of models with NextN layers by architecture."""
    return {
        "mimo2": make_gguf("nextn-mimo2", arch="mimo2", nextn=1),
        "step35": make_gguf("nextn-step35", arch="step35", nextn=2),
        "glm4moe": make_gguf("nextn-glm4moe", arch="glm4moe", nextn=1, experts=4),
        "qwen35": make_gguf("nextn-qwen35", arch="qwen35", nextn=1),
    }


def heads_and_warnings(path, *, mtp=True):
    """Return whether a model has a head, and the faults of its warnings."""
    with capture_logs() as lines:
        target = opened(path, mtp=mtp)
    has_head = target.head is not None
    target.close()
    return has_head, [line["fault"] for line in lines if line["event"] == "no_mtp"]


@pytest.mark.models
@pytest.mark.parametrize("arch", ["mimo2", "step35", "glm4moe", "qwen35"])
def test_a_model_with_a_head(sources, arch):
    assert heads_and_warnings(sources[arch]) == (True, [])


@pytest.mark.models
def test_a_head_that_is_not_wanted(sources):
    assert heads_and_warnings(sources["mimo2"], mtp=False) == (False, [])


@pytest.mark.models
def test_a_model_without_a_head(tiny_gguf):
    assert heads_and_warnings(tiny_gguf) == (False, [])


PARTS = rows(
    """
    ["mimo2", "blk.2.nextn.eh_proj"] ["mimo2", "blk.2.attn_qkv"] ["mimo2", "blk.2.ffn_up"]
    ["mimo2", "blk.2."] ["step35", "blk.3.ffn_down"] ["step35", "blk.2.ffn_up"]
    ["glm4moe", "blk.2."] ["qwen35", "blk.2."]
    """
)


@pytest.mark.models
@pytest.mark.parametrize(("arch", "lacks"), PARTS)
def test_a_model_without_some_tensors_goes_on(sources, tmp_path, arch, lacks):
    path = copied(sources[arch], tmp_path / "lacking.gguf", lacks)
    has_head, faults = heads_and_warnings(path)
    assert (has_head, len(faults)) == (False, 1)


@pytest.mark.models
def test_a_model_stripped_of_its_head_loads_without_asking_for_it(sources, tmp_path):
    """Llama.cpp refuses this file: it looks for the layer that the header names."""
    path = copied(sources["qwen35"], tmp_path / "stripped.gguf", "blk.2.")
    assert heads_and_warnings(path, mtp=False) == (False, [])


@pytest.mark.models
@pytest.mark.parametrize("lacks", ["blk.2.attn_q.", "blk.2.attn_k."])
def test_a_model_that_llama_cpp_does_not_load_with_its_head(sources, tmp_path, lacks):
    path = copied(sources["qwen35"], tmp_path / "lacking.gguf", lacks)
    has_head, faults = heads_and_warnings(path)
    assert (has_head, len(faults)) == (False, 1)


@pytest.mark.models
def test_more_layers_than_the_file_has(sources, tmp_path):
    key = "mimo2.nextn_predict_layers"
    path = copied(sources["mimo2"], tmp_path / "many.gguf", values={key: 9})
    with pytest.raises(ConfigError, match="9 NextN layers"):
        opened(path)
