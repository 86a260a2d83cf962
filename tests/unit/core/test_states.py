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
    DraftLimits,
)
from specmesh.core.requests import TRANSITIONS, DrafterRequest, Request, RequestState
from specmesh.core.sampling.sampler import SamplingParams
from specmesh.core.session_params import SessionParams, TargetLimits
from specmesh.core.verifier.session import STATES, SessionState
from specmesh.core.verifier.session_context import CONTEXT_STATES, ContextState, SessionContext
from specmesh.core.vocabulary.exchange import (
    VOCABULARY_STATES,
    VocabularyExchange,
    VocabularyState,
)
from specmesh.daemons.link.dealer import CONNECTION_STATES, ConnectionState, Dealer
from specmesh.errors import InvalidTransition

PARAMS = SessionParams(SamplingParams(), 9)


def verifier_session():
    return session((1, 2, 3), PARAMS, TargetLimits(512, 16, frozenset({0})))


def context():
    return SessionContext(session=verifier_session(), client=1, owner=None)


def request():
    return DrafterRequest(request=Request("", None, PARAMS), client=None)


def dealer():
    return Dealer.__new__(Dealer)  # without a socket


MACHINES = {
    SessionState: ("session", verifier_session),
    ContextState: ("context", context),
    RequestState: ("request", request),
    VocabularyState: ("vocabulary", lambda: VocabularyExchange(None)),
    ConnectionState: ("connection", dealer),
}
FOLLOWING = {state: following for state, (_, following) in STATES.items()}
for table in (TRANSITIONS, VOCABULARY_STATES, CONTEXT_STATES, CONNECTION_STATES):
    FOLLOWING |= table
CHANGES = [change for kind in MACHINES for change in product(kind, kind)]
LISTED = [(state, to) for state, to in CHANGES if to in FOLLOWING[state]]
UNLISTED = [(state, to) for state, to in CHANGES if to not in FOLLOWING[state]]


def in_state(state):
    _, make = MACHINES[type(state)]
    machine = make()
    machine.state = state
    return machine


@pytest.mark.parametrize(("state", "to"), LISTED, ids=str)
def test_a_listed_change_is_made(state, to):
    machine = in_state(state)
    machine.move(to)
    assert machine.state is to


@pytest.mark.parametrize(("state", "to"), UNLISTED, ids=str)
def test_any_other_change_is_refused(state, to):
    name, _ = MACHINES[type(state)]
    machine = in_state(state)
    refusal = f"a {name} that is {state.value} cannot become {to.value}"
    with pytest.raises(InvalidTransition, match=refusal):
        machine.move(to)


@pytest.mark.parametrize(("state", "to"), UNLISTED, ids=str)
def test_a_refused_change_changes_nothing(state, to):
    machine = in_state(state)
    with pytest.raises(InvalidTransition):
        machine.move(to)
    assert machine.state is state


@pytest.mark.parametrize(("state", "to"), UNLISTED, ids=str)
def test_a_refusal_names_the_change(state, to):
    with pytest.raises(InvalidTransition) as refused:
        in_state(state).move(to)
    assert (refused.value.state, refused.value.to) == (state, to)


MOVES = [
    (state, event, DRAFTING_STATES[state].get(event))
    for state, event in product(DraftingState, DraftingEvent)
]
MADE = [move for move in MOVES if move[2] is not None]
REFUSED = [move for move in MOVES if move[2] is None]


def drafter_session(state):
    limits = DraftLimits(64, 16)
    opened = ev.OpenSession(
        key=ev.SessionKey(0, 0), session=1, n_vocab=9, n_prompt=0, params=SamplingParams()
    )
    made = DrafterSession(opened, limits)
    made.state = state
    return made


@pytest.mark.parametrize(("state", "event", "following"), MADE, ids=str)
def test_an_event_moves_a_drafters_session(state, event, following):
    made = drafter_session(state)
    made.advance(event)
    assert made.state is following


@pytest.mark.parametrize(("state", "event", "_"), REFUSED, ids=str)
def test_an_event_that_a_state_does_not_know_is_refused(state, event, _):
    with pytest.raises(InvalidTransition, match=event.value):
        drafter_session(state).advance(event)


@pytest.mark.parametrize(("state", "event", "_"), REFUSED, ids=str)
def test_a_refused_event_changes_nothing(state, event, _):
    made = drafter_session(state)
    with pytest.raises(InvalidTransition):
        made.advance(event)
    assert made.state is state


def test_the_tables_are_drawn():
    document = states.PATH.read_text(encoding="utf-8")
    assert states.filled(document) == document
