"""Texts of a fake vLLM, whatever its scheduler does: they are the target's own, and followed."""

import pytest
from harness.followed import END, N_VOCAB, FollowedTexts, checked, server
from hypothesis import given, settings
from hypothesis import strategies as st

from specmesh.core.draft_sources import REMOTE
from specmesh.wire import messages as m

PROMPTS = st.lists(st.integers(1, 97), min_size=1, max_size=60)


@st.composite
def requests(draw):
    """Prompt, length, when it comes and perhaps when its client leaves, in steps."""
    prompt = draw(PROMPTS)
    twins = draw(st.integers(1, 3))
    comes = draw(st.integers(0, 30))
    leaves = draw(st.one_of(st.none(), st.integers(0, 60)))
    options = {
        "max_tokens": draw(st.integers(1, 60)),
        "ignore_eos": draw(st.booleans()),
        "most_drafts": draw(st.one_of(st.none(), st.integers(0, 3))),
    }
    return prompt, twins, comes, leaves, options


@settings(deadline=None)
@given(
    asked=st.lists(requests(), min_size=1, max_size=8),
    budget=st.sampled_from([8, 24, 10**6]),
    cells=st.sampled_from([120, 400, 10**6]),
    rows=st.sampled_from([1, 3, 16]),
    wrong=st.integers(0, 4),
)
def test_any_schedule(asked, budget, cells, rows, wrong):
    """Each text is the target's own; the drafter has no other; all are closed in the end."""
    texts = FollowedTexts(rows, wrong=wrong)
    vllm = server(texts, budget=budget, cells=cells, max_rows=20)
    served = []
    step = 0
    while step <= 30 or vllm.busy:
        for prompt, twins, comes, leaves, options in asked:
            if step == comes:
                served += [(vllm.ask(prompt, **options), leaves) for _ in range(twins)]
        for request, leaves in served:
            if leaves is not None and step >= leaves:
                vllm.leave(request)
        vllm.step()
        step += 1
        shown = [request.ids for request in vllm.rows]
        if 0 < len(shown) <= rows:
            for session in texts.core.sessions():
                assert session.prefix.ids.tolist() in shown
    for request, _ in served:
        checked(request)
    texts.now += 10.0
    texts.drafting.end_if_quiet()
    assert texts.core.sessions() == []
    assert texts.texts == {}


def test_right_drafts_are_accepted():
    texts = FollowedTexts()
    vllm = server(texts)
    request = vllm.ask([1, 2, 3], 200, ignore_eos=True)
    vllm.run()
    checked(request)
    assert vllm.steps < 100
    assert vllm.accepted >= 0.9 * vllm.drafted > 100


@pytest.mark.parametrize("drafts", [25, 127, 300])
def test_more_drafts_than_a_policy_knows(drafts):
    """A second text finds a drafter that was measured."""
    texts = FollowedTexts(drafts=drafts)
    vllm = server(texts)
    served = [vllm.ask([number, 2, 3], 300, ignore_eos=True) for number in range(2)]
    vllm.run()
    for request in served:
        checked(request)
    assert not texts.drafting.faults.off
    assert vllm.accepted >= 0.9 * vllm.drafted > 300


def test_ids_that_are_no_tokens_are_not_sent():
    """They stand for a picture. However many such texts there are, another one has drafts."""
    texts = FollowedTexts()
    vllm = server(texts)
    for number in range(8):
        vllm.ask([number, N_VOCAB if number % 2 else -1, 3], 100, ignore_eos=True)
    for _ in range(5):
        vllm.step()
    assert texts.texts == {}
    vllm.ask([1, 2, 3], 60, ignore_eos=True)
    vllm.run()
    assert vllm.accepted >= 0.9 * vllm.drafted > 30


def test_no_drafter_reads_texts_that_come_together_and_are_too_many():
    """While only some of them were known the gate of their number would have let it read these."""
    texts = FollowedTexts()
    gate = texts.target.speculations.of(REMOTE, 7).gate
    gate.open = False
    gate.verdict = False
    vllm = server(texts)
    for number in range(7):
        vllm.ask([number + 1, 5, 7], 40, ignore_eos=True)
    vllm.step()
    assert len(texts.core.sessions()) == 7
    assert texts.texts == {}


def test_a_call_takes_in_a_few_long_texts_only():
    texts = FollowedTexts()
    vllm = server(texts)
    for number in range(7):
        vllm.ask([number + 1] * 1900, 40, ignore_eos=True)
    vllm.step()
    opened = len(texts.core.sessions())
    vllm.step()
    assert opened == 5
    assert len(texts.core.sessions()) == 7


def test_a_request_that_ignores_ends_is_begun_anew_once():
    texts = FollowedTexts()
    vllm = server(texts)
    request = vllm.ask([1, 2, 3], 600, ignore_eos=True)
    vllm.run()
    assert request.ids.count(END) > 2
    assert texts.ended == {m.FinishReason.STOP: 1}


def test_drafts_of_several_texts_are_their_own():
    """Rows move as texts end; right drafts of a wrong row would be wrong."""
    texts = FollowedTexts()
    vllm = server(texts)
    for number in range(6):
        vllm.ask([number + 1, 5, 7], 20 + 30 * number, ignore_eos=True)
    vllm.run()
    assert vllm.accepted >= 0.9 * vllm.drafted > 150


def test_dear_calls_rest_and_begin_again():
    """Wrong drafts pay for no call. After a rest texts have grown unseen, and are opened anew."""
    texts = FollowedTexts(wrong=1, call_s=0.005)
    vllm = server(texts)
    served = [vllm.ask([number, 7], 400, ignore_eos=True) for number in range(4)]
    vllm.run()
    for request in served:
        checked(request)
    ended = texts.ended[m.FinishReason.CANCELLED]
    assert ended > 2 * len(served)


def test_no_call_waits_for_a_thread_without_a_core():
    """The other thread stands still in the middle of its work. The text goes on without drafts."""
    texts = FollowedTexts()
    vllm = server(texts)
    request = vllm.ask([1, 2, 3], 60, ignore_eos=True)
    vllm.step()
    with texts.drafting._lock:
        for _ in range(5):
            vllm.step()
    vllm.run()
    checked(request)
    assert vllm.accepted > 20
