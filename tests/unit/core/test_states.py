"""The tables of states: a change that a table lacks is refused, and changes nothing."""

from itertools import product

import pytest
import states
from harness.sessions import session

from specmesh.core import events as ev
from specmesh.core.drafter.session import (
    DRAFTING_STATES,
    DrafterSession,
    DraftingEvent,
    DraftingState,
)
from specmesh.core.drafter.window import WindowReader, Windows
from specmesh.core.kv_slots import KVSlots
from specmesh.core.requests import REQUEST_STATES, DrafterRequest, Request, RequestState
from specmesh.core.sampling.sampler import SamplingParams
from specmesh.core.session_params import SessionParams, TargetLimits
from specmesh.core.verifier.session import SESSION_STATES, SessionEvent, SessionState
from specmesh.core.verifier.session_context import CONTEXT_STATES, ContextState, SessionContext
from specmesh.core.vocabulary.exchange import VOCABULARY_STATES, VocabularyExchange, VocabularyState
from specmesh.daemons.link.dealer import CONNECTION_STATES, ConnectionState, Dealer
from specmesh.errors import InvalidTransition

PARAMS = SessionParams(SamplingParams(), 9)


def verifier_session():
    return session((1, 2, 3), PARAMS, TargetLimits(512, 16, frozenset({0})))


def drafter_session():
    key = ev.SessionKey(0, 0)
    opened = ev.OpenSession(key=key, session=1, n_vocab=9, n_prompt=0, params=SamplingParams())
    reader = WindowReader(Windows(n_ctx=64), 16)
    return DrafterSession(opened, reader, KVSlots(1, "cut", 0), 0.0)


MACHINES = {
    ContextState: ("context", SessionContext(session=verifier_session(), client=1, owner=None)),
    RequestState: ("request", DrafterRequest(request=Request("", None, PARAMS), client=None)),
    VocabularyState: ("vocabulary", VocabularyExchange(None)),
    ConnectionState: ("connection", Dealer.__new__(Dealer)),  # without a socket
}
FOLLOWING = {**REQUEST_STATES, **VOCABULARY_STATES, **CONTEXT_STATES, **CONNECTION_STATES}
UNLISTED = []
for state, following in FOLLOWING.items():
    for to in type(state):
        if to not in following:
            UNLISTED.append((state, to))


@pytest.mark.parametrize(("state", "to"), UNLISTED, ids=str)
def test_a_change_that_a_table_lacks_changes_nothing(state, to):
    name, machine = MACHINES[type(state)]
    machine.state = state
    refusal = f"a {name} that is {state.value} cannot become {to.value}"
    with pytest.raises(InvalidTransition, match=refusal):
        machine.move(to)
    assert machine.state is state


SESSIONS = {SessionState: verifier_session, DraftingState: drafter_session}
MOVES = {**SESSION_STATES, **DRAFTING_STATES}
EVENTS = [*product(SessionState, SessionEvent), *product(DraftingState, DraftingEvent)]
UNKNOWN = [(state, event) for state, event in EVENTS if event not in MOVES[state]]


@pytest.mark.parametrize(("state", "event"), UNKNOWN, ids=str)
def test_an_event_that_a_state_does_not_know_changes_nothing(state, event):
    made = SESSIONS[type(state)]()
    made.state = state
    with pytest.raises(InvalidTransition, match=event.value):
        made.advance(event)
    assert made.state is state


def test_the_tables_are_drawn():
    document = states.PATH.read_text(encoding="utf-8")
    assert states.filled(document) == document
