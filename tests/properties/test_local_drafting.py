"""Sessions with a draft model in the verifier's process: each text is that of the target alone.

The draft model is right wherever it has read the text as it is. So a draft that is rejected shows
that its sequence held something else.
"""

import random
from collections import Counter
from dataclasses import replace
from functools import lru_cache
from unittest.mock import Mock, patch

import pytest
from harness.crowd import Crowd

from specmesh.core.events import DraftStep
from specmesh.core.kv_orders import KVCut
from specmesh.core.prefix import Prefix
from specmesh.core.verifier.sources.local import LocalSource
from specmesh.core.verifier.unread_rows import UnreadRows
from specmesh.engines.base import Capabilities, LocalDrafter
from specmesh.engines.sim import _NEXT, _PRINTABLE, SimDrafter, SimSettings, SimVerifier, _hash
from specmesh.errors import EngineError

N_CTX = 128
SESSIONS = 4
KEPT_ROWS = 20
CAPABILITIES = Capabilities(batches=True, follows=True, kept_rows=KEPT_ROWS)


class DraftModel(SimDrafter):
    """A draft model.

    forgets: it cannot be cut to where it was, and is empty then.
    fails: the probability that a step fails.
    """

    def __init__(self, rng, *, forgets=0.0, fails=0.0, **settings):
        super().__init__(SimSettings(max_sessions=SESSIONS, **settings))
        self._rng = rng
        self._forgets = forgets
        self._fails = fails
        self.read = 0

    def carry_out(self, order):
        if isinstance(order, KVCut) and self._rng.random() < self._forgets:
            return super().carry_out(KVCut(order.seq, 0))
        return super().carry_out(order)

    def predict(self, asks):
        if self._rng.random() < self._fails:
            raise EngineError("the draft model is out of order")
        self.read += sum(len(ask.ids) for ask in asks)
        return super().predict(asks)


class Target(SimVerifier):
    """A target that keeps the ids of its newest rows, by sequence and position.

    rows: of the newest step of each sequence, and KEPT_ROWS before. steps: how many there were.
    """

    def __init__(self, **settings):
        super().__init__(SimSettings(n_ctx=N_CTX, n_batch=32, max_sessions=SESSIONS, **settings))
        self.rows = {seq: {} for seq in range(SESSIONS)}
        self.steps = 0

    def decode(self, spans):
        logits = super().decode(spans)
        self.steps += 1
        begins = {}
        for span in spans:
            begins.setdefault(span.seq, span.position)
            rows = self.rows[span.seq]
            rows.update(zip(range(span.position, span.end), span.ids, strict=True))
            oldest = begins[span.seq] - KEPT_ROWS
            self.rows[span.seq] = {
                place: token for place, token in rows.items() if oldest <= place < span.end
            }
        return logits


class Head(DraftModel):
    """A target's own head: the row of an id shows the next one, with that id.

    Its hidden states are those that the target keeps, and its own for drafts.
    restarts: how often a sequence began anew. read: ids that were read.
    """

    restarts = 0

    def __init__(self, rng, target, **settings):
        super().__init__(rng, n_ctx=N_CTX, n_batch=32, **settings)
        self.info = replace(self.info, capabilities=CAPABILITIES)
        self._target = target
        self._drafts = {}

    def carry_out(self, order):
        assert isinstance(order, KVCut)
        return super().carry_out(order)

    def predict(self, asks):
        return [self._predicted(ask) for ask in asks]

    def _predicted(self, ask):
        begin = self.sequences.held(ask.seq) + ask.shift
        end = begin + len(ask.ids)
        text = self._target.prefixes[ask.seq]
        rows = self._target.rows[ask.seq]
        own, place = self._drafts.pop(ask.seq, ((), None))
        if place == (self._target.steps, begin):  # it goes on after a draft of its own
            drafts = (*own, *ask.ids)
        else:
            self._check_rows(rows, begin, end, text)
            assert list(ask.ids[:-1]) == text[begin : end - 1]
            drafts = ask.ids[-1:]
            self.restarts += not self.sequences.held(ask.seq)
            self.read += len(ask.ids)
        self.sequences.lengths[ask.seq] += len(ask.ids)
        if ask.sampler is None:
            return None
        after = Prefix(text[: end - len(drafts)])
        after.extend(drafts)
        self._drafts[ask.seq] = (drafts, (self._target.steps, end))
        return _PRINTABLE[_hash(_NEXT, after.crc) % len(_PRINTABLE)]

    def _check_rows(self, rows, begin, end, text):
        """Fail if the target has no hidden states for the rows of the ids [begin, end)."""
        places = range(begin - 1, end - 1)
        assert {*places} <= rows.keys(), "the target has no such rows any more"
        assert [rows[place] for place in places] == text[begin - 1 : end - 1]


@lru_cache(4096)
def alone(prompt, most):
    """Return the text of a session that has the target to itself."""
    engine = SimVerifier(SimSettings(n_ctx=N_CTX))
    for token in prompt:
        following = engine.append(0, token)
    shown = []
    while len(shown) < min(most, N_CTX - len(prompt)):
        shown.append(following)
        following = engine.append(0, following)
    return tuple(shown)


def crowded(draft_n=(None, 0, 1, 4, 9), cells=0, reach=0, row_s=0.0, **model):
    """Have crowds come to targets with such a draft model; return the counts of what happened."""
    seen = Counter()
    for seed in range(6):
        rng = random.Random(seed)
        target = SimVerifier(
            SimSettings(n_ctx=N_CTX, n_batch=32, max_sessions=SESSIONS, cells=cells, reach=reach)
        )
        drafter = DraftModel(
            rng, **{"n_ctx": N_CTX, "n_batch": 32, "alpha": 1.0, "reach": reach, **model}
        )
        crowd = Crowd(target, rng, cells, 0, LocalDrafter(drafter, drafter))
        crowd.draft_n = draft_n
        crowd.row_s = row_s
        crowd.crowd()
        if not reach:
            crowd.check(alone)
        seen += crowd.seen
        seen["read"] += drafter.read
    return seen


def test_each_draft_follows_the_text_as_it_is():
    seen = crowded()
    assert seen["drafted"] > 1000
    assert seen["accepted"] == seen["drafted"]


def test_text_of_a_session_that_was_set_back():
    seen = crowded(cells=N_CTX + 8)
    assert seen["session_set_back"]
    assert seen["accepted"] == seen["drafted"]


def test_probes_after_a_while_without_drafts_follow_the_text_as_it_is():
    """Where rows are dear drafts do not pay. Some are made to see whether they do, and compared."""
    rng = random.Random(0)
    target = Target()
    drafter = DraftModel(rng, n_ctx=N_CTX, n_batch=32, alpha=1.0)
    crowd = Crowd(target, rng, 0, 0, LocalDrafter(drafter, drafter))
    crowd.row_s = 0.1
    for _ in range(8):
        crowd.crowd()
    assert crowd.seen["DraftStep"] > 20
    assert crowd.seen["drafted"] < 100
    assert crowd.local.estimates.acceptance.pooled() > 0.9


def test_drafts_that_are_mostly_wrong():
    seen = crowded(alpha=0.3)
    assert 0 < seen["accepted"] < seen["drafted"]


def test_model_that_forgets_reads_again():
    seen = crowded(alpha=0.8, forgets=0.5)
    assert seen["accepted"]


def test_failed_step_ends_no_text():
    assert crowded(fails=0.05)["drafting_failed"]


def test_session_whose_drafting_failed_is_drafted_for_no_more():
    """Steps without it, while its client pauses, change nothing."""
    rng = random.Random(0)
    drafter = DraftModel(rng, n_ctx=N_CTX, n_batch=32, alpha=1.0, fails=0.3)
    crowd = Crowd(Target(), rng, 0, 0, LocalDrafter(drafter, drafter))
    crowd.crowd(acts=300)
    assert len(crowd.failed) == len({*crowd.failed}) > 0


@pytest.mark.parametrize("cells", [0, N_CTX + 8])
def test_head_follows_each_step_of_the_target(cells):
    seen = Counter()
    for seed in range(8):
        rng = random.Random(seed)
        target = Target(cells=cells)
        head = Head(rng, target)
        crowd = Crowd(target, rng, cells, 0, LocalDrafter(head, head))
        crowd.draft_n = (None, 0, 1, 4, 9)
        crowd.crowd()
        crowd.check(alone)
        seen += crowd.seen
    assert seen["drafted"] > 1000
    assert seen["accepted"] == seen["drafted"]


def test_head_reads_little_of_texts_that_it_drafts_nothing_for():
    """Rows that the target no longer has are never read: then the sequence begins anew."""
    rng = random.Random(0)
    target = Target()
    head = Head(rng, target)
    crowd = Crowd(target, rng, 0, 0, LocalDrafter(head, head))
    crowd.row_s = 0.1
    crowd.draft_s = 5e-3
    crowd.calibrate()
    for _ in range(20):
        crowd.ask(tuple(rng.choices(range(32, 120), k=40)), 80)
        crowd.finish()
    assert head.restarts > 1
    assert head.read < 0.4 * 20 * 80


@pytest.mark.parametrize("kind", [DraftModel, Head])
def test_nothing_runs_for_texts_that_want_none_of_its_drafts(kind):
    """Neither does anything for those that want no drafts at all."""
    rng = random.Random(0)
    target = Target()
    model = Head(rng, target) if kind is Head else DraftModel(rng, n_ctx=N_CTX, n_batch=32)
    crowd = Crowd(target, rng, 0, 0, LocalDrafter(model, model))
    crowd.draft_n = (None, 0, 4)
    crowd.draft_sources = (("suffix", "remote"), ())
    crowd.crowd()
    crowd.check(alone)
    assert crowd.seen["DraftStep"] == 0


def test_head_follows_only_texts_that_want_its_drafts():
    """Others share the steps, and leave it their sequences with ids that it has not read."""
    rng = random.Random(0)
    target = Target()
    head = Head(rng, target)
    crowd = Crowd(target, rng, 0, 0, LocalDrafter(head, head))
    crowd.draft_sources = (("suffix",), (crowd.local.name,))
    for _ in range(4):
        crowd.crowd()
    crowd.check(alone)
    assert crowd.seen["drafted"] > 500
    assert crowd.seen["accepted"] == crowd.seen["drafted"]


@pytest.mark.parametrize("n_batch", [4, 9])
def test_long_prompt_is_read_in_portions(n_batch):
    seen = crowded(n_batch=n_batch)
    assert seen["accepted"] == seen["drafted"] > 0


@pytest.mark.parametrize("n_ctx", [8, 24, 60])
def test_text_longer_than_the_context_of_the_model_is_read_by_windows(n_ctx):
    """Where a token depends on few ids before it, drafts after a window are right."""
    seen = crowded(n_ctx=n_ctx, reach=3)
    assert seen["drafted"] > 500
    assert seen["accepted"] > 0.9 * seen["drafted"]


def test_ids_are_read_once():
    """A text in which all drafts are right is read as often as it has ids."""
    rng = random.Random(0)
    target = SimVerifier(SimSettings(n_ctx=N_CTX, n_batch=32, max_sessions=1))
    drafter = DraftModel(rng, n_ctx=N_CTX, n_batch=32, alpha=1.0)
    crowd = Crowd(target, rng, 0, 0, LocalDrafter(drafter, drafter))
    crowd.ask(tuple(range(40, 80)), 60, draft_n=4)
    crowd.finish()
    assert drafter.read <= 40 + 60


def test_nothing_is_kept_of_ended_texts():
    """The rows of steps are noted for a head only."""
    rng = random.Random(0)
    target = SimVerifier(SimSettings(n_ctx=N_CTX, n_batch=32, max_sessions=SESSIONS))
    model = DraftModel(rng, n_ctx=N_CTX, n_batch=32)
    crowd = Crowd(target, rng, 0, 0, LocalDrafter(model, model))
    noted = Mock(wraps=UnreadRows.note, autospec=True)
    with patch.object(UnreadRows, "note", noted):
        crowd.crowd()
    noted.assert_not_called()


@pytest.mark.parametrize("users", [1, 4])
def test_drafts_of_a_head_are_all_of_use(users):
    """Each chain goes on where the text and the chain end, whatever was left of one before."""
    rng = random.Random(0)
    target = Target()
    head = Head(rng, target)
    crowd = Crowd(target, rng, 0, 0, LocalDrafter(head, head))
    crowd.row_s = 2e-3
    crowd.calibrate()
    places = Counter()
    take = LocalSource.take

    def noted(source, base, tokens):
        places[base - len(source._prefix) - len(source.tokens)] += 1
        take(source, base, tokens)

    with patch.object(LocalSource, "take", noted):
        for _ in range(24 // users):
            for _ in range(users):
                crowd.ask(tuple(rng.choices(range(32, 120), k=40)), 80)
            crowd.finish()
    assert places.keys() == {0}


def test_end_of_a_text_does_not_end_drafts_of_the_next_one():
    """There is no room for drafts before the last id, however well they pay."""
    rng = random.Random(0)
    target = SimVerifier(SimSettings(n_ctx=N_CTX, n_batch=32, max_sessions=SESSIONS))
    model = DraftModel(rng, n_ctx=N_CTX, n_batch=32, alpha=0.65)
    crowd = Crowd(target, rng, 0, 0, LocalDrafter(model, model))
    crowd.row_s = 4e-4
    crowd.calibrate()
    for _ in range(24):
        crowd.ask(tuple(rng.choices(range(32, 120), k=40)), 8)
        crowd.finish()
    drafted = [report["drafted"] > 0 for report in crowd.reports.values()]
    assert all(drafted[9:])  # before it is measured what drafts cost


# --- the time


HELD_UP_S = 0.5


class HeldUpCrowd(Crowd):
    """One of the first steps with drafts takes as long as a hundred others."""

    held_up = 0  # its number

    def seconds(self, step):
        seconds = super().seconds(step)
        if isinstance(step, DraftStep) and any(row.draft_n for row in step.rows):
            self.held_up -= 1
            if self.held_up == 0:
                return seconds + HELD_UP_S
        return seconds


def seconds_of(users, draft_n=None, drafts=True, **costs):
    """Return the seconds in which so many users at once have their texts."""
    rng = random.Random(0)
    target = SimVerifier(SimSettings(max_sessions=SESSIONS))
    model = DraftModel(rng, alpha=costs.pop("alpha"))
    crowd = HeldUpCrowd(target, rng, 0, 0, LocalDrafter(model, model) if drafts else None)
    crowd.pause_s = 1e-4
    for name, seconds in costs.items():
        setattr(crowd, name, seconds)
    crowd.calibrate()
    for _ in range(12 // users):
        for _ in range(users):
            crowd.ask(tuple(rng.choices(range(32, 120), k=40)), 150, draft_n)
        crowd.finish()
    return crowd.now


PAYS = {"row_s": 4e-4, "draft_s": 5e-4, "alpha": 0.8}
DEAR_DRAFTS = {"row_s": 4e-4, "draft_s": 4e-3, "alpha": 0.6}
DEAR_ROWS = {"row_s": 3e-3, "draft_s": 5e-4, "alpha": 0.6}
WRONG = {"row_s": 1e-3, "draft_s": 1e-3, "alpha": 0.1}


@pytest.mark.parametrize("users", [1, 4])
@pytest.mark.parametrize("costs", [PAYS, DEAR_DRAFTS, DEAR_ROWS, WRONG])
def test_never_slower_than_without(users, costs):
    assert seconds_of(users, **costs) < seconds_of(users, drafts=False, **costs) / 0.98


def test_about_as_fast_as_the_best_constant_number():
    best = min(seconds_of(1, number, **PAYS) for number in range(1, 9))
    assert seconds_of(1, **PAYS) < best / 0.95


@pytest.mark.parametrize("number", [1, 2, 3, 5])
def test_a_step_that_was_held_up_does_not_end_drafting(number):
    """A GPU loads kernels with its first steps, and a host has other work at times."""
    assert seconds_of(1, **PAYS, held_up=number) < HELD_UP_S + seconds_of(1, **PAYS) / 0.95


def test_drafts_for_several_texts_at_once_are_not_weighed_beside_a_drafter():
    """Even if those of the step before, for one text, were."""
    rng = random.Random(0)
    target = SimVerifier(SimSettings(max_sessions=SESSIONS))
    model = DraftModel(rng, alpha=0.8)
    crowd = Crowd(target, rng, 0, 0, LocalDrafter(model, model))
    for _ in range(2):
        crowd.ask(tuple(rng.choices(range(32, 120), k=10)), 60)
    while crowd.seen["drafted"] < 20:
        crowd.turn()
    for session in crowd.core.sessions():
        session.local.beside = True
    for _ in range(4):
        crowd.turn()
    assert [session.local.beside for session in crowd.core.sessions()] == [False, False]
