"""What reaches llama.cpp: whatever the cache is asked, no number that is out of its bounds."""

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specmesh.engines.base import Fork, Span
from specmesh.engines.llama_cache import CacheSizes, LlamaCache, SavedState
from specmesh.errors import ConfigError, EngineError

N_SEQ, N_CTX, N_VOCAB, ROWS, OUTPUTS = 3, 24, 40, 12, 5
HANDLE, MEMORY = 7001, 7002


class FakeLibrary:
    """Low-level functions that hold lengths as llama.cpp does, and assert that what comes is within bounds."""

    LLAMA_FLASH_ATTN_TYPE_AUTO = -1
    LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY = 1

    def __init__(self, refuses: bool = False) -> None:
        self.held = [0] * N_SEQ
        self.code = 0
        self.refuses = refuses
        self.wanted = 0
        self.freed = False
        self.calls = 0
        self.logits = np.zeros((OUTPUTS, N_VOCAB), np.float32)

    def llama_context_default_params(self) -> SimpleNamespace:
        return SimpleNamespace()

    def llama_init_from_model(self, _model: object, params: SimpleNamespace) -> int:
        assert params.n_ctx == N_CTX * N_SEQ
        return HANDLE

    def llama_get_memory(self, handle: int) -> int:
        return MEMORY

    def llama_n_rs_seq(self, handle: int) -> int:
        return 0

    @staticmethod
    def llama_batch(*fields: object) -> SimpleNamespace:
        return SimpleNamespace(n_tokens=fields[0], fields=fields)

    def llama_decode(self, handle: int, batch: SimpleNamespace) -> int:
        self.open(handle)
        _, ids, _, positions, counts, seqs, wanted = batch.fields
        assert 0 < batch.n_tokens <= ROWS
        self.wanted = 0
        for row in range(batch.n_tokens):
            shared = {seqs[row][number] for number in range(counts[row])}
            assert len(shared) == counts[row] in {1, 2}
            assert wanted[row] in {0, 1}
            assert 0 <= ids[row] < N_VOCAB
            for seq in shared:
                assert 0 <= seq < N_SEQ
                assert positions[row] == self.held[seq] < N_CTX
                self.held[seq] += 1
            self.wanted += wanted[row]
        assert self.wanted <= OUTPUTS
        return self.code

    def llama_memory_seq_rm(self, memory: int, seq: int, start: int, end: int) -> bool:
        assert memory == MEMORY
        assert not self.freed
        assert 0 <= seq < N_SEQ
        assert end == -1
        self.calls += 1
        if start == -1:
            self.held[seq] = 0
            return True
        assert 0 <= start <= self.held[seq]
        if self.refuses:
            return False
        self.held[seq] = start
        return True

    def llama_memory_seq_cp(self, memory: int, source: int, seq: int, start: int, end: int) -> None:
        assert memory == MEMORY
        assert not self.freed
        assert 0 <= source < N_SEQ
        assert 0 <= seq < N_SEQ
        assert self.held[seq] == start == 0 < end <= self.held[source]
        self.calls += 1
        self.held[seq] = end

    def llama_state_seq_get_size_ext(self, handle: int, seq: int, flags: int) -> int:
        self.open(handle)
        assert 0 <= seq < N_SEQ
        return 8

    def llama_state_seq_get_data_ext(self, handle: int, state: object, size: int, seq: int, flags: int) -> int:
        self.open(handle)
        assert 0 <= seq < N_SEQ
        return size

    llama_state_seq_set_data_ext = llama_state_seq_get_data_ext

    def llama_get_logits(self, handle: int) -> object:
        self.open(handle)
        return self.logits.ctypes.data_as(np.ctypeslib.ctypes.POINTER(np.ctypeslib.ctypes.c_float))

    def llama_synchronize(self, handle: int) -> None:
        self.open(handle)

    def llama_free(self, handle: int) -> None:
        self.open(handle)
        self.freed = True

    def open(self, handle: int) -> None:
        assert handle == HANDLE
        assert not self.freed
        self.calls += 1


def made(refuses: bool = False) -> tuple[LlamaCache, FakeLibrary]:
    lib = FakeLibrary(refuses)
    model = SimpleNamespace(lib=lib, handle=1, n_vocab=N_VOCAB, name="fake")
    sizes = CacheSizes(n_ctx=N_CTX, n_seq=N_SEQ, rows=ROWS, outputs=OUTPUTS, threads=1)
    return LlamaCache(model, sizes), lib  # type: ignore[arg-type]


ANY = st.one_of(
    st.integers(-3, N_CTX + 3), st.integers(), st.sampled_from([-1, 2**31 - 1, 2**31, -(2**31), 2**32, 2**63, 2**64])
)
NEAR = st.integers(-1, N_VOCAB)
FORKS = st.builds(Fork, st.one_of(st.integers(0, N_SEQ - 1), ANY), ANY, st.lists(NEAR, max_size=4).map(tuple))
SPANS = st.builds(
    Span,
    st.one_of(st.integers(0, N_SEQ - 1), ANY),
    ANY,
    st.lists(NEAR, max_size=8).map(tuple),
    st.booleans(),
    st.one_of(st.none(), FORKS),
)
FITTING = st.tuples(
    st.integers(0, N_SEQ - 1), st.lists(st.integers(0, N_VOCAB - 1), min_size=1, max_size=5), st.booleans()
)
CALLS = st.one_of(
    st.tuples(st.just("run"), st.lists(SPANS, max_size=4)),
    st.tuples(st.just("go on"), st.lists(FITTING, max_size=4)),
    st.tuples(st.just("fork"), st.lists(FITTING, max_size=4), st.integers(-1, N_SEQ), st.integers(-1, 4)),
    st.tuples(st.just("fail"), st.lists(FITTING, max_size=4)),
    st.tuples(st.just("remove"), ANY, ANY),
    st.tuples(st.just("forget"), ANY),
    st.tuples(st.just("share"), ANY, ANY, ANY),
    st.tuples(st.just("share"), *[st.integers(0, N_SEQ - 1)] * 2, st.integers(1, 5)),
    st.tuples(st.just("save"), ANY),
    st.tuples(st.just("take out"), st.one_of(ANY, st.integers(0, N_SEQ - 1))),
    st.tuples(st.just("put back"), st.one_of(ANY, st.integers(0, N_SEQ - 1)), ANY),
    st.tuples(st.just("load"), ANY, ANY),
    st.tuples(st.just("logits"), ANY),
    st.tuples(st.just("close")),
)


def follow(lib: FakeLibrary, parts: Sequence[tuple[int, Sequence[int], bool]]) -> list[Span]:
    """Spans that follow what each sequence holds."""
    held = list(lib.held)
    spans = []
    for seq, ids, logits in parts:
        spans.append(Span(seq, held[seq], tuple(ids), logits))
        held[seq] += len(ids)
    return spans


def call(cache: LlamaCache, lib: FakeLibrary, name: str, *values: object) -> None:
    lib.code = 0
    match name, values:
        case "run", (spans,):
            cache.run(spans)  # type: ignore[arg-type]
        case "go on", (parts,):
            cache.run(follow(lib, parts))  # type: ignore[arg-type]
        case "fork", (parts, seq, shared):
            spans = follow(lib, parts)  # type: ignore[arg-type]
            cache.run([replace(span, fork=Fork(seq, shared, span.ids)) for span in spans[:1]] + spans[1:])  # type: ignore[arg-type]
        case "fail", (parts,):
            lib.code = 2
            cache.run(follow(lib, parts))  # type: ignore[arg-type]
        case "remove", (seq, length):
            cache.remove(seq, length)  # type: ignore[arg-type]
        case "forget", (seq,):
            cache.forget(seq)  # type: ignore[arg-type]
        case "share", (seq, source, length):
            cache.share(seq, source, length)  # type: ignore[arg-type]
        case "save", (seq,):
            cache.save(seq)  # type: ignore[arg-type]
        case "take out", (seq,):
            cache.size(seq)  # type: ignore[arg-type]
            cache.take_out(seq)  # type: ignore[arg-type]
        case "put back", (seq, length):
            cache.put_back(seq, length, SavedState(8))
            lib.held[seq] = length  # type: ignore[index]
        case "load", (seq, length):
            cache.load(seq, length, SavedState(8))
        case "logits", (rows,):
            cache.logits(rows)  # type: ignore[arg-type]
        case "close", ():
            cache.close()


@settings(max_examples=200, deadline=None)
@given(st.lists(CALLS, max_size=12), st.booleans())
def test_whatever_is_asked(calls: list[tuple[str, object]], refuses: bool):
    """Arbitrary calls in arbitrary order: EngineError, or numbers that the fake library finds within bounds."""
    cache, lib = made(refuses)
    for name, *values in calls:
        before = lib.calls
        try:
            call(cache, lib, name, *values)
        except EngineError:
            assert lib.calls - before <= (2 if lib.code or refuses else 0)


def test_what_fits_goes_through():
    """The checks stop nothing that is right: fill, cut, go on, read."""
    cache, lib = made()
    cache.run(
        [Span(0, 0, (1, 2, 3), logits=False), Span(2, 0, (N_VOCAB - 1,), logits=True), Span(0, 3, (0,), logits=True)]
    )
    assert lib.held == [4, 0, 1]
    assert cache.logits(2).shape == (2, N_VOCAB)
    assert cache.remove(0, 4)
    assert cache.remove(0, 2)
    cache.run([Span(0, 2, (5,) * ROWS, logits=False)])
    cache.run([Span(0, ROWS + 2, (5,) * (N_CTX - ROWS - 2), logits=False)])
    assert lib.held == [N_CTX, 0, 1]
    cache.load(0, 3, cache.save(0))
    cache.forget(2)
    assert lib.held == [3, 0, 0]
    cache.share(2, 0, 3)
    assert lib.held == [3, 0, 3]


@pytest.mark.parametrize(
    "spans",
    [
        [Span(N_SEQ, 0, (1,), logits=False)],
        [Span(-1, 0, (1,), logits=False)],
        [Span(0, 1, (1,), logits=False)],
        [Span(0, -1, (1,), logits=False)],
        [Span(0, 0, (), logits=False)],
        [Span(0, 0, (N_VOCAB,), logits=False)],
        [Span(0, 0, (-1,), logits=False)],
        [Span(0, 0, (2**40,), logits=False)],
        [Span(0, 0, (1,) * (ROWS + 1), logits=False)],
        [Span(0, 0, (1,) * (OUTPUTS + 1), logits=True)],
        [Span(0, 0, (1,), logits=False), Span(0, 0, (1,), logits=False)],
    ],
)
def test_decodes_that_never_happen(spans: list[Span]):
    """Each of these ends before llama.cpp, and the sequences are as before."""
    cache, lib = made()
    with pytest.raises(EngineError):
        cache.run(spans)
    assert (lib.calls, lib.held) == (0, [0] * N_SEQ)
    cache.run([Span(0, 0, (1,), logits=True)])


def test_nothing_after_the_end():
    """A cache that was closed hands no freed memory to llama.cpp."""
    cache, lib = made()
    cache.run([Span(0, 0, (1,), logits=True)])
    state = cache.save(0)
    cache.close()
    calls = lib.calls
    for use in (
        lambda: cache.run([Span(0, 1, (1,), logits=True)]),
        lambda: cache.remove(0, 0),
        lambda: cache.forget(0),
        lambda: cache.share(1, 0, 1),
        lambda: cache.save(0),
        lambda: cache.load(0, 1, state),
        lambda: cache.logits(0),
        lambda: cache.logits(1),
    ):
        with pytest.raises(EngineError, match="closed"):
            use()
    cache.close()
    assert lib.calls == calls


@pytest.mark.parametrize(
    "changes",
    [{"n_ctx": 0}, {"n_seq": 0}, {"rows": 0}, {"outputs": 0}, {"threads": 0}, {"snapshots": -1}, {"n_ctx": 2**31}],
)
def test_sizes_that_cannot_be(changes: dict[str, int]):
    """llama.cpp's counts have 32 bits and no sign; zero means something else to it."""
    with pytest.raises(ConfigError):
        CacheSizes(**{"n_ctx": 8, "n_seq": 2, "rows": 8, "outputs": 4, "threads": 1, "snapshots": 0, **changes})


def test_sequences_that_fork_are_in_one_span_of_a_decode():
    """llama.cpp compares what two sequences of one row held before the decode."""
    for spans in (
        [Span(0, 0, (1, 2), logits=True), Span(0, 2, (3,), logits=True, fork=Fork(1, 1, (4,)))],
        [Span(0, 2, (3,), logits=True, fork=Fork(1, 1, (4,))), Span(1, 4, (5,), logits=True)],
    ):
        cache, lib = made()
        cache.run([Span(1, 0, (1, 2), logits=True)])
        if spans[0].position:
            cache.run([Span(0, 0, (1, 2), logits=True)])
        held = list(lib.held)
        with pytest.raises(EngineError, match="fork into sequence 1"):
            cache.run(spans)
        assert lib.held == held


@pytest.mark.parametrize(
    "fork",
    [
        Fork(1, 1, ()),
        Fork(1, 0, (4,)),
        Fork(1, -1, (4,)),
        Fork(1, 3, (4,)),
        Fork(0, 1, (4,)),
        Fork(2, 1, (4,)),
        Fork(-1, 1, (4,)),
        Fork(N_SEQ, 1, (4,)),
        Fork(1, 1, (-1,)),
        Fork(1, 1, (N_VOCAB,)),
        Fork(1, 2, (4, 4)),
        Fork(1, 1, (4,) * ROWS),
    ],
)
def test_forks_out_of_bounds(fork: Fork):
    """Of no ids or ids that are none, from nowhere, into a sequence that is none or holds other cells, or beyond its
    end: refused, and the same step without its fault is run."""
    cache, lib = made()
    for at in range(0, N_CTX - 3, 3):
        for seq in (0, 1):
            cache.run([Span(seq, at, (1, 2, 3), logits=False)])
    held = list(lib.held)
    span = Span(0, N_CTX - 3, (4, 5), logits=True)
    with pytest.raises(EngineError):
        cache.run([replace(span, fork=fork)])
    assert lib.held == held
    cache.run([replace(span, fork=Fork(1, 2, (4,)))])
    assert lib.held[:2] == [N_CTX - 1, N_CTX]
