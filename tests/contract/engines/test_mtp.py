"""Promises of a target's own head: its drafts are a function of the text, however it was read."""

import random
from dataclasses import replace

import numpy as np
import pytest
from harness import nextn
from harness.crowd import Crowd
from harness.engine_contract import GREEDY, SAMPLED, span

from specmesh.config import KVCacheSize, ModelSettings
from specmesh.core.events import Span
from specmesh.core.kv_orders import KVCopy, KVCut
from specmesh.core.prefix import common_length
from specmesh.core.sampling.sampler import Sampler, SamplingParams
from specmesh.engines.base import Ask, LocalDrafter
from specmesh.engines.llama.engine import LlamaVerifier
from specmesh.errors import LocalProtocolError
from specmesh.paths import bundled

pytestmark = pytest.mark.models

N_CTX = 256
LENGTH = 40
MOST = 4
TINY = {
    "mimo2": {"nextn": 1},
    "mimo2-chained": {"nextn": 2},
    "step35": {"nextn": 3},
    "qwen35": {"nextn": 1},
    "glm4moe": {"nextn": 1, "experts": 4},
}
FIRST = 0.1
"""Share of first drafts, at least, that a target accepts; one of 320 is, by chance."""


def opened(path, **changes):
    settings = ModelSettings(
        engine="llama", model=str(path), ctx=N_CTX, max_sessions=3, threads=1, mtp=True
    )
    return LlamaVerifier(replace(settings, **changes))


@pytest.fixture(scope="module", params=TINY)
def engine(request, make_nextn):
    arch = request.param.partition("-")[0]
    path = make_nextn(f"tiny-{request.param}", arch=arch, seed=3, **TINY[request.param])
    target = opened(path)
    yield target
    target.close()


@pytest.fixture(autouse=True)
def _empty_sequences(request):
    for name in {"engine", "trained"} & set(request.fixturenames):
        target = request.getfixturevalue(name)
        for seq in range(3):
            empty(target, seq)


def empty(target, seq):
    target.carry_out(KVCut(seq, 0))
    target.head.carry_out(KVCut(seq, 0))


def prompt(seed=0, length=12):
    random = np.random.default_rng(seed)
    return random.integers(33, 126, length).tolist()


def read(target, seq, ids, held=0):
    """Let a target and its head read ids; return the target's choice of the next one."""
    rows = verify(target, seq, held, ids)
    target.head.predict([Ask(seq, tuple(ids), None)])
    return rows[-1]


def verify(target, seq, position, ids):
    """Run a step of the target; return its choices."""
    [rows] = target.decode([span(seq, position, ids)])
    return rows.argmax(-1).tolist()


def draft(target, seq, ids, most=MOST, sampler=GREEDY, shift=0):
    """Return at most `most` drafts after new ids of a sequence."""
    drafts = []
    new = tuple(ids)
    while len(drafts) < most:
        [token] = target.head.predict([Ask(seq, new, sampler, shift)])
        if token is None:
            break
        drafts.append(token)
        new = (token,)
    return drafts


def anew(target, seq, text, most=MOST):
    """Return the drafts after a text whose last id the target has not read, from the beginning."""
    empty(target, seq)
    read(target, seq, text[:-1])
    return draft(target, seq, text[-1:], most)


def generated(target, ids, n, keeps):
    """Generate by drafts; return the text, and for each step its prefix, drafts and acceptance.

    keeps: "text": after a step the head's rows behind the text are cut. "row": so are those of
    drafts. "all": nothing is cut that is right.
    """
    text = [*ids, read(target, 0, ids)]
    held = len(ids)
    steps = []
    while len(text) < len(ids) + LENGTH:
        drafts = draft(target, 0, text[held:], n)
        end = len(text)
        choices = verify(target, 0, end - 1, [text[-1], *drafts])
        accepted = 0
        while accepted < len(drafts) and drafts[accepted] == choices[accepted]:
            accepted += 1
        steps.append((text[:], drafts, accepted))
        text += choices[: accepted + 1]
        target.carry_out(KVCut(0, end + accepted))
        held = end + len(drafts)
        if len(drafts) == n > 0:
            held -= 1  # the last one was not appended
        if keeps == "row":
            held = target.head.carry_out(KVCut(0, end))
        elif keeps == "text" or held > end + accepted:
            held = target.head.carry_out(KVCut(0, min(held, end + accepted)))
    return text, steps


@pytest.mark.parametrize("keeps", ["text", "row", "all"])
@pytest.mark.parametrize("n", [1, 3])
def test_drafts_are_those_of_a_text_read_at_once(engine, n, keeps):
    """Rows of the head's own hidden states are made again from the target's."""
    _, steps = generated(engine, prompt(), n, keeps)
    expected = [anew(engine, 1, text, n) for text, _, _ in steps]
    assert [drafts for _, drafts, _ in steps] == expected


@pytest.mark.parametrize("n", [0, 2, 4])
def test_text_is_the_targets(engine, n):
    ids = prompt(1)
    plain = [*ids, read(engine, 2, ids)]
    while len(plain) < len(ids) + LENGTH:
        plain += verify(engine, 2, len(plain) - 1, plain[-1:])
    text, _ = generated(engine, ids, n, "text")
    assert text[: len(plain)] == plain


def test_first_drafts_are_accepted(engine):
    """A hidden state of another position, or after the norm, leaves next to nothing of this."""
    right = []
    for seed in range(4):
        _, steps = generated(engine, prompt(seed), 1, "text")
        right += [accepted for _, _, accepted in steps]
        empty(engine, 0)
    assert np.mean(right) >= FIRST


def test_several_sequences_draft_at_once(engine):
    texts = [[*prompt(seed), 40 + seed] for seed in range(3)]
    expected = [anew(engine, 0, text, 1) for text in texts]
    empty(engine, 0)
    for seq, text in enumerate(texts):
        read(engine, seq, text[:-1])
    asks = [Ask(seq, tuple(text[-1:]), GREEDY) for seq, text in enumerate(texts)]
    assert [[token] for token in engine.head.predict(asks)] == expected


def test_steps_of_several_sequences(engine):
    """The target's rows of one step belong to several sequences."""
    texts = [[*prompt(seed), 40 + seed] for seed in range(3)]
    expected = [anew(engine, 0, text) for text in texts]
    empty(engine, 0)
    engine.decode([Span(seq, 0, tuple(text[:-1]), True) for seq, text in enumerate(texts)])
    engine.head.predict([Ask(seq, tuple(text[:-1]), None) for seq, text in enumerate(texts)])
    assert [draft(engine, seq, text[-1:]) for seq, text in enumerate(texts)] == expected


@pytest.mark.parametrize("engine", [name for name in TINY if name != "qwen35"], indirect=True)
def test_a_copy_drafts_as_its_source(engine):
    """Sequences of a recurrent target share no ids."""
    text = [*prompt(2, 30), 50]
    expected = anew(engine, 0, text)
    engine.head.carry_out(KVCut(0, len(text) - 1))
    engine.carry_out(KVCopy(1, 0, 20))
    engine.head.carry_out(KVCopy(1, 0, 20))
    verify(engine, 1, 20, text[20:-1])
    engine.head.predict([Ask(1, tuple(text[20:-1]), None)])
    assert draft(engine, 1, text[-1:])[:1] == expected[:1]


def test_an_empty_sequence_reads_the_rows_of_several_steps(engine):
    """The first row of a text comes with the second one: no id is before it."""
    text = [*prompt(3, 40), 51]
    expected = anew(engine, 1, text)
    verify(engine, 0, 0, text[:20])
    verify(engine, 0, 20, text[20:-1])
    engine.head.predict([Ask(0, tuple(text[1:-1]), None, shift=1)])
    assert draft(engine, 0, text[-1:], shift=1) == expected


def test_a_sequence_that_begins_late_is_cut_as_any(engine):
    text = prompt(3, 210)
    for start in range(0, 210, 30):
        verify(engine, 0, start, text[start : start + 30])
    engine.head.predict([Ask(0, tuple(text[181:]), None, shift=181)])
    draft(engine, 0, [40], shift=181)
    assert engine.head.carry_out(KVCut(0, 29)) == 29


def test_the_row_of_the_first_id_is_there_without_being_asked_for(engine):
    text = [*prompt(4), 52]
    expected = anew(engine, 0, text)
    empty(engine, 0)
    verify(engine, 0, 0, text[:-1])
    [first] = engine.head.predict([Ask(0, tuple(text[1:]), GREEDY, shift=1)])
    assert first == expected[0]


def test_without_hidden_states_there_are_no_drafts(engine):
    engine.head.predict([Ask(0, tuple(prompt()), None)])
    assert draft(engine, 0, [60]) == []


def test_hidden_states_of_ids_that_were_taken_back_are_not_used(engine):
    """The target is cut only before its next step, as a daemon does it."""
    text = [*prompt(5), 53]
    other = [*text, 54, 55]
    expected = anew(engine, 1, [*other, 56])
    read(engine, 0, text[:-1])
    verify(engine, 0, len(text) - 1, [53, 70, 71, 72])
    engine.carry_out(KVCut(0, len(text)))
    verify(engine, 0, len(text), [54, 55])
    engine.head.predict([Ask(0, (53, 54, 55), None)])
    assert draft(engine, 0, [56]) == expected


def test_drafts_go_on_where_hidden_states_are_of_other_ids(engine):
    """A draft was rejected, and the next one is drafted before the target has been cut."""
    text = [*prompt(6), 53]
    expected = anew(engine, 1, [*text, 54])
    read(engine, 0, text[:-1])
    verify(engine, 0, len(text) - 1, [53, 70, expected[0], 72])
    assert draft(engine, 0, [53, 54]) == expected


def test_sampled_drafts_see_the_position_of_the_draft(engine):
    positions = []

    class Watched(Sampler):
        def choose(self, logits, position):
            positions.append(position)
            return super().choose(logits, position)

    text = [*prompt(7), 57]
    read(engine, 0, text[:-1])
    draft(engine, 0, text[-1:], 2, Watched(SamplingParams(temperature=1.0, seed=1)))
    assert positions[:2] == [len(text), len(text) + 1]


def test_coupled_drafts_are_a_function_of_the_text(engine):
    text = [*prompt(8), 58]
    read(engine, 0, text[:-1])
    first = draft(engine, 0, text[-1:], sampler=SAMPLED)
    empty(engine, 0)
    read(engine, 0, text[:-1])
    assert draft(engine, 0, text[-1:], sampler=SAMPLED) == first


def test_a_cut_far_back(engine):
    text = [*prompt(9, 50), 59]
    expected = anew(engine, 1, [*text[:20], 61])
    read(engine, 0, text)
    engine.carry_out(KVCut(0, 10))
    engine.head.carry_out(KVCut(0, 10))
    held = engine.carry_out(KVCut(0, 10))
    read(engine, 0, text[:20][held:], held)
    assert draft(engine, 0, [61])[: len(expected)] == expected or held == 0


@pytest.mark.parametrize(("seq", "ids"), [(9, (1,)), (0, (-1,)), (0, (10**6,)), (0, ())])
def test_bad_ids(engine, seq, ids):
    with pytest.raises(LocalProtocolError):
        engine.head.predict([Ask(seq, ids, GREEDY)])


def test_other_sequences_make_room(make_nextn):
    """Cells of the head are a cache: a sequence that is asked takes those of others."""
    path = make_nextn("tiny-mimo2", arch="mimo2", seed=3, nextn=1)
    target = opened(path, ctx=64, kv_cache=KVCacheSize(text="64", cells=64))
    text = [*prompt(1, 50), 7]
    expected = anew(target, 1, text)
    empty(target, 1)
    read(target, 0, prompt(0, 50))
    target.carry_out(KVCut(0, 0))
    found = anew(target, 1, text)
    target.close()
    assert found == expected


# --- through the verifier's core


def counts_alone(target, ids, text, n):
    """Return the drafts that the head has for a text, and those that are right.

    After each step the next n drafts come, as far as LENGTH leaves room for them and a bonus token.
    The first token comes without any.
    """
    whole = [*ids, *text]
    end = len(ids) + 1
    drafted = accepted = 0
    while end < len(whole):
        room = len(ids) + LENGTH - end - 1
        drafts = anew(target, 0, whole[:end], min(n, room))
        right = common_length(drafts, whole[end:])
        drafted += len(drafts)
        accepted += right
        end += right + 1
    return {"drafted": drafted, "accepted": accepted}


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_drafts_of_a_session_are_those_of_the_head_alone(engine, n):
    """All of them are verified, and as many accepted: nothing is lost or comes late between."""
    ids = tuple(prompt(4))
    crowd = Crowd(engine, random.Random(0), 0, 0, LocalDrafter(engine.head, engine.head))
    crowd.ask(ids, LENGTH, draft_n=n, sources=("mtp",))
    crowd.finish()
    [text] = crowd.committed.values()
    [report] = crowd.reports.values()
    assert report["by_source"] == {"mtp": counts_alone(engine, ids, text, n)}


# --- the solved layer of a trained target, beside the same computed by numpy


@pytest.fixture(scope="module")
def bundled_path(make_nextn):
    return make_nextn("bundled")


@pytest.fixture(scope="module")
def trained(bundled_path):
    target = opened(bundled_path)
    yield target
    target.close()


def test_text_is_that_of_the_llama_architecture(trained):
    plain = LlamaVerifier(
        ModelSettings(engine="llama", model=bundled("target.gguf"), ctx=N_CTX, threads=1)
    )
    ids = plain.tokenizer.encode("def read_lines(path):\n")
    choices = verify(plain, 0, 0, ids)
    plain.close()
    assert verify(trained, 0, 0, ids) == choices


def test_drafts_are_those_of_the_definition(trained, bundled_path):
    """Some few have others as likely, to the digits of 16-bit numbers."""
    ids = trained.tokenizer.encode("class Queue:\n    def put(self, item):\n        self.items")
    same = []
    for end in range(8, len(ids)):
        drafts = anew(trained, 0, ids[:end], 3)
        same.append(drafts == nextn.drafts_of(bundled_path, ids[:end], 3))
    assert np.mean(same) >= 0.9


def test_most_first_drafts_are_accepted(trained):
    ids = trained.tokenizer.encode("import os\nimport sys\n\ndef main(")
    _, steps = generated(trained, ids, 1, "text")
    assert np.mean([accepted for _, _, accepted in steps]) >= 0.5
