"""States are tables: what these do not list is refused, and changes nothing."""

from copy import deepcopy
from dataclasses import replace
from enum import Enum
from itertools import product

import numpy as np
import pytest
import states
from harness.sessions import session

from specmesh.core import events as ev
from specmesh.core.requests import TRANSITIONS, DrafterRequest, Request, RequestState
from specmesh.core.sampling.sampler import SamplingParams
from specmesh.core.session import STATES, SessionState
from specmesh.core.session_context import CONTEXT_STATES, ContextState, SessionContext
from specmesh.core.session_params import SessionParams, TargetLimits
from specmesh.core.vocabulary.vocabulary import (
    VOCABULARY_STATES,
    Vocabulary,
    VocabularyExchange,
    VocabularyState,
    chunk,
)
from specmesh.daemons.link.dealer import CONNECTION_STATES, ConnectionState, Dealer
from specmesh.errors import InvalidTransition, LocalProtocolError, RemoteProtocolError
from specmesh.wire import messages as m

PROMPT = (1, 2, 3)
PARAMS, LIMITS = SessionParams(SamplingParams(), 9), TargetLimits(64, 8, frozenset({7}))


@pytest.mark.parametrize("state", SessionState)
@pytest.mark.parametrize("part", [ev.Prefill, ev.Verify])
def test_what_is_not_listed_is_refused(state: SessionState, part: type[ev.Prefill | ev.Verify]):
    """Each kind of step in each state; what peers and clients say has no effect at the end."""
    made = session(PROMPT, PARAMS, LIMITS)
    if state is not SessionState.PREFILLING:
        made.prefilled(len(PROMPT) - 1)
    if state is SessionState.ENDED:
        made.cancel(m.FinishReason.CANCELLED)
        assert made.heard(m.Draft(1, 0, 0, (1,)), 1.0) == made.heard(m.Nack(1, 0, 0), 1.0) == made.cancel("again") == []
    assert made.state is state
    before = deepcopy((made.prefix.ids, made.counts, made.finished))

    def take() -> None:
        if part is ev.Prefill:
            made.prefilled(1)
        else:
            made.stepped((), np.eye(8, dtype=np.float32)[[4]], 1.0, 0.1)

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
    SessionState: ("session", lambda: session(PROMPT, PARAMS, LIMITS)),
    ContextState: ("context", lambda: SessionContext(session(PROMPT, PARAMS, LIMITS), 0, 1, None)),
    RequestState: ("request", lambda: DrafterRequest(Request("", None, PARAMS), None)),
    VocabularyState: ("vocabulary", lambda: VocabularyExchange(None)),
    ConnectionState: ("connection", lambda: Dealer.__new__(Dealer)),  # without a socket
}


@pytest.mark.parametrize(("state", "to"), [pair for kind in KINDS for pair in product(kind, kind)], ids=str)
def test_what_moves_as_listed(state: Enum, to: Enum):
    name, make = KINDS[type(state)]
    made = make()
    made.state = state
    if to in LISTED[state]:
        made.move(to)
        assert made.state is to
        return
    with pytest.raises(InvalidTransition, match=f"a {name} that is {state.value} cannot become {to.value}") as refused:
        made.move(to)
    assert (made.state, refused.value.state, refused.value.to) == (state, state, to)


def test_the_tables_are_drawn():
    document = states.PATH.read_text(encoding="utf-8")
    assert states.filled(document) == document


OWN = Vocabulary((b"a", b"b"), frozenset({1}))
THEIRS = Vocabulary((b"b", b"a"), frozenset({1}))
PARTS = [m.Vocab(start, chunk(THEIRS, start)[:1]) for start in (0, 1)]


def welcome(vocabulary: Vocabulary) -> m.Welcome:
    return m.Welcome("v", "m", "", vocabulary.fingerprint(), len(vocabulary), 9, sorted(vocabulary.end_ids))


def acquainted(state: VocabularyState) -> VocabularyExchange:
    """An exchange about THEIRS, as far as this state."""
    made = VocabularyExchange(OWN)
    if state is not VocabularyState.NEW:
        assert made.welcomed(welcome(THEIRS), 0.0) == m.Vocab(0)
    if state in (VocabularyState.COMPARING, VocabularyState.KNOWN):
        assert [made.answered(part, 0.0) for part in PARTS] == [m.Vocab(1), THEIRS]
    if state is VocabularyState.KNOWN:
        made.move(VocabularyState.KNOWN)
    assert made.state is state
    return made


@pytest.mark.parametrize("state", VocabularyState)
def test_a_vocabulary_in_each_state(state: VocabularyState):
    """What is out of turn has no effect, or is refused; a WELCOME begins anew, but for what is known."""
    fetching = state is VocabularyState.FETCHING
    made = acquainted(state)
    assert [made.answered(part, 9.0) for part in (PARTS[1], m.Vocab(0))] == [None, None]
    assert fetching or made.answered(PARTS[0], 9.0) is None
    assert (made.late(0.5), made.late(9.0)) == (None, m.Vocab(0) if fetching else None)
    assert made.state is state
    again = made.welcomed(welcome(THEIRS), 9.0)
    assert again == (None if state is VocabularyState.KNOWN else m.Vocab(0))
    assert acquainted(state).welcomed(welcome(OWN), 9.0) == OWN
    with pytest.raises(RemoteProtocolError):
        acquainted(state).welcomed(replace(welcome(OWN), n_vocab=2**21), 9.0)
