"""The tables of states: an event that a state does not have is refused, and changes nothing."""

from itertools import product

import pytest
import states
from harness.sessions import session

from specmesh.core import events as ev
from specmesh.core.drafter.pending_request import REQUEST_STATES, DrafterRequest, RequestEvent
from specmesh.core.drafter.session import DRAFTING_STATES, DrafterSession, DraftingEvent
from specmesh.core.drafter.window import WindowReader, Windows
from specmesh.core.kv_slots import KVSlots
from specmesh.core.requests import Request
from specmesh.core.sampling.sampler import SamplingParams
from specmesh.core.session_params import SessionParams, TargetLimits
from specmesh.core.verifier.session import SESSION_STATES, SessionEvent
from specmesh.core.verifier.session_context import CONTEXT_STATES, ContextEvent, SessionContext
from specmesh.core.vocabulary.exchange import (
    VOCABULARY_STATES,
    VocabularyEvent,
    VocabularyExchange,
)
from specmesh.daemons.link.dealer import CONNECTION_STATES, ConnectionEvent, Dealer
from specmesh.errors import InvalidTransition

PARAMS = SessionParams(SamplingParams(), 9)


def verifier_session():
    return session((1, 2, 3), PARAMS, TargetLimits(512, 16, frozenset({0})))


def drafter_session():
    key = ev.SessionKey(0, 0)
    opened = ev.OpenSession(key=key, session=1, n_vocab=9, n_prompt=0, params=SamplingParams())
    reader = WindowReader(Windows(n_ctx=64), 16)
    return DrafterSession(opened, reader, KVSlots(1, "cut", 0), 0.0)


def context():
    return SessionContext(session=verifier_session(), client=1, owner=None)


def request():
    return DrafterRequest(number=1, request=Request("", None, PARAMS), client=None)


def vocabulary():
    return VocabularyExchange(None)


def connection():
    return Dealer.__new__(Dealer)  # without a socket


def name_of(parameter):
    """Return a parameter's name, the same in every process."""
    return getattr(parameter, "__name__", str(parameter))


MACHINES = [
    (SESSION_STATES, SessionEvent, verifier_session),
    (CONTEXT_STATES, ContextEvent, context),
    (DRAFTING_STATES, DraftingEvent, drafter_session),
    (REQUEST_STATES, RequestEvent, request),
    (VOCABULARY_STATES, VocabularyEvent, vocabulary),
    (CONNECTION_STATES, ConnectionEvent, connection),
]
UNKNOWN = []
for table, events, make in MACHINES:
    for state, event in product(table, events):
        if event not in table[state]:
            UNKNOWN.append((make, state, event))


@pytest.mark.parametrize(("make", "state", "event"), UNKNOWN, ids=name_of)
def test_an_event_that_a_state_does_not_have_changes_nothing(make, state, event):
    machine = make()
    machine.state = state
    with pytest.raises(InvalidTransition, match=f"is {state.value} has no event '{event.value}'"):
        machine.advance(event)
    assert machine.state is state


@pytest.mark.parametrize(("table", "events", "make"), MACHINES)
def test_a_table_has_every_state_and_every_event(table, events, make):
    [kind] = {type(state) for state in table}
    used = {event for moves in table.values() for event in moves}
    assert (set(table), used) == (set(kind), set(events))


def test_the_tables_are_drawn():
    document = states.PATH.read_text(encoding="utf-8")
    assert states.filled(document) == document
