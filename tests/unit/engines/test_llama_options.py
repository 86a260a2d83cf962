"""Options of llama.cpp: each beside a context that llama-cpp-python makes with the same one.

What cannot be run is refused in one line, before a model is loaded.
"""

import ctypes
import json
import os
import re
import subprocess
import sys
from contextlib import closing
from itertools import starmap

import numpy as np
import pytest
from harness import PATIENCE
from harness.engine_contract import GREEDY, predict
from harness.tables import cases, rows

from specmesh.config import ModelSettings
from specmesh.core.events import Span
from specmesh.core.kv_orders import KVCopy, KVCut, KVOffload
from specmesh.engines.llama import library as llama_library
from specmesh.engines.llama import params as llama_params
from specmesh.engines.llama import trial
from specmesh.engines.llama.engine import LlamaDrafter, LlamaEngine, LlamaVerifier
from specmesh.engines.load import check_there
from specmesh.errors import ConfigError, NotThereYet
from specmesh.llama_options import Adapter, LlamaOptions, Override

llama_cpp = pytest.importorskip("llama_cpp")
pytestmark = pytest.mark.models
fault = pytest.mark.fault

N_CTX = 256
PROMPT = tuple(range(40, 140))
N_TOKENS = 24
EXPERTS = 4


def settings(path, options=None, **changes):
    usual = {"ctx": N_CTX, "max_sessions": 2, "threads": 1, "gpu_layers": None}
    return ModelSettings(
        engine="llama", model=str(path), llama=options or LlamaOptions(), **{**usual, **changes}
    )


@pytest.fixture(scope="module")
def experts(make_gguf):
    """A model with experts, whose heads have room for blocks of quantised caches."""
    return make_gguf("experts", experts=EXPERTS, head=32)


@pytest.fixture(scope="module")
def adapter(make_adapter):
    return make_adapter("adapter")


def most_of(engine):
    """Return the most rows of a step."""
    return engine.info.n_batch if isinstance(engine, LlamaEngine) else len(PROMPT)


def generated(engine):
    """Return the ids of a greedy text, and the logits of its last row."""
    for start in range(0, len(PROMPT) - 1, most_of(engine)):
        ids = PROMPT[start : min(start + most_of(engine), len(PROMPT) - 1)]
        engine.decode([Span(0, start, ids, logits=False)])
    token = PROMPT[-1]
    ids = []
    for position in range(len(PROMPT) - 1, len(PROMPT) - 1 + N_TOKENS):
        [logits] = engine.decode([Span(0, position, (token,), logits=True)])
        token = int(logits[0].argmax())
        ids.append(token)
    return ids, logits[0].copy()


class Reference:
    """A model of llama-cpp-python with the parameters given by their own names."""

    def __init__(self, path, *, adapters=(), model=(), context=()):
        lib = llama_library.library()
        self.lib = lib
        model_params = lib.llama_model_default_params()
        for name, value in dict(model).items():
            setattr(model_params, name, value)
        self.model = lib.llama_model_load_from_file(os.fsencode(path), model_params)
        params = lib.llama_context_default_params()
        params.n_ctx = N_CTX
        params.n_threads = params.n_threads_batch = 1
        for name, value in dict(context).items():
            setattr(params, name, value)
        self.context = lib.llama_init_from_model(self.model, params)
        if adapters:
            count = len(adapters)
            files = [lib.llama_adapter_lora_init(self.model, os.fsencode(a)) for a, _ in adapters]
            handles = (lib.llama_adapter_lora_p_ctypes * count)(*files)
            scales = (ctypes.c_float * count)(*[scale for _, scale in adapters])
            assert lib.llama_set_adapters_lora(self.context, handles, count, scales) == 0

    def decode(self, spans):
        [span] = spans
        count = len(span.ids)
        ids = (self.lib.llama_token * count)(*span.ids)
        batch = self.lib.llama_batch_get_one(ids, count)
        assert self.lib.llama_decode(self.context, batch) == 0
        row = self.lib.llama_get_logits_ith(self.context, -1)
        n_vocab = self.lib.llama_vocab_n_tokens(self.lib.llama_model_get_vocab(self.model))
        return [np.ctypeslib.as_array(row, (n_vocab,))[None]]

    def close(self):
        self.lib.llama_free(self.context)
        self.lib.llama_model_free(self.model)


def text_of(engine):
    with closing(engine):
        return generated(engine)


def options_of(**given):
    """Return options; overrides may be pairs."""
    overrides = given.pop("override_tensor", ())
    for name in {"device", "tensor_split"} & given.keys():
        given[name] = tuple(given[name])
    return LlamaOptions(override_tensor=tuple(starmap(Override, overrides)), **given)


SAME = rows(
    """
    [{}, {}]
    [{"cache_type_k": "q8_0"}, {"type_k": 8}]
    [{"cache_type_v": "q4_0"}, {"type_v": 2, "flash_attn_type": 1}]
    [{"cache_type_k": "iq4_nl", "cache_type_v": "q5_1"}, {"type_k": 20, "type_v": 7}]
    [{"cache_type_k": "bf16", "cache_type_v": "bf16"}, {"type_k": 30, "type_v": 30}]
    [{"cache_type_k": "f32", "cache_type_v": "f32"}, {"type_k": 0, "type_v": 0}]
    [{"cache_type_k": "q4_1", "cache_type_v": "q5_0"}, {"type_k": 3, "type_v": 6}]
    [{"flash_attn": "on"}, {"flash_attn_type": 1}]
    [{"flash_attn": "off"}, {"flash_attn_type": 0}]
    [{"flash_attn": "off", "cache_type_k": "q8_0"},
     {"flash_attn_type": 0, "type_k": 8}]
    [{"ubatch_size": 16}, {"n_ubatch": 16}]
    [{"rope_scale": 4.0}, {"rope_freq_scale": 0.25}]
    [{"rope_scaling": "linear", "rope_scale": 2.0},
     {"rope_scaling_type": 1, "rope_freq_scale": 0.5}]
    [{"rope_scaling": "yarn", "rope_scale": 4.0},
     {"rope_scaling_type": 2, "rope_freq_scale": 0.25}]
    [{"rope_scaling": "yarn", "rope_scale": 4.0, "yarn_orig_ctx": 32},
     {"rope_scaling_type": 2, "rope_freq_scale": 0.25, "yarn_orig_ctx": 32}]
    [{"no_mmap": true}, {}]
    [{"mlock": true}, {}]
    [{"no_mmap": true, "mlock": true}, {}]
    [{"cpu_moe": true}, {}]
    [{"n_cpu_moe": 1}, {}]
    [{"override_tensor": [["ffn_.*_exps", "CPU"]]}, {}]
    [{"device": ["none"]}, {}]
    [{"split_mode": "none"}, {}]
    """
)
"""Options, and the parameters of llama-cpp-python's context that mean the same."""


@pytest.mark.parametrize(("given", "context"), SAME)
def test_the_same_text_as_with_the_same_parameters(experts, given, context):
    """A trial finds nothing wrong, and llama-cpp-python's own context has the same logits."""
    made = settings(experts, options_of(**given))
    assert tried(made) == ""
    ids, logits = text_of(LlamaVerifier(made))
    expected, logits_there = text_of(Reference(experts, context=context))
    assert ids == expected
    assert np.allclose(logits, logits_there, atol=2e-3)


@pytest.mark.parametrize("kind", [LlamaVerifier, LlamaDrafter])
@pytest.mark.parametrize("scales", [(1.0,), (0.5,), (-1.0,), (0.25, 2.0)])
def test_adapters(make_gguf, make_adapter, kind, scales):
    """Each is added with its scale, in both daemons."""
    path = make_gguf("adapted")
    files = [make_adapter(f"adapter-{seed}", seed=seed) for seed in range(len(scales))]
    adapters = tuple(map(Adapter, files, scales))
    made = settings(path, options_of(lora=adapters))
    assert tried(made) == ""
    expected, _ = text_of(Reference(path, adapters=list(zip(files, scales, strict=True))))
    with closing(kind(made)) as engine:
        if kind is LlamaVerifier:
            assert generated(engine)[0] == expected
            return
        ids = [predict(engine, 0, PROMPT, GREEDY)]
        for _ in expected[1:]:
            ids.append(predict(engine, 0, ids[-1:], GREEDY))
        assert ids == expected


def test_an_adapter_changes_the_text(make_gguf, adapter):
    path = make_gguf("adapted")
    plain, _ = text_of(LlamaVerifier(settings(path)))
    adapted, _ = text_of(LlamaVerifier(settings(path, options_of(lora=(Adapter(adapter),)))))
    assert adapted != plain


def test_adapters_of_experts(experts, make_adapter):
    factors = (("blk.1.ffn_up_exps.weight", (EXPERTS, 4, 64), (EXPERTS, 128, 4)),)
    file = make_adapter("of-experts", factors=factors)
    made = settings(experts, options_of(lora=(Adapter(file),), cpu_moe=True))
    assert tried(made) == ""
    expected, _ = text_of(Reference(experts, adapters=[(file, 1.0)]))
    assert text_of(LlamaVerifier(made))[0] == expected


@cases(
    "given",
    """
    {"cache_type_k": "iq4_nl"}
    {"cache_type_v": "q5_1"}
    {"rope_scale": 4.0}
    {"rope_scaling": "yarn", "rope_scale": 4.0}
    """,
)
def test_an_option_has_an_effect(experts, given):
    _, plain = text_of(LlamaVerifier(settings(experts)))
    _, logits = text_of(LlamaVerifier(settings(experts, options_of(**given))))
    assert not np.allclose(logits, plain, atol=2e-3)


@cases(
    "given, trained, n_ctx",
    """
    [{}, 128, 128]
    [{"rope_scale": 4.0}, 128, 512]
    [{"rope_scaling": "yarn", "rope_scale": 4.0, "yarn_orig_ctx": 64}, 128, 256]
    """,
)
def test_a_longer_context(make_gguf, given, trained, n_ctx):
    """Without --ctx a text may be as long as the scaled positions allow."""
    path = make_gguf("long", n_ctx=trained)
    with closing(LlamaVerifier(settings(path, options_of(**given), ctx=None))) as engine:
        assert engine.info.n_ctx == n_ctx


@cases("size, rows", "[1, 2] [8, 8] [300, 300] [9999, 512]")
@pytest.mark.parametrize("kind", [LlamaVerifier, LlamaDrafter])
def test_rows_of_a_step(experts, kind, size, rows):
    """A step has as many at most, if there are so many cells; and one for each session at least."""
    with closing(kind(settings(experts, options_of(ubatch_size=size)))) as engine:
        assert engine.info.n_batch == rows
        engine.carry_out(KVCut(0, 0))


@pytest.mark.parametrize("types", [("q8_0", "q8_0"), ("f32", "bf16"), ("q4_0", "f16")])
def test_sequences_of_other_types_are_shared_and_offloaded(experts, types):
    """A copy and a sequence that was in the host's memory go on as a fresh one."""
    options = options_of(cache_type_k=types[0], cache_type_v=types[1])
    with closing(LlamaVerifier(settings(experts, options, max_sessions=3))) as engine:
        engine.decode([Span(2, 0, PROMPT, logits=False)])
        expected = engine.decode([Span(2, len(PROMPT), (7,), logits=True)])[0].copy()
        engine.decode([Span(0, 0, PROMPT, logits=False)])
        engine.carry_out(KVOffload(0))
        assert engine.offloaded_bytes > 0
        engine.carry_out(KVCopy(1, 0, len(PROMPT)))
        for seq in (0, 1):
            logits = engine.decode([Span(seq, len(PROMPT), (7,), logits=True)])[0]
            assert np.allclose(logits, expected, atol=2e-3)
            engine.carry_out(KVCut(seq, len(PROMPT)))


def test_a_reproducible_verifier_with_options(experts, make_adapter):
    """Drafts change no bit."""
    factors = (("blk.0.attn_q.weight", (4, 64), (64, 4)),)
    lora = (Adapter(make_adapter("one", factors=factors)),)
    options = options_of(cache_type_k="q8_0", cache_type_v="q8_0", lora=lora)
    with closing(LlamaVerifier(settings(experts, options, reproducible=True))) as engine:
        engine.decode([Span(0, 0, PROMPT, logits=False)])
        plain = engine.decode([Span(0, len(PROMPT), (50,), logits=True)])[0].copy()
        engine.carry_out(KVCut(0, len(PROMPT)))
        drafted = engine.decode([Span(0, len(PROMPT), (50, 60, 70), logits=True)])[0]
        assert np.array_equal(drafted[:1], plain)


# --- what is refused


def tried(made):
    """Return what a trial in this process finds wrong, as one line; "" for nothing."""
    found = trial.answer(json.loads(json.dumps(trial.request_of(made))))
    line = f"{found['what']}: {found['remedy']}" if found else ""
    assert "\n" not in line
    return line


def refusal(made, error=ConfigError):
    """Return the line with which options are refused, before a model is loaded."""
    with pytest.raises(error) as caught:
        check_there(made)
    line = str(caught.value)
    assert "\n" not in line
    return line


@cases(
    "given, named",
    r"""
    [{"override_tensor": [["no_such", "CPU"]]}, "'no_such': .* no such weights"]
    [{"override_tensor": [["[[:digit:]]{9}", "CPU"]]}, "no such weights"]
    [{"override_tensor": [["(", "CPU"]]}, "'\\(' .*Mismatched"]
    [{"override_tensor": [["*x", "CPU"]]}, "'\\*x' .*egular expression"]
    [{"override_tensor": [["(?i)FFN", "CPU"]]}, "--override-tensor"]
    [{"override_tensor": [["ffn", "CUDA7"]]}, "no buffer CUDA7.*CPU"]
    [{"override_tensor": [["ffn", "CPU"], ["ffn_up", "CPU"]]}, "'ffn_up': earlier patterns"]
    [{"override_tensor": [["exps", "CPU"]], "cpu_moe": true}, "--cpu-moe: earlier patterns"]
    [{"device": ["CUDA0"]}, "--device: llama.cpp has no CUDA0"]
    [{"device": ["CPU"]}, "--device: llama.cpp has no CPU"]
    [{"split_mode": "tensor"}, "--split-mode .*>= 1 devices"]
    [{"split_mode": "none", "main_gpu": 0}, "--main-gpu 0 .*there are 0"]
    [{"tensor_split": [3.0, 1.0]}, "--tensor-split .*there are 0"]
    [{"rope_scaling": "yarn"}, "--rope-scaling yarn changes nothing"]
    [{"rope_scaling": "linear"}, "--rope-scaling linear changes nothing"]
    [{"yarn_orig_ctx": 64}, "--yarn-orig-ctx is for YaRN"]
    [{"rope_scale": 2.0, "yarn_orig_ctx": 64}, "--yarn-orig-ctx is for YaRN"]
    """,
)
def test_what_the_model_or_the_machine_lacks(experts, given, named):
    assert re.search(named, tried(settings(experts, options_of(**given))))


@cases(
    "given, named",
    """
    [{"cpu_moe": true}, "--cpu-moe: the model has no such weights"]
    [{"n_cpu_moe": 2}, "--n-cpu-moe 2: the model has no such weights"]
    [{"cache_type_k": "q8_0"}, "--cache-type-k .*does not divide n_embd_head_k=16"]
    [{"cache_type_v": "q4_0"}, "--cache-type-v .*does not divide n_embd_head_v=16"]
    [{"cache_type_k": "q8_0", "flash_attn": "off"}, "--cache-type-k .*does not divide"]
    """,
)
def test_what_a_small_model_lacks(tiny_gguf, given, named):
    """Without experts, and with heads of 16 numbers, in which no block has room.

    llama.cpp itself takes the last one, and its logits are wrong.
    """
    assert re.search(named, tried(settings(tiny_gguf, options_of(**given))))


@cases(
    "given, named",
    """
    [{"cache_type_v": "q8_0"}, "--cache-type-v: the model has no KV cache"]
    [{"flash_attn": "on"}, "--flash-attn: the model has no KV cache"]
    [{"rope_scale": 2.0}, "--rope-scale: the model has no RoPE"]
    """,
)
def test_what_a_recurrent_model_lacks(make_gguf, given, named):
    path = make_gguf("lacks", arch="mamba")
    assert re.search(named, tried(settings(path, options_of(**given))))


def test_yarn_of_the_models_own(make_gguf):
    """--yarn-orig-ctx is for it, too."""
    path = make_gguf("own-yarn", rope="yarn")
    given = {"yarn_orig_ctx": 32}
    assert tried(settings(path, options_of(**given))) == ""
    ids, _ = text_of(LlamaVerifier(settings(path, options_of(**given))))
    assert ids == text_of(Reference(path, context=given))[0]


@fault("E7.101")
@cases(
    "changed, named",
    """
    [{"arch": "qwen2"}, "is for qwen2 models, and this one is llama"]
    [{"type": "model"}, "is no adapter, but a model"]
    [{"kind": "ia3"}, "another kind than LoRA: ia3"]
    [{"alpha": "8"}, "alpha that is no 32-bit float"]
    [{"alpha": NaN}, "has nan as adapter.lora.alpha"]
    [{"factors": []}, "changes no weight"]
    [{"factors": [["blk.9.attn_q.weight", [4, 64], [64, 4]]]}, "this one has no blk.9.attn_q"]
    [{"factors": [[$Q, [4, 64], []]]}, "one of two factors for blk.0.attn_q"]
    [{"factors": [[$Q, [4, 32], [64, 4]]]}, "factors of blk.0.attn_q.weight are 32 x 4"]
    [{"factors": [[$Q, [4, 64], [32, 4]]]}, "factors of blk.0.attn_q.weight are"]
    [{"factors": [[$Q, [64, 4], [4, 64]]]}, "factors of blk.0.attn_q.weight are"]
    [{"factors": [[$Q, [4, 64], [64, 8]]]}, "ranks 4 and 8"]
    [{"factors": [[$Q, [2, 4, 64], [2, 64, 4]]]}, "are 64 x 4 x 2 and"]
    [{"factors": [["token_embd.weight", [4, 64], [320, 4]]]}, "token_embd.weight are"]
    """,
    Q="blk.0.attn_q.weight",
)
def test_a_file_that_is_no_adapter_of_this_model(tiny_gguf, make_adapter, changed, named):
    file = make_adapter(f"wrong-{abs(hash(named))}", **changed)
    line = tried(settings(tiny_gguf, options_of(lora=(Adapter(file),))))
    assert line.startswith(f"--lora {file} ")
    assert named in line


@fault("E7.101")
def test_a_damaged_adapter(tiny_gguf, adapter, tmp_path):
    raw = adapter.read_bytes()
    path = tmp_path / "cut.gguf"
    for length in (0, 3, 40, 300, len(raw) // 2, len(raw) - 1):
        path.write_bytes(raw[:length])
        assert refusal(settings(tiny_gguf, options_of(lora=(Adapter(path),)))).startswith("--lora")


@fault("E7.101")
def test_an_adapter_that_is_not_there(tiny_gguf, tmp_path):
    """It may come; what is no file is not opened."""
    lora = (Adapter(tmp_path / "none.gguf"),)
    assert "none.gguf" in refusal(settings(tiny_gguf, options_of(lora=lora)), NotThereYet)
    os.mkfifo(tmp_path / "fifo.gguf")
    for path in (tmp_path, tmp_path / "fifo.gguf"):
        assert "is no file" in refusal(settings(tiny_gguf, options_of(lora=(Adapter(path),))))


def test_a_device_may_come(experts, monkeypatch):
    """A build for GPUs may find one later."""
    given = settings(experts, options_of(device=("CUDA0",)))
    refused = {"what": "no CUDA0", "remedy": "see", "missing": True, "backends": ["CUDA"]}
    monkeypatch.setattr("specmesh.engines.llama.trial.Child.ask", lambda *_: refused)
    assert "no CUDA0" in refusal(given, NotThereYet)


@fault("E7.101")
def test_a_model_that_ends_the_trial(experts, monkeypatch):
    """llama.cpp ends the child process, not this one."""
    monkeypatch.setattr(
        "specmesh.engines.llama.trial.request_of", lambda _: {"options": {}, "model": "x"}
    )
    assert "--mlock" in refusal(settings(experts, options_of(mlock=True)))


@cases(
    "engine, model",
    """
    ["mlx", "some/model"]
    ["ngram", null]
    ["sim", "step_ms=1"]
    """,
)
def test_engines_without_these_options(engine, model):
    """They are refused by their names."""
    options = options_of(cache_type_k="q8_0", mlock=True)
    with pytest.raises(ConfigError, match=f"--engine {engine} has no --cache-type-k, --mlock"):
        ModelSettings(engine=engine, model=model, llama=options)


@pytest.mark.parametrize("model", [None, "some/model"])
def test_an_engine_that_is_chosen_later(model):
    made = ModelSettings(engine="auto", model=model, llama=options_of(ubatch_size=8))
    assert "has no --ubatch-size" in refusal(made)


LOCKED = """
import sys
from specmesh.config import ModelSettings
from specmesh.engines.llama.engine import LlamaVerifier
from specmesh.engines.load import check_there
from specmesh.errors import ConfigError
from specmesh.llama_options import LlamaOptions
import structlog
structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
made = ModelSettings(engine="llama", model=sys.argv[1], ctx=64, llama=LlamaOptions(mlock=True))
for step in (check_there, LlamaVerifier):
    try:
        step(made)
    except ConfigError as error:
        print(error)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="macOS has no such limit")
def test_memory_that_may_not_be_locked(tiny_gguf):
    """Before and after the load one line names the limit."""
    limited = ["prlimit", "--memlock=65536:65536"]
    if os.geteuid() == 0:
        limited += ["setpriv", "--bounding-set=-ipc_lock"]
    command = [*limited, sys.executable, "-c", LOCKED, str(tiny_gguf)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True)
    before, after = done.stdout.splitlines()
    assert before.startswith("--mlock: the model has ")
    assert "64 KiB may be locked" in before
    assert after.startswith("--mlock: warning: failed to mlock")


def test_arrays_live_as_long_as_the_model(experts):
    """llama.cpp reads what its parameters point to after the load, too."""
    lib = llama_library.library()
    given = options_of(override_tensor=[["ffn", "CPU"]], device=["none"])
    params = llama_params.model_params(lib, settings(experts, given))
    assert len(params.kept) == 2


@cases(
    "given, mode",
    """
    [{}, -1]
    [{"no_mmap": true}, 0]
    [{"no_mmap": true, "mlock": true}, 2]
    [{"mlock": true}, 3]
    """,
)
def test_how_weights_are_kept(tiny_gguf, given, mode):
    """By the numbers of llama.h: as the device can, read, read and locked, mapped and locked."""
    lib = llama_library.library()
    made = settings(tiny_gguf, options_of(**given))
    assert llama_params.model_params(lib, made).struct.load_mode == mode


def test_shares_of_devices(tiny_gguf):
    """llama.cpp reads as many shares as it knows devices, however many were given."""
    lib = llama_library.library()
    given = options_of(split_mode="row", main_gpu=1, tensor_split=[3.0, 1.0])
    params = llama_params.model_params(lib, settings(tiny_gguf, given))
    struct = params.struct
    [shares] = params.kept
    assert len(shares) == lib.llama_max_devices()
    assert struct.tensor_split[:3] == [3.0, 1.0, 0.0]
    assert (struct.split_mode, struct.main_gpu) == (2, 1)


@cases(
    "given, used",
    """
    [{}, ["RPC0: b", "GPU0: a", "GPU1: c"]]
    [{"device": ["GPU1", "RPC0"]}, ["GPU1: c", "RPC0: b"]]
    [{"device": ["none"]}, []]
    [{"split_mode": "none"}, ["RPC0: b"]]
    [{"split_mode": "none", "main_gpu": 2}, ["GPU1: c"]]
    [{"split_mode": "none", "main_gpu": 1, "device": ["GPU1", "GPU0"]}, ["GPU0: a"]]
    """,
)
def test_the_devices_that_take_layers(tiny_gguf, monkeypatch, given, used):
    """Servers come first, as in llama.cpp; the log and stats name them."""
    found = ("GPU0: a", "RPC0: b", "GPU1: c")
    monkeypatch.setattr(llama_params, "gpu_devices", lambda: found)
    made = settings(tiny_gguf, options_of(**given))
    assert llama_params.used_devices(made) == tuple(used)
