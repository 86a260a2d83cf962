"""Every beginning that a target says it can reuse is as good as one that was read anew.

Sequences grow in turns and together, drafts are rejected, texts part, are copied, saved and moved
away, until the memory is nearly full; rows are compared with those of a sequence that read the same
ids alone.
"""

from contextlib import closing
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from harness import engine_contract as contract
from harness.engine_contract import N_SEQ, span

from specmesh.core.kv_orders import KVCopy, KVCut, KVDrop, KVNarrow, KVOffload, KVSave
from specmesh.core.kv_windows import WindowRoom
from specmesh.engines.llama import windows
from specmesh.engines.llama.cache import LlamaCache
from specmesh.engines.llama.engine import LlamaVerifier
from specmesh.engines.llama.library import library
from specmesh.errors import LocalProtocolError

pytestmark = pytest.mark.models

LENGTH = 200
"""Ids of a text: several windows of the tiny model that has them."""

DRAFTS = 6
STEPS = 250
CHECKED = 0.2  # share of the rows that are compared
NOISE = 0.05
"""Share of the logits' spread by which kernels of different width may differ."""

MLX = ("mlx-llama", "mlx-llama-reproducible", "mlx-sliding", "mlx-hybrid")
KINDS = ("gemma3", "gemma3-narrow", "gemma3-reproducible", "lfm2", "qwen35", "mamba", *MLX)
TWICE = [kind for kind in KINDS if not kind.startswith("mlx")] + ["mlx-hybrid"]
"""Kinds of which two histories are tried: MLX takes ten times as long, so one with states."""

NATIVE = ("lfm2", "qwen35")
"""Models whose rejected rows llama.cpp takes back itself."""


@pytest.fixture(scope="module")
def patches():
    with pytest.MonkeyPatch.context() as patch:
        yield patch


def opened_by_mlx(kind, make_hf):
    from specmesh.engines.mlx.verifier import MlxVerifier  # noqa: PLC0415 - it imports MLX

    name = kind.removeprefix("mlx-").partition("-")[0]
    folder = make_hf(f"prefixes-{name}", name)
    settings = contract.settings("mlx", folder, ctx=LENGTH + 8)
    changed = replace(settings, reproducible=kind.endswith("reproducible"))
    return MlxVerifier(changed, n_batch=64, max_draft=DRAFTS)


@pytest.fixture(scope="module")
def opened(make_gguf, patches, request):
    """Return a function that opens a target of a kind, with little more room than N_SEQ texts."""
    engines = []
    patches.setattr(windows, "LEAST_CELLS", 0)

    def open_one(kind, **changes):
        if kind in MLX:
            engines.append(opened_by_mlx(kind, request.getfixturevalue("make_hf")))
            return engines[-1]
        arch, _, way = kind.partition("-")
        path = make_gguf(f"prefixes-{arch}", arch=arch)
        settings = contract.settings("llama", path, threads=1, ctx=LENGTH + 8)
        changed = {"reproducible": way == "reproducible", "swa_full": way != "narrow"} | changes
        engine = LlamaVerifier(replace(settings, **changed), n_batch=64, max_draft=DRAFTS)
        engines.append(engine)
        return engine

    yield open_one
    for engine in engines:
        engine.close()


class Sequences:
    """The texts of an engine's sequences, of which each holds a beginning.

    saved: lengths of checkpoints, by sequence. rejections: steps that had drafts taken back.
    """

    def __init__(self, engine, seed):
        self.engine = engine
        self.random = np.random.default_rng(seed)
        self.texts = [self.new_ids(LENGTH) for _ in range(N_SEQ)]
        self.held = [0] * N_SEQ
        self.saved = [[] for _ in range(N_SEQ)]
        self.windows = WindowRoom(engine.info.capabilities.windows)
        self.away = set()
        self.seen = []
        self.rejections = 0

    def new_ids(self, count):
        return self.random.integers(40, 120, count).tolist()

    def order(self, order):
        held = self.engine.carry_out(order)
        assert held == self.held[order.seq]

    def part_at(self, seq, length, source=None):
        """Have a text go on with other ids after a length."""
        text = self.texts[seq if source is None else source]
        self.texts[seq] = text[:length] + self.new_ids(LENGTH - length)
        self.held[seq] = length

    # --- steps

    def step(self):
        """Read on in some sequences, with right and wrong drafts or as in a prompt."""
        spans, kept = [], {}
        for seq in self.random.permutation(N_SEQ)[: self.random.integers(1, N_SEQ + 1)].tolist():
            at = self.held[seq]
            left = LENGTH - at - DRAFTS - 1
            if left <= 0:
                continue
            if self.random.random() < 0.3:
                count = int(self.random.integers(1, min(left, 18) + 1))
                ids = self.texts[seq][at : at + count]
                spans.append(span(seq, at, ids, logits=False))
                kept[seq] = count
                continue
            good, wrong = self.random.integers(0, DRAFTS // 2 + 1, 2).tolist()
            if self.engine.info.capabilities.width is not None:
                good = min(good, 1)
                wrong = min(wrong, 2)
            drafts = self.texts[seq][at + 1 : at + 1 + good] + self.new_ids(wrong)
            spans.append(span(seq, at, [self.texts[seq][at], *drafts]))
            kept[seq] = good + 1
        if spans:
            self._run(spans, kept)

    def make_room(self, rows, woken=frozenset()):
        """Have sequences lose cells of windows, as the daemon's core does."""
        if not self.windows.limited:
            return
        held = {seq: self.held[seq] for seq in range(N_SEQ) if seq not in self.away}
        for narrowed in self.windows.make_room(held, rows):
            seq = narrowed.seq
            place = self.held[seq] - 10
            if self.windows.loses(narrowed, place) and place > 0 and seq not in woken:
                self.engine.carry_out(KVSave(seq, place))
                self.saved[seq].append(place)
            self.engine.carry_out(KVNarrow(seq, narrowed.begin))

    def _run(self, spans, kept):
        woken = self.away & set(kept)
        self.away -= woken
        self.make_room(sum(len(part.ids) for part in spans), woken)
        for part, rows in zip(spans, self.engine.decode(spans), strict=True):
            count = kept[part.seq]
            if rows is not None and self.random.random() < CHECKED:
                row = int(self.random.integers(0, count))
                end = part.position + row + 1
                self.seen.append((self.texts[part.seq][:end], rows[row].copy()))
            self.held[part.seq] += count
        for part in spans:
            if kept[part.seq] < len(part.ids):
                self.rejections += 1
                self.order(KVCut(part.seq, self.held[part.seq]))

    # --- what another text may begin with

    def reuse(self):
        capabilities = self.engine.info.capabilities
        seq = int(self.random.integers(0, N_SEQ))
        if not self.held[seq]:
            return
        if capabilities.reuse == "whole":
            self._reuse_saved(seq)
        else:
            self._reuse_any(seq)

    def _reuse_any(self, seq):
        length = int(self.random.integers(1, self.held[seq] + 1))
        if self.saved[seq] and self.random.random() < 0.5:
            length = int(self.random.choice(self.saved[seq]))
        if length not in self.saved[seq] and not self.windows.reaches(seq, length):
            return
        other = (seq + 1) % N_SEQ
        match int(self.random.integers(0, 8)):
            case 0:
                self.part_at(seq, length)
                self.windows.restore(seq, length)
                self.make_room(0)
                self.order(KVCut(seq, length))
                self.saved[seq] = [held for held in self.saved[seq] if held <= length]
            case 1 if self.engine.info.capabilities.reuse == "copied":
                self.engine.carry_out(KVCut(other, 0))
                self.part_at(other, length, seq)
                self.windows.empty(other)
                self.windows.copy(other, length)
                self.make_room(0)
                self.order(KVCopy(other, seq, length))
                self.saved[other] = [held for held in self.saved[seq] if held <= length]
                self.away.discard(other)
            case 2:
                self.order(KVOffload(seq))
                if self.engine.info.capabilities.offloads:
                    self.away.add(seq)

    def _reuse_saved(self, seq):
        saved = self.saved[seq]
        other = (seq + 1) % N_SEQ
        choice = int(self.random.integers(0, 10))
        if choice < 2:
            self.order(KVSave(seq, self.held[seq]))
            saved.append(self.held[seq])
        elif saved and choice == 2:
            length = int(self.random.choice(saved))
            self.part_at(seq, length)
            self.order(KVCut(seq, length))
            self.saved[seq] = [held for held in saved if held <= length]
        elif saved and choice == 3:
            length = int(self.random.choice(saved))
            self.engine.carry_out(KVCut(other, 0))
            self.part_at(other, length, seq)
            self.order(KVCopy(other, seq, length))
            self.saved[other] = [held for held in saved if held <= length]
        elif saved and choice == 4:
            length = int(self.random.choice(saved))
            self.order(KVDrop(seq, length))
            self.saved[seq] = [held for held in saved if held != length]

    def run(self, *, reusing=True):
        for _ in range(STEPS):
            self.step()
            if reusing:
                self.reuse()
            if self.random.random() < 0.02:
                seq = int(self.random.integers(0, N_SEQ))
                self.saved[seq] = []
                self.windows.empty(seq)
                self.away.discard(seq)
                self.part_at(seq, 0)
                self.order(KVCut(seq, 0))
        return self


def worst_difference(seen, reference):
    """Return the largest difference to rows that were read anew, as a share of their spread."""
    worst = 0.0
    for ids, found in seen:
        reference.carry_out(KVCut(0, 0))
        last = len(ids) - 1
        for at in range(0, last, 32):
            reference.decode([span(0, at, ids[at : min(at + 32, last)], logits=False)])
        [rows] = reference.decode([span(0, last, ids[last:])])
        spread = float(rows[0].max() - rows[0].mean())
        worst = max(worst, float(np.abs(rows[0] - found).max()) / spread)
    return worst


@pytest.mark.parametrize(("kind", "seed"), [*product(KINDS, [1]), *product(TWICE, [2])])
def test_what_is_reused_is_as_good_as_new(opened, kind, seed):
    texts = Sequences(opened(kind), seed).run()
    assert worst_difference(texts.seen, opened(kind)) < NOISE


@pytest.mark.parametrize("kind", ["gemma3", "gemma3-narrow", "lfm2", "qwen35"])
def test_a_step_that_llama_cpp_takes_in_turns(opened, kind, monkeypatch):
    """It has more rows than llama.cpp computes at once: cells leave their windows within it."""
    reference = opened(kind)
    lib = library()
    begin = lib.llama_init_from_model

    def with_small_turns(model, params):
        params.n_ubatch = 10
        return begin(model, params)

    monkeypatch.setattr(lib, "llama_init_from_model", with_small_turns)
    texts = Sequences(opened(kind), 2).run()
    assert worst_difference(texts.seen, reference) < NOISE


def test_without_the_keeper_cells_are_lost(opened, monkeypatch):
    """The guard is needed, and the comparison finds what it prevents."""
    monkeypatch.setattr(windows.WindowCache, "_share_with_keeper", lambda *_: None)
    texts = Sequences(opened("gemma3"), 1).run()
    assert worst_difference(texts.seen, opened("gemma3")) > NOISE


@pytest.mark.parametrize("kind", NATIVE)
def test_rejections_copy_no_state(opened, kind, monkeypatch):
    engine = opened(kind)
    texts = Sequences(engine, 3)
    copies = []
    for name in ("save", "load"):
        monkeypatch.setattr(LlamaCache, name, lambda *_, name=name: copies.append(name))
    texts.run(reusing=False)
    assert texts.rejections > 50
    assert not copies


@pytest.mark.parametrize("kind", NATIVE)
def test_the_first_row_of_a_step_is_not_taken_back_natively(opened, kind):
    """llama.cpp would say that it did, and go on from a wrong state."""
    engine = opened(kind)
    ids = contract.text_ids(30)
    engine.decode([span(0, 0, ids[:12], logits=False)])
    engine.carry_out(KVSave(0, 12))
    engine.decode([span(0, 12, [*ids[12:15], 90])])
    assert engine.carry_out(KVCut(0, 12)) == 12
    [rows] = engine.decode([span(0, 12, ids[12:13])])
    assert worst_difference([(ids[:13], rows[0].copy())], opened(kind)) < NOISE


@pytest.mark.parametrize("kind", ["lfm2", "gemma3"])
def test_a_state_of_another_length_is_not_saved(opened, kind):
    engine = opened(kind)
    engine.decode([span(0, 0, contract.text_ids(8), logits=False)])
    with pytest.raises(LocalProtocolError, match="cannot be saved"):
        engine.carry_out(KVSave(0, 9))


def test_dropped_states_take_no_memory(make_gguf):
    path = make_gguf("prefixes-mamba", arch="mamba")
    with closing(LlamaVerifier(contract.settings("llama", path, threads=1))) as engine:
        engine.decode([span(0, 0, contract.text_ids(8), logits=False)])
        engine.carry_out(KVSave(0, 8))
        taken = engine.offloaded_bytes
        engine.carry_out(KVDrop(0, 8))
        assert taken > engine.offloaded_bytes == 0
