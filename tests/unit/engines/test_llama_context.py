"""The context of a llama.cpp target: by its training, its memory and the settings."""

from contextlib import ExitStack, closing

import pytest
from harness.tables import cases
from structlog.testing import capture_logs

from specmesh.config import ModelSettings, parse_kv_cache
from specmesh.core.events import Span
from specmesh.core.kv_orders import KVOffload
from specmesh.engines.llama import fitting
from specmesh.engines.llama import library as llama_library
from specmesh.engines.llama.cache import LlamaCache
from specmesh.engines.llama.engine import LlamaVerifier
from specmesh.errors import ConfigError

pytest.importorskip("llama_cpp")

TRAINED = 1000
KEYS_AND_VALUES = 2 * 64 * 2  # bytes of an id in a layer
PLACE = 12  # bytes that say where the id is
MASKS = 1024  # bytes of a cell beside keys and values


@pytest.fixture
def target(make_gguf):
    """Open a small target until the test has ended."""
    path = make_gguf("trained-1000", n_ctx=TRAINED)
    with ExitStack() as ends:

        def opened(kv_cache="auto", **changes):
            given = {"max_sessions": 3, "threads": 1, "kv_cache": parse_kv_cache(kv_cache)}
            chosen = ModelSettings(engine="llama", model=str(path), **{**given, **changes})
            return ends.enter_context(closing(LlamaVerifier(chosen)))

        yield opened


def test_a_session_has_what_the_model_was_trained_with(target):
    info = target().info
    assert (info.n_ctx, info.max_sessions, info.cells) == (TRAINED, 3, 3000)


def test_the_bytes_of_a_cell_do_not_depend_on_how_many_there_are(target):
    small, large = target(kv_cache="512"), target(kv_cache="1024")
    assert small.info.cell_bytes == large.info.cell_bytes


@pytest.mark.parametrize(("swa_full", "layers"), [(True, 2), (False, 1)])
def test_the_bytes_of_a_cell_count_the_windows_that_have_one_for_each_id(
    make_gguf, swa_full, layers
):
    """One of the two layers has a window."""
    path = make_gguf("gemma3-4096", arch="gemma3", n_ctx=4096)
    chosen = ModelSettings(
        engine="llama", model=str(path), threads=1, max_sessions=2, swa_full=swa_full
    )
    with closing(LlamaVerifier(chosen)) as engine:
        assert engine.info.cell_bytes == layers * (KEYS_AND_VALUES + PLACE)


def test_the_bytes_of_a_cell_are_measured(target, monkeypatch):
    """A state has as many for each id, and some for its place."""
    lib = llama_library.library()
    make = lib.llama_init_from_model
    contexts = []

    def noted(model, params):
        contexts.append(make(model, params))
        return contexts[-1]

    monkeypatch.setattr(lib, "llama_init_from_model", noted)
    engine = target()
    context = contexts[-1]
    engine.decode([Span(0, 0, (1, 2), logits=False)])
    two = lib.llama_state_seq_get_size(context, 0)
    engine.decode([Span(0, 2, (3, 4, 5), logits=False)])
    five = lib.llama_state_seq_get_size(context, 0)
    assert engine.info.cell_bytes == (five - two) // 3


def test_half_of_the_free_memory(target, monkeypatch):
    cell = target().info.cell_bytes
    monkeypatch.setattr(fitting, "free_bytes", lambda: 2 * 1500 * (cell + MASKS))
    info = target().info
    assert info.n_ctx == TRAINED
    assert 1400 < info.cells <= 1500


def test_a_text_is_shorter_where_memory_is_short(target, monkeypatch):
    monkeypatch.setattr(fitting, "free_bytes", lambda: 0)
    info = target().info
    assert (info.n_ctx, info.cells) == (512, 512)


@cases(
    "options, expected",
    """
    [{"kv_cache": "700"}, [700, 3, 700]]
    [{"kv_cache": "1700"}, [1000, 3, 1700]]
    [{"ctx": 600}, [600, 3, 1800]]
    [{"ctx": 256, "kv_cache": "600"}, [256, 3, 600]]
    [{"ctx": 256, "kv_cache": "600", "reproducible": true}, [256, 2, null]]
    [{"kv_cache": "1500", "reproducible": true}, [1000, 1, null]]
    """,
)
def test_explicit_sizes(target, options, expected):
    """Sessions with cells of their own are as many as there is memory for."""
    info = target(**options).info
    assert [info.n_ctx, info.max_sessions, info.cells] == expected


def test_memory_that_ends_sooner_than_it_seems(target, monkeypatch):
    """Half of the cells is tried then."""
    lib = llama_library.library()
    make = lib.llama_init_from_model

    def limited(model, params):
        return make(model, params) if params.n_ctx <= 2000 else None

    monkeypatch.setattr(lib, "llama_init_from_model", limited)
    with capture_logs() as told:
        info = target().info
    assert (info.n_ctx, info.cells) == (TRAINED, 1500)
    assert [line["event"] for line in told if line["log_level"] == "warning"] == [
        "kv_cache_is_smaller"
    ]


def test_a_size_that_is_too_small_for_a_text(target):
    with pytest.raises(ConfigError, match="--ctx 500 does not fit into --kv-cache 1K"):
        target(ctx=500, kv_cache="1K")


@cases("now, held", "[false, 3] [true, 0]")
def test_a_host_without_memory(target, monkeypatch, now, held):
    """A sequence stays in its cells, or is lost if they are wanted."""

    def fail(*_):
        raise MemoryError

    engine = target()
    engine.decode([Span(0, 0, (1, 2, 3), logits=False)])
    monkeypatch.setattr(LlamaCache, "save", fail)
    assert engine.carry_out(KVOffload(0, now=now)) == held
