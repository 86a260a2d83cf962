"""A text that is gone on with, after any of its ids, is the text that it would have been."""

import random
from hashlib import blake2b

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specmesh.core import events as ev
from specmesh.core.draft_length.acceptance import RollingAcceptance
from specmesh.core.draft_length.arrival_estimates import Arrivals
from specmesh.core.draft_length.step_costs import StepCosts
from specmesh.core.prefix import Prefix
from specmesh.core.report import session_report
from specmesh.core.sampling.sampler import Sampler, SamplingParams
from specmesh.core.sampling.stop import StoppedText
from specmesh.core.scheduling.admission import check_prompt, may_adopt
from specmesh.core.session import VerifierSession
from specmesh.core.session_params import SessionParams, TargetLimits
from specmesh.core.vocabulary.vocabulary import Vocabulary
from specmesh.errors import PromptTooLong, RequestError

PROFILE = settings(derandomize=True, deadline=None, max_examples=150)
N_VOCAB, END = 16, 0
PIECES = tuple(b"" if token == END else b"%c%c" % (97 + token % 4, 97 + token // 4) for token in range(N_VOCAB))
PROMPT = (3, 1, 4, 1, 5)
GREEDY = SamplingParams()


def logits(crc, end_bias=-3.0):
    """The target's row after the prefix with this CRC: a hash, the end id rare."""
    row = np.frombuffer(blake2b(b"%d" % crc, digest_size=N_VOCAB).digest(), np.uint8).astype(np.float32) / 32
    row[END] += end_bias
    return row


def session(ids, params, n_ctx=512, n_prompt=None):
    """A session on these ids, drafted for."""
    limits = TargetLimits(n_ctx, N_VOCAB, frozenset({END}), 4, PIECES)
    made = VerifierSession(ids, params, limits, StepCosts(), RollingAcceptance(), 0.0, n_prompt)
    made.attach(Arrivals())
    return made


def finish(made, luck):
    """Run it to its end with drafts that are right three times in four; what its client is told."""
    memory, told = Prefix(), []
    while made.finished is None:
        draft(made, luck)
        plan = made.plan(1e9)
        if isinstance(plan, ev.Prefill):
            assert plan.position == len(memory)
            memory.extend(plan.ids)
            made.handle(ev.Prefilled(len(plan.ids)), 0.0)
            continue
        made.begin(0.0)
        rows = []
        for token in (plan.last, *plan.drafts):
            memory.extend([token])
            rows.append(logits(memory.crc))
        for effect in made.handle(ev.Stepped(plan.drafts, np.stack(rows), 0.01), 0.0):
            match effect:
                case ev.Trim(length):
                    memory.truncate(length)
                case ev.Emit(ids=ids):
                    told.extend(ids)
    return tuple(told)


def draft(made, luck):
    """Three drafts on what is committed."""
    known, ids = Prefix(made.prefix[0:]), []
    for _ in range(3):
        right = made.sampler.choose(logits(known.crc), len(known))
        ids.append(right if luck.random() < 0.75 else luck.randrange(1, N_VOCAB))
        known.extend(ids[-1:])
    made.handle(ev.Drafted(len(made.prefix), made.prefix.crc, tuple(ids)), 0.0)


params = st.builds(
    SessionParams,
    st.builds(SamplingParams, st.sampled_from([0.0, 0.8]), st.just(0), st.just(1.0), st.integers(0, 99)),
    st.integers(1, 40),
    st.sampled_from([None, 0, 3]),
    st.sampled_from([(), ("ab",), ("bc", "da"), ("cabd",), ("aaa", "bbb")]),
)


@PROFILE
@given(params=params, n_ctx=st.sampled_from([24, 512]), seed=st.integers(0, 99))
@pytest.mark.fault("E3.34")
def test_resumed_anywhere_it_is_the_same_text(params, n_ctx, seed):
    """After each of its ids, also the last: same ids, same reason, and only what follows is told."""
    whole = session(PROMPT, params, n_ctx)
    told = finish(whole, random.Random(seed))
    ids = tuple(whole.prefix[len(PROMPT) :])
    for at in range(len(ids) + 1):
        again = session((*PROMPT, *ids[:at]), params, n_ctx, len(PROMPT))
        rest = finish(again, random.Random(seed + at))
        assert (again.said(), again.finished) == (told, whole.finished)
        assert rest == told[at:]
        assert (again.n_prompt, again.resumed) == (len(PROMPT), at)
        assert again.said(at) == rest


@pytest.mark.parametrize(
    ("ids", "changes", "reason"),
    [
        ((7, 9, END), {}, "stop"),
        ((7, 9), {"max_tokens": 2}, "length"),
        ((7, 9), {"n_ctx": 7}, "length"),
        ((1, 4), {"stop": (PIECES[1] + PIECES[4]).decode()[1:3]}, "stop"),
        ((7, 9), {}, None),
    ],
    ids=["end id", "max_tokens", "context", "stop string", "not yet"],
)
def test_a_text_that_has_ended_is_finished(ids, changes, reason):
    """It asks for no step, and tells how it ended; drafts and cancellation change nothing."""
    stop = (changes["stop"],) if "stop" in changes else ()
    made = session(
        (*PROMPT, *ids),
        SessionParams(GREEDY, changes.get("max_tokens", 50), None, stop),
        changes.get("n_ctx", 512),
        len(PROMPT),
    )
    assert made.finished == reason
    if reason is not None:
        assert made.handle(ev.Cancelled("cancelled"), 1.0) == []
        assert made.said() == tuple(token for token in ids if token != END)


def test_a_stop_string_across_the_seam_ends_the_text_and_is_not_shown():
    """The scan begins with the ids of before: what completes a stop string begun there ends the text."""
    greedy = session(PROMPT, SessionParams(GREEDY, 12))
    finish(greedy, random.Random(1))
    ids = greedy.said()
    text = b"".join(PIECES[token] for token in ids).decode()
    at = next(n for n in range(2, 10) if text.index(text[2 * n - 1 : 2 * n + 1]) == 2 * n - 1)  # occurs first there
    stop = text[2 * at - 1 : 2 * at + 1]
    again = session((*PROMPT, *ids[:at]), SessionParams(GREEDY, 12, None, (stop,)), n_prompt=len(PROMPT))
    rest = finish(again, random.Random(2))
    assert (again.finished, rest) == ("stop", ids[at : at + 1])
    shown = StoppedText(Vocabulary(PIECES, frozenset({END})), (stop,))
    shown.feed(ids[:at])
    assert shown.feed(rest).text + shown.finish().text == ""


def test_report_counts_the_whole_text():
    """generated_tokens is all of it, resumed_tokens what came before; the rest is about what followed."""
    made = session((*PROMPT, 7, 9), SessionParams(GREEDY, 6), n_prompt=len(PROMPT))
    finish(made, random.Random(3))
    report = session_report(made, StepCosts(), 1.0)
    assert (report["prompt_tokens"], report["generated_tokens"], report["resumed_tokens"]) == (5, 6, 2)
    assert made.counts.generated == 4


def test_sampling_goes_on_by_position():
    """The noise of a position does not depend on where the session began."""
    sampler = Sampler(SamplingParams(1.0, seed=5))
    whole = session(PROMPT, SessionParams(SamplingParams(1.0, seed=5), 10))
    finish(whole, random.Random(0))
    known = Prefix(PROMPT)
    for token in whole.prefix[len(PROMPT) :]:
        assert sampler.choose(logits(known.crc), len(known)) == token
        known.extend([token])


LIMITS = TargetLimits(8, N_VOCAB, frozenset({END}))


@pytest.mark.parametrize(
    ("ids", "n_prompt", "error"),
    [
        ((1, 2), 3, RequestError),
        ((1, 2), 0, RequestError),
        ((1, 2, 16), 1, RequestError),
        ((1, 2, -1), 1, RequestError),
        ((1,) * 9, 4, RequestError),
        ((1,) * 8, 8, PromptTooLong),
        ((1,) * 9, 9, PromptTooLong),
    ],
)
def test_texts_that_cannot_be(ids, n_prompt, error):
    """More prompt than ids, none, foreign ids, or more than the context are refused; the prompt's length as ever."""
    with pytest.raises(RequestError) as caught:
        check_prompt(ids, LIMITS, n_prompt)
    assert type(caught.value) is error


def test_a_text_may_fill_the_context():
    """That is one of its ends."""
    check_prompt((1,) * 8, LIMITS, 4)


@pytest.mark.parametrize(
    ("first", "asker", "may"),
    [("", None, True), ("k", None, True), ("", "", True), ("k", "k", True), ("k", "l", False), ("k", "", False),
     ("", "k", False)],
)  # fmt: skip
def test_who_may_have_a_text_again(first, asker, may):
    """Whoever shows the key it was opened with, and clients of the daemon's own."""
    assert may_adopt(first, asker) is may


@pytest.mark.parametrize("said", [0, 1, 4, 9])
def test_with_a_constant_width_each_part_is_read_as_it_was_first(said):
    """The prompt as a prompt, and what was generated by steps of the width; without one all of it at once."""
    ids, params = (*PROMPT, *range(1, 1 + said)), SessionParams(GREEDY, 50)

    def read(width):
        limits = TargetLimits(512, N_VOCAB, frozenset({END}), 3, PIECES, width)
        made, parts = VerifierSession(ids, params, limits, StepCosts(), RollingAcceptance(), 0.0, len(PROMPT)), []
        while isinstance(plan := made.plan(0.0), ev.Prefill):
            assert ids[plan.position : plan.position + len(plan.ids)] == plan.ids
            parts.append((len(plan.ids), plan.stepwise))
            made.handle(ev.Prefilled(len(plan.ids)), 0.0)
        return parts

    assert read(None) == [(len(ids) - 1, False)]
    whole, rest = divmod(said, 4)
    assert read(4) == [(len(PROMPT) - 1, False), *[(4, True)] * whole, *[(rest, True)] * bool(rest)]
