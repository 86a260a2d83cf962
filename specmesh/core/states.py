"""Tables of states: the state that follows each event, in each state.

A machine keeps one literal of this kind beside the enums of its states and events, and changes its
state by `state_after` only. So every change that can happen is in the table, with its cause.
`make docs` draws the tables into ARCHITECTURE.md.
"""

from collections.abc import Mapping
from enum import Enum
from typing import TypeVar

from specmesh.errors import InvalidTransition

State = TypeVar("State", bound=Enum)
Event = TypeVar("Event", bound=Enum)


def state_after(
    table: Mapping[State, Mapping[Event, State]], machine: str, state: State, event: Event
) -> State:
    """Return the state that follows an event.

    Raise InvalidTransition if the table has no such event in this state: a defect of the caller,
    whose machine stays as it is.

    machine: its name in the error.
    """
    following = table[state].get(event)
    if following is None:
        raise InvalidTransition(machine, state, event)
    return following
