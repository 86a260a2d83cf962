"""llama.cpp as engine: GPUs, contexts, failed steps, texts, damaged files, and rollback."""

import functools
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from harness import PATIENCE
from harness.engine_contract import GREEDY, predict
from harness.tables import cases
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from specmesh.config import ModelSettings
from specmesh.core.events import Span
from specmesh.core.kv_orders import KVCut, KVOffload, KVSave
from specmesh.engines.llama import library as llama_library
from specmesh.engines.llama import model as llama_model
from specmesh.engines.llama import params as llama_params
from specmesh.engines.llama.engine import LlamaDrafter, LlamaVerifier
from specmesh.engines.llama.model import LlamaModel
from specmesh.engines.llama.rollback import Restore
from specmesh.engines.text_coverage import TextCoverage
from specmesh.errors import (
    ChildFailed,
    ConfigError,
    EngineError,
    LocalProtocolError,
    NotThereYet,
    RequestError,
)
from specmesh.paths import bundled

fault = pytest.mark.fault

pytest.importorskip("llama_cpp")
pytestmark = pytest.mark.models

MEGABYTE = 10**6


def settings(path, **changes):
    return ModelSettings(
        engine="llama", model=str(path), **{"ctx": 64, "max_sessions": 2, "threads": 1, **changes}
    )


def both(position, ids, *, logits):
    """Return the spans of two sequences."""
    return [Span(seq, position, ids, logits=logits) for seq in (0, 1)]


def warnings_of(log, name):
    """Return how many lines have a name."""
    return sum(line["event"] == name for line in log)


def rows(engine, *spans):
    """Return the logits of the first span of a step."""
    return engine.decode(spans)[0].copy()


@pytest.fixture(scope="module")
def verifier(tiny_gguf):
    with closing(LlamaVerifier(settings(tiny_gguf))) as engine:
        yield engine


@pytest.fixture
def opened():
    """Open an engine until the test has ended."""
    with ExitStack() as ends:
        yield lambda engine: ends.enter_context(closing(engine))


class TestGpu:
    """A GPU that is not there: on this machine there is none, and no build for one."""

    @cases(
        "backends, gpu_layers, warned",
        """
        [[], null, false]
        [["CUDA"], null, true]
        [[], -1, true]
        [[], 9, true]
        [[], 0, false]
        """,
    )
    @fault("E7.82")
    def test_the_cpu_instead_is_warned_of(
        self, tiny_gguf, monkeypatch, backends, gpu_layers, warned
    ):
        """It warns if a GPU was asked for, or the build is for one, in both daemons."""
        monkeypatch.setattr(llama_model, "gpu_backends", lambda: backends)
        monkeypatch.setattr(llama_params, "gpu_devices", tuple)
        for kind in (LlamaVerifier, LlamaDrafter):
            with capture_logs() as told:
                kind(settings(tiny_gguf, gpu_layers=gpu_layers)).close()
            assert warnings_of(told, "no_gpu") == warned

    @fault("E7.82")
    def test_required(self, tiny_gguf, monkeypatch):
        """Nothing is loaded without one."""
        monkeypatch.setattr(llama_params, "gpu_devices", tuple)
        with pytest.raises(ConfigError, match="--require-gpu: there is no GPU"):
            LlamaVerifier(settings(tiny_gguf, gpu_layers=None, require_gpu=True))

    @pytest.mark.parametrize(
        ("seen", "error"),
        [
            ({"gpus": [], "backends": ["CUDA"]}, NotThereYet),
            ({"gpus": [], "backends": []}, ConfigError),
            (ChildFailed("it ended with SIGABRT"), NotThereYet),
            ({"gpus": ["CUDA0: H200"], "backends": ["CUDA"]}, None),
        ],
    )
    @fault("E7.82")
    def test_it_may_come(self, monkeypatch, seen, error):
        """It may come if the build is for one and the driver is not ready yet."""

        def ask(_):
            if isinstance(seen, Exception):
                raise seen
            return seen

        child = SimpleNamespace(ask=ask, close=lambda: None)
        monkeypatch.setattr(llama_library, "Child", lambda *_, **__: child)
        if error is None:
            llama_library.check_gpu()
            return
        with pytest.raises(error) as raised:
            llama_library.check_gpu()
        assert type(raised.value) is error

    def test_a_child_sees_what_this_process_sees(self):
        seen = llama_library.answer({})
        assert seen == {"gpus": list(llama_library.gpu_devices()), "backends": []}


class TestEngine:
    @fault("E7.81")
    def test_refused(self, tiny_gguf):
        with pytest.raises(ConfigError, match=r"n_seq_max.*--max-sessions"):
            LlamaVerifier(settings(tiny_gguf, max_sessions=257))

    @cases("trained, warned", "[0, 0] [64, 0] [32, 1]")
    def test_a_context_beyond_training(self, make_gguf, trained, warned):
        """It warns if the file has the context of its training."""
        path = make_gguf(f"trained-{trained}", n_ctx=trained)
        with capture_logs() as told:
            LlamaVerifier(settings(path)).close()
        assert warnings_of(told, "context_beyond_training") == warned

    @pytest.mark.parametrize("n_ctx", [2**32 + 64, 2**25])
    @fault("E5.57")
    def test_no_memory_for_the_context(self, tiny_gguf, monkeypatch, n_ctx):
        monkeypatch.setattr(llama_library.library(), "llama_init_from_model", lambda *_: None)
        with pytest.raises(ConfigError, match="give a smaller"):
            LlamaVerifier(settings(tiny_gguf, ctx=n_ctx))

    def test_rows_with_logits_are_bounded(self, tiny_gguf, opened):
        engine = opened(LlamaVerifier(settings(tiny_gguf), max_draft=3))
        engine.decode([Span(0, 0, tuple(range(8)), logits=True)])
        with pytest.raises(Exception, match="9 with logits"):
            engine.decode([Span(0, 8, tuple(range(9)), logits=True)])

    @cases("code, named", '[1, "no room"] [2, "code 2"] [-1, "code -1"] [-3, "code -3"]')
    @pytest.mark.parametrize("arch", ["llama", "mamba"])
    def test_failed_step(self, make_gguf, opened, monkeypatch, arch, code, named):
        """The sequences of a failed step are empty, and the others unchanged."""
        engine = opened(LlamaVerifier(settings(make_gguf(f"tiny-{arch}", arch=arch))))
        ids = tuple(range(40, 52))
        expected = rows(engine, Span(0, 0, ids, logits=True))[8:]
        engine.carry_out(KVCut(0, 0))
        engine.decode(both(0, ids[:8], logits=False))
        lib = llama_library.library()
        decode = lib.llama_decode
        with monkeypatch.context() as patch:
            patch.setattr(lib, "llama_decode", lambda *arguments: (decode(*arguments), code)[1])
            with pytest.raises(EngineError, match=named):
                engine.decode([Span(0, 8, (90, 91), logits=True)])
        for seq, held in ((0, 0), (1, 8)):
            assert engine.carry_out(KVCut(seq, 99)) == held
            again = rows(engine, Span(seq, held, ids[held:], logits=True))
            assert np.allclose(again[8 - held :], expected, atol=1e-3)


class TestVocabulary:
    @fault("E7.83")
    @pytest.mark.parametrize(
        "piece", ["\0", "a\0b\0", "the hell \U0001f600\u4e2d ", "x", "lorem ipsum ", " "]
    )
    @pytest.mark.parametrize("length", [0, 1, 20, MEGABYTE])
    def test_encode(self, verifier, piece, length):
        text = (piece * length)[:length]
        pieces = verifier.vocabulary.pieces
        assert b"".join(pieces[token] for token in verifier.tokenizer.encode(text)).decode() == text

    @fault("E7.83")
    def test_lone_surrogates(self, verifier):
        with pytest.raises(RequestError, match="not valid Unicode"):
            verifier.tokenizer.encode("\udc80")

    @fault("E7.83")
    def test_a_text_that_would_end_the_daemon(self, make_gguf, opened):
        """With some vocabularies each letter of a run takes stack; a thread has too little."""
        engine = opened(LlamaVerifier(settings(make_gguf("gpt-4o", pre="gpt-4o"))))
        assert len(engine.tokenizer.encode("x" * MEGABYTE)) == MEGABYTE

    @given(st.text(st.one_of(st.characters(codec="utf-8"), st.sampled_from(" \u2581\n<|im_>"))))
    def test_no_text_has_fewer_ids_than_said(self, text):
        """Whatever is in it: control characters, blanks, marks of special tokens."""
        for encoder in bundled_encoders():
            assert encoder.least_ids(text) <= len(encoder.encode(text, special=False))

    def test_bytes_that_no_id_stands_for_count_for_nothing(self):
        """A vocabulary without them drops them, as SmolLM2's some control characters."""
        assert TextCoverage(4, b"\x04").least_ids("\x04" * 100 + "abcde") == 2
        assert TextCoverage(0, b"").least_ids("abcde") == 0

    def test_a_long_text_has_many_ids(self):
        for encoder in bundled_encoders():
            assert encoder.least_ids("word " * 20_000) > 1000


def test_texts_are_tokenized_side_by_side(tiny_gguf, monkeypatch):
    """A short one does not wait for a long one, and a model is freed after both."""
    engine = LlamaVerifier(settings(tiny_gguf))
    encoder = engine.tokenizer.encoder
    begun, closing = threading.Event(), threading.Event()
    order = []
    read, wait_for = encoder._tokenize_deeply, encoder._used.wait_for

    def deeply(raw, special):
        begun.set()
        assert closing.wait(PATIENCE)
        order.append("read")
        return read(raw, special)

    def waits(predicate):
        closing.set()
        return wait_for(predicate)

    monkeypatch.setattr(encoder, "_tokenize_deeply", deeply)
    monkeypatch.setattr(encoder._used, "wait_for", waits)
    with ThreadPoolExecutor(1) as other:
        ids = other.submit(encoder.encode, "x" * 10_000)
        assert begun.wait(PATIENCE)
        assert encoder.encode("x") == encoder.encode("x")
        engine.close()
        order.append("closed")
    pieces = encoder.vocabulary.pieces
    assert b"".join(pieces[token] for token in ids.result()) == b"x" * 10_000
    assert order == ["read", "closed"]
    with pytest.raises(EngineError, match="closed"):
        encoder.encode("x")


@functools.cache
def bundled_encoders():
    encoders = []
    for name in ("target.gguf", "drafter.gguf"):
        encoders.append(LlamaModel(ModelSettings(engine="llama", model=bundled(name))).encoder)
    return encoders


@pytest.mark.parametrize("gpu", [False, True])
def test_what_is_offloaded_has_no_cells(tiny_gguf, monkeypatch, gpu):
    """Each step goes through all cells.

    On a GPU a copy takes long, so other sequences must have stepped for a while since its last use.
    """
    monkeypatch.setattr("specmesh.engines.llama.params.gpu_devices", lambda: ("a GPU",))
    lib, made = llama_library.library(), []
    memory_of = lib.llama_get_memory
    monkeypatch.setattr(
        lib, "llama_get_memory", lambda context: made.append(memory_of(context)) or made[-1]
    )
    engine = LlamaVerifier(settings(tiny_gguf, gpu_layers=-gpu))

    def idles(position, most=10_000):
        """Steps of another one from a use of it until it has no cells, at most so many."""
        engine.decode([Span(0, position, (40,), logits=False)])
        assert (lib.llama_memory_seq_pos_max(made[-1], 0), engine.offloaded_bytes) == (position, 0)
        for steps in range(most):
            engine.carry_out(KVOffload(0))
            if lib.llama_memory_seq_pos_max(made[-1], 0) < 0:
                assert engine.offloaded_bytes > 0
                return steps
            engine.carry_out(KVCut(1, 0))
            engine.decode([Span(1, 0, (40,), logits=False)])
        return most

    first = idles(0)
    assert idles(1, first // 2) == first // 2
    assert idles(2) == first
    assert (first > 1) == gpu
    engine.close()


def test_calls_after_the_end(tiny_gguf):
    """A late call never reaches llama.cpp, which would end the process."""
    verifier, drafter = LlamaVerifier(settings(tiny_gguf)), LlamaDrafter(settings(tiny_gguf))
    for engine in (verifier, drafter):
        engine.close()
        engine.close()
        with pytest.raises(LocalProtocolError, match="closed"):
            engine.use_threads(1)
    assert (verifier.decode([]), drafter.predict([])) == ([], [])
    with pytest.raises(LocalProtocolError):
        predict(drafter, 0, [1], GREEDY)
    with pytest.raises(EngineError, match="closed"):
        verifier.tokenizer.encode("x")


def test_pin_is_the_packages():
    assert (
        f"llama-cpp-python=={llama_library.PINNED}"
        in (Path(__file__).parents[3] / "pyproject.toml").read_text()
    )


QUIET = """
import sys, structlog
from specmesh.config import ModelSettings
from specmesh.engines.llama.engine import LlamaVerifier
structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
LlamaVerifier(ModelSettings(engine="llama", model=sys.argv[1], ctx=64, max_sessions=1, threads=1))
"""


def test_nothing_on_stderr(tiny_gguf):
    command = [sys.executable, "-c", QUIET, str(tiny_gguf)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert (done.stdout, done.stderr) == ("", "")


# --- files that are missing, damaged or no files: a line that names the file and what is wrong


def refused(path):
    with pytest.raises(ConfigError) as caught:
        LlamaModel(ModelSettings(engine="llama", model=str(path)))
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@fault("E7.76")
def test_cut_off_anywhere(tiny_gguf, tmp_path):
    raw, path = tiny_gguf.read_bytes(), tmp_path / "model.gguf"
    for length in (*range(200), len(raw) // 2, len(raw) - 64):
        path.write_bytes(raw[:length])
        assert "could not be loaded" in refused(path)


@fault("E7.75")
@fault("E7.77")
def test_no_file(tiny_gguf, tmp_path):
    for part in (1, 3):
        (tmp_path / f"m-0000{part}-of-00003.gguf").write_bytes(tiny_gguf.read_bytes())
    assert "m-00002-of-00003.gguf is missing" in refused(tmp_path / "m-00001-of-00003.gguf")
    assert "name the first part, m-00001-of-00003.gguf" in refused(
        tmp_path / "m-00003-of-00003.gguf"
    )
    os.mkfifo(tmp_path / "fifo.gguf")
    (tmp_path / "directory.gguf").mkdir()
    (tmp_path / "loop.gguf").symlink_to(tmp_path / "loop.gguf")
    for name in ("fifo.gguf", "none.gguf", "loop.gguf"):
        assert f"{name} is missing, or no file" in refused(tmp_path / name)
    assert "is a folder" in refused(tmp_path / "directory.gguf")


# --- how rows are taken back by models with recurrent layers

IDS = tuple(range(40, 100))
RESTORING = ["mamba", "lfm2", "qwen35"]


def restoring(make_gguf, arch):
    return settings(make_gguf(f"rewind-{arch}", arch=arch), ctx=256)


def close_to(left, right):
    return float(np.abs(left - right).max()) < 0.02


class TestRestore:
    @fault("E7.79")
    def test_a_wrong_state_shows_in_the_logits(self, make_gguf, monkeypatch):
        monkeypatch.setattr(Restore, "load", lambda *_: None)
        with pytest.raises(ConfigError, match="cannot verify"):
            LlamaVerifier(restoring(make_gguf, "lfm2"), max_draft=8)

    def test_a_wide_step_taken_back(self, make_gguf, opened):
        """More ids to decode again than a step has rows are decoded in pieces."""
        engine = opened(LlamaVerifier(restoring(make_gguf, "lfm2"), n_batch=12, max_draft=11))
        engine.decode([Span(1, 0, IDS[:12], logits=False)])
        expected = rows(engine, Span(1, 12, IDS[12:13], logits=True))
        engine.carry_out(KVCut(1, 0))
        engine.decode(both(0, IDS[:6], logits=False))
        for start in (6, 9):  # a span with drafts, then one whose ids are remembered with it
            ids = (*IDS[start : start + 3], 90, 91, 92)
            engine.decode(both(start, ids, logits=True))
            for seq in (0, 1):
                engine.carry_out(KVCut(seq, start + 3))
        for seq in (0, 1):
            assert close_to(rows(engine, Span(seq, 12, IDS[12:13], logits=True)), expected)

    @pytest.mark.parametrize("arch", RESTORING)
    def test_a_state_that_does_not_come_back(self, make_gguf, opened, arch, monkeypatch):
        engine = opened(LlamaVerifier(restoring(make_gguf, arch), max_draft=8))
        engine.decode(both(0, IDS[:8], logits=False))
        engine.carry_out(KVSave(0, 8))
        engine.decode([Span(0, 8, IDS[8:12], logits=True)])
        engine.carry_out(KVCut(0, 8))
        with monkeypatch.context() as patch:
            patch.setattr(llama_library.library(), "llama_state_seq_set_data_ext", lambda *_: 0)
            with pytest.raises(EngineError, match="did not restore"):
                engine.decode([Span(0, 8, IDS[8:12], logits=True)])
        after = rows(engine, Span(1, 8, IDS[8:9], logits=True))
        assert close_to(rows(engine, Span(0, 0, IDS[:9], logits=True))[-1:], after)

    @pytest.mark.parametrize("arch", RESTORING)
    def test_a_long_chain_is_wrong(self, make_gguf, opened, arch):
        """A state that was saved within it is not gone back to."""
        engine = opened(LlamaDrafter(restoring(make_gguf, arch)))
        predict(engine, 0, IDS[:40], None)
        for token in (*IDS[40:50], *range(40, 90)):
            predict(engine, 0, [token], GREEDY)
        assert engine.carry_out(KVCut(0, 50)) == 50
        draft = predict(engine, 0, IDS[50:51], GREEDY)
        assert draft == predict(engine, 1, IDS[:51], GREEDY)


# --- steps of a constant width: the same bits with any drafts, cuts and other sequences

WIDTH = 4
N_CTX = 600
PROMPT = 250
STEPS = 40


@pytest.fixture(scope="module")
def target():
    made = settings(bundled("target.gguf"), ctx=N_CTX, max_sessions=3, reproducible=True)
    with closing(LlamaVerifier(made)) as engine:
        yield engine


@pytest.fixture(autouse=True)
def _empty(target):
    for seq in range(3):
        target.carry_out(KVCut(seq, 0))


@pytest.fixture(scope="module")
def ids(target):
    return tuple(np.random.default_rng(3).integers(300, len(target.vocabulary) - 1, 600).tolist())


def test_neither_drafts_nor_other_sequences_change_a_bit(target, ids):
    """Any number of right and wrong drafts, over a boundary of attention's blocks.

    Another sequence's rows come and go.
    """
    target.decode([Span(0, 0, ids[:PROMPT], logits=False)])
    expected = []
    for at in range(PROMPT, PROMPT + STEPS):
        expected += [*rows(target, Span(0, at, (ids[at],), logits=True))]
    target.decode([Span(2, 0, ids[100:130], logits=False), Span(1, 0, ids[:PROMPT], logits=False)])
    at, luck = PROMPT, np.random.default_rng(5)
    while at < PROMPT + STEPS:
        right = int(luck.integers(0, WIDTH))
        wrong = int(luck.integers(0, WIDTH - right))
        drafts = (*ids[at + 1 : at + 1 + right], *ids[:wrong])
        other = Span(2, 30, ids[at - 3 : at], logits=True)
        step = [Span(1, at, (ids[at], *drafts), logits=True), other]
        found = rows(target, *step[: int(luck.integers(1, 3))])
        for row, shall in zip(found[: right + 1], expected[at - PROMPT :], strict=False):
            assert np.array_equal(row, shall)
        at += right + 1
        target.carry_out(KVCut(1, at))
        target.carry_out(KVCut(2, 30))


def test_the_whole_context(target, ids):
    """The last step of a sequence has room for filling rows; a prompt may take several decodes."""
    most = target.info.n_batch
    target.decode([Span(0, 0, ids[:most], logits=False)])
    target.decode([Span(0, most, ids[most : N_CTX - 1], logits=False)])
    assert target.decode([Span(0, N_CTX - 1, (5,), logits=True)])[0] is not None
    with pytest.raises(LocalProtocolError):
        target.decode([Span(0, N_CTX, (5,), logits=True)])


def test_models_that_cannot(make_gguf):
    """Rows that fill a step up must be removed again, which a recurrent state does not allow."""
    with pytest.raises(ConfigError, match="leave --reproducible out"):
        LlamaVerifier(settings(make_gguf("tiny-mamba", arch="mamba"), reproducible=True))
