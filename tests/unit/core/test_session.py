"""Sessions: what their tables of states do not list is refused, and changes nothing; a text that is gone on with, after
any of its ids, is the text that it would have been; log-probabilities of what was said."""

import random
from copy import deepcopy
from dataclasses import replace
from enum import Enum
from functools import partial
from itertools import product

import numpy as np
import pytest
import states
from harness.sessions import generate, ids_of, mostly_right
from harness.sessions import session as session_of
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fuzz.oracle import row
from specmesh.core import events as ev
from specmesh.core.prefix import Prefix
from specmesh.core.requests import TRANSITIONS, DrafterRequest, Request, RequestState
from specmesh.core.sampling.logprobs import LEAST, MAX_ALTERNATIVES, Logprob, logprobs_of
from specmesh.core.sampling.sampler import SamplingParams
from specmesh.core.session_params import SessionParams, TargetLimits
from specmesh.core.verifier.session import STATES, SessionState
from specmesh.core.verifier.session_context import CONTEXT_STATES, ContextState, SessionContext
from specmesh.core.vocabulary import vocabulary
from specmesh.core.vocabulary.vocabulary import (
    VOCABULARY_STATES,
    Vocabulary,
    VocabularyExchange,
    VocabularyState,
)
from specmesh.daemons.link.dealer import CONNECTION_STATES, ConnectionState, Dealer
from specmesh.errors import InvalidTransition, LocalProtocolError
from specmesh.wire import messages as m

N_VOCAB, END, PROMPT = 16, 0, (3, 1, 4, 1, 5)
PIECES = tuple(
    b"" if token == END else b"%c%c" % (97 + token % 4, 97 + token // 4) for token in range(N_VOCAB)
)
GREEDY = SamplingParams()
PARAMS = SessionParams(GREEDY, 9)
TARGET = partial(row, end_bias=-3.0)


def session(ids=PROMPT, params=PARAMS, n_ctx=512, width=None, *, n_prompt=None, attached=True):
    limits = TargetLimits(n_ctx, N_VOCAB, frozenset({END}), 3, PIECES, width)
    return session_of(ids, params, limits, n_prompt=n_prompt or len(PROMPT), attached=attached)


def drafts(seed):
    return mostly_right(TARGET, random.Random(seed))


@pytest.mark.parametrize("state", SessionState)
@pytest.mark.parametrize("part", [ev.Prefill, ev.Verify])
def test_what_is_not_listed_is_refused(state: SessionState, part: type[ev.Prefill | ev.Verify]):
    """Each kind of step in each state; what peers and clients say has no effect at the end."""
    made = session()
    if state is not SessionState.PREFILLING:
        made.prefilled(len(PROMPT) - 1)
    if state is SessionState.ENDED:
        made.cancel(m.FinishReason.CANCELLED)
        assert (
            made.heard(m.Draft(1, 0, 0, (1,)), 1.0)
            == made.heard(m.Nack(1, 0, 0), 1.0)
            == made.cancel("again")
            == []
        )
    assert made.state is state
    before = deepcopy((made.prefix.ids, made.counts, made.finished))

    def take() -> None:
        if part is ev.Prefill:
            made.prefilled(1)
        else:
            made.stepped((), np.eye(N_VOCAB, dtype=np.float32)[[4]], 1.0, 0.1)

    if STATES[state][0] is part:
        take()
    else:
        with pytest.raises(LocalProtocolError, match=f"{part.__name__} while {state.value}"):
            take()
        assert (made.prefix.ids, made.counts, made.finished) == before


LISTED: dict[Enum, set[Enum]] = {state: set(those) for state, (_, those) in STATES.items()}
for table in (TRANSITIONS, VOCABULARY_STATES, CONTEXT_STATES, CONNECTION_STATES):
    LISTED |= {state: set(those) for state, those in table.items()}
KINDS = {
    SessionState: ("session", session),
    ContextState: ("context", lambda: SessionContext(session(), 0, 1, None)),
    RequestState: ("request", lambda: DrafterRequest(Request("", None, PARAMS), None)),
    VocabularyState: ("vocabulary", lambda: VocabularyExchange(None)),
    ConnectionState: ("connection", lambda: Dealer.__new__(Dealer)),  # without a socket
}


@pytest.mark.parametrize(
    ("state", "to"), [pair for kind in KINDS for pair in product(kind, kind)], ids=str
)
def test_what_moves_as_listed(state: Enum, to: Enum):
    name, make = KINDS[type(state)]
    made = make()
    made.state = state
    if to in LISTED[state]:
        made.move(to)
        assert made.state is to
        return
    with pytest.raises(
        InvalidTransition, match=f"a {name} that is {state.value} cannot become {to.value}"
    ) as refused:
        made.move(to)
    assert (made.state, refused.value.state, refused.value.to) == (state, state, to)


def test_the_tables_are_drawn():
    document = states.PATH.read_text(encoding="utf-8")
    assert states.filled(document) == document


OWN = Vocabulary((b"a", b"b"), frozenset({1}))
THEIRS = Vocabulary((b"b", b"a"), frozenset({1}))
PARTS = [m.Vocab(start, vocabulary.chunk(THEIRS, start)[:1]) for start in (0, 1)]


def welcome(to: Vocabulary) -> m.Welcome:
    return m.Welcome("v", "m", "", to.fingerprint(), len(to), 9, sorted(to.end_ids))


def acquainted(state: VocabularyState) -> VocabularyExchange:
    """An exchange about THEIRS, as far as this state."""
    made = VocabularyExchange(OWN)
    if state is not VocabularyState.NEW:
        assert made.welcomed(welcome(THEIRS), 0.0) == m.Vocab(0)
    if state in (VocabularyState.COMPARING, VocabularyState.KNOWN):
        assert [made.answered(part, 0.0) for part in PARTS] == [m.Vocab(1), THEIRS]
    if state is VocabularyState.KNOWN:
        made.move(VocabularyState.KNOWN)
    if state is VocabularyState.UNUSABLE:
        assert made.answered(m.Vocab(0, ["!"]), 0.0) is None
    assert made.state is state
    return made


@pytest.mark.parametrize("state", VocabularyState)
def test_a_vocabulary_in_each_state(state: VocabularyState):
    """What is out of turn has no effect; a WELCOME begins anew, but for what is known, or known
    to be unusable."""
    fetching = state is VocabularyState.FETCHING
    made = acquainted(state)
    assert [made.answered(part, 9.0) for part in (PARTS[1], m.Vocab(0))] == [None, None]
    assert fetching or made.answered(PARTS[0], 9.0) is None
    assert (made.late(0.5), made.late(9.0)) == (None, m.Vocab(0) if fetching else None)
    assert made.state is state
    settled = state in (VocabularyState.KNOWN, VocabularyState.UNUSABLE)
    begun = THEIRS if state is VocabularyState.COMPARING else m.Vocab(0)
    assert made.welcomed(welcome(THEIRS), 9.0) == (None if settled else begun)
    assert acquainted(state).welcomed(welcome(OWN), 9.0) == OWN
    huge = acquainted(state)
    assert huge.welcomed(replace(welcome(OWN), n_vocab=2**21), 9.0) is None
    assert huge.state is VocabularyState.UNUSABLE
    assert "2097152 tokens" in huge.trouble


LIES = {
    "not base64": [m.Vocab(0, ["!"])],
    "not ASCII": [m.Vocab(0, ["ü"])],
    "more than it has": [m.Vocab(0, ["YQ=="] * 3)],
    "not as announced": [m.Vocab(0, ["YQ==", "YQ=="])],
}


@pytest.mark.parametrize("lie", LIES)
def test_a_vocabulary_that_cannot_be(lie: str):
    """The verifier that sent it is not asked for it again, another one is, and it may suit then."""
    made = acquainted(VocabularyState.FETCHING)
    assert [made.answered(part, 0.0) for part in LIES[lie]] == [None]
    assert made.trouble
    assert (made.state, made.late(99.0)) == (VocabularyState.UNUSABLE, None)
    assert made.welcomed(welcome(THEIRS), 9.0) is None
    assert made.welcomed(replace(welcome(THEIRS), verifier="w"), 9.0) == m.Vocab(0)
    assert made.trouble == ""
    assert [made.answered(part, 9.0) for part in PARTS] == [m.Vocab(1), THEIRS]


def test_a_vocabulary_is_asked_for_once():
    """A verifier that changes its model back and forth is compared anew, without another byte; a
    few are kept."""
    others = [Vocabulary((b"x%d" % number,), frozenset()) for number in range(4)]
    made = acquainted(VocabularyState.KNOWN)
    for verifier, known in enumerate((OWN, THEIRS, OWN, THEIRS)):
        assert made.welcomed(replace(welcome(known), verifier=str(verifier)), 1.0) == known
        made.move(VocabularyState.KNOWN)
    for other in others:
        assert made.welcomed(welcome(other), 1.0) == m.Vocab(0)
        assert made.answered(m.Vocab(0, vocabulary.chunk(other, 0)), 1.0) == other
    assert made.welcomed(welcome(others[-2]), 1.0) == others[-2]
    assert made.welcomed(welcome(THEIRS), 1.0) == m.Vocab(0)


# --- texts that are gone on with

FEW = settings(max_examples=settings().max_examples // 10)
params = st.builds(
    SessionParams,
    st.builds(
        SamplingParams, st.sampled_from([0.0, 0.8]), st.just(0), st.just(1.0), st.integers(0, 99)
    ),
    st.integers(1, 40),
    st.sampled_from([None, 0, 3]),
    st.sampled_from([(), ("ab",), ("bc", "da"), ("cabd",), ("aaa", "bbb")]),
)


@FEW
@given(params=params, n_ctx=st.sampled_from([24, 512]), seed=st.integers(0, 99))
@pytest.mark.fault("E3.34")
def test_resumed_anywhere_it_is_the_same_text(params, n_ctx, seed):
    whole = session(PROMPT, params, n_ctx)
    told = ids_of(generate(whole, TARGET, drafts(seed)))
    ids = tuple(whole.prefix[len(PROMPT) :])
    for at in range(len(ids) + 1):
        again = session((*PROMPT, *ids[:at]), params, n_ctx)
        rest = ids_of(generate(again, TARGET, drafts(seed + at)))
        assert (again.said(), again.finished) == (told, whole.finished)
        assert rest == told[at:]
        assert (again.n_prompt, again.resumed) == (len(PROMPT), at)
        assert again.said(at) == rest


@pytest.mark.parametrize("said", [0, 1, 4, 9])
def test_with_a_constant_width_each_part_is_read_as_it_was_first(said):
    ids, params = (*PROMPT, *range(1, 1 + said)), SessionParams(GREEDY, 50)

    def read(width):
        made, parts = session(ids, params, width=width), []
        while isinstance(plan := made.plan(0.0), ev.Prefill):
            assert ids[plan.position : plan.position + len(plan.ids)] == plan.ids
            parts.append((len(plan.ids), plan.stepwise))
            made.prefilled(len(plan.ids))
        return parts

    assert read(None) == [(len(ids) - 1, False)]
    whole, rest = divmod(said, 4)
    assert read(4) == [(len(PROMPT) - 1, False), *[(4, True)] * whole, *[(rest, True)] * bool(rest)]


# --- log-probabilities

ROWS = arrays(np.float32, st.integers(1, 300), elements=st.floats(-50, 50, width=32))


@given(ROWS, st.integers(0, MAX_ALTERNATIVES), st.data())
def test_logprobs_are_those_of_the_softmax(row, top, data):
    token = data.draw(st.integers(0, len(row) - 1))
    exact = row.astype(np.float64) - np.logaddexp.reduce(row.astype(np.float64))
    told = logprobs_of(row, token, top)
    assert told.chosen == pytest.approx(max(exact[token], LEAST), abs=1e-6)
    assert told.ids == tuple(np.argsort(-row, kind="stable")[:top])
    assert told.top == pytest.approx(exact[list(told.ids)], abs=1e-6)


@pytest.mark.parametrize(
    "row", [[np.nan, 1.0, 2.0], [-np.inf, -np.inf, -np.inf], [np.inf, 0.0, 0.0], [-3e38, 0.0, 3e38]]
)
def test_logprobs_of_rows_that_are_none(row):
    told = logprobs_of(np.array(row, np.float32), 0, 3)
    assert np.isfinite((told.chosen, *told.top)).all()
    assert len(told.ids) == len(told.top) == 3
    assert min(told.chosen, *told.top) >= LEAST


def said(params, drafts=None):
    """Ids and log-probabilities of a session."""
    rounds = generate(session(params=params, attached=drafts is not None), TARGET, drafts)
    assert all(len(one.logprobs) == len(one.ids) for one in rounds)
    found = [one for round_ in rounds for one in round_.logprobs]
    return list(ids_of(rounds)), found, sum(one.accepted for one in rounds)


@pytest.mark.parametrize(
    "sampling", [GREEDY, SamplingParams(0.9, 3, 0.9, 7, logit_bias=((2, -3.0), (END, 2.5)))]
)
@pytest.mark.parametrize("stop", [(), ("ab",)])
def test_drafts_change_nothing_about_logprobs(sampling, stop):
    """Accepted drafts, corrections and bonus tokens, up to an end id or a stop string: each has the row that chose it,
    as the model gave it, whatever sampling makes of it."""
    params = SessionParams(sampling, 60, None, stop, 2)
    alone, found, _ = said(params)
    known = Prefix(PROMPT)
    for token, one in zip(alone, found, strict=True):
        assert one == logprobs_of(TARGET(known.crc), token, 2)
        known.extend([token])
    drafted, with_drafts, accepted = said(params, drafts(3))
    assert (drafted, with_drafts) == (alone, found)
    assert accepted > 0


@pytest.mark.parametrize("width", [None, 4], ids=["any width", "constant width"])
@pytest.mark.parametrize("count", [0, 1, 60])
@pytest.mark.parametrize("length", [1, 2, 4, 70])
def test_an_echoed_prompt(length: int, count: int, width: int | None):
    """Each id but the first has the row before it, whatever parts the prompt comes in; the text is the same as ever,
    and its end id is told, too."""
    prompt = [1 + at % (N_VOCAB - 1) for at in range(length)]
    params = SessionParams(GREEDY, count, None, (), 2)
    rounds, scores = {}, list[Logprob | None]()
    for echo in (False, True):
        made = session(prompt, replace(params, echo=echo), width=width, n_prompt=length)
        rounds[echo] = generate(made, TARGET, drafts(3), scores)
    crcs = [Prefix(prompt[:at]).crc for at in range(1, length)]
    assert scores == [
        logprobs_of(TARGET(crc), token, 2) for crc, token in zip(crcs, prompt[1:], strict=True)
    ]
    said, alone = ids_of(rounds[True]), ids_of(rounds[False])
    assert said in (alone, (*alone, END))
    assert (len(said) > len(alone)) == (len(alone) < count)
    assert [one.ids[0] for round_ in rounds[True] for one in round_.logprobs if one] == list(said)
