"""Draw the tables of states in ARCHITECTURE.md. `make docs` runs it."""

import re
from collections.abc import Collection, Mapping
from enum import Enum
from pathlib import Path
from typing import TypeVar

from specmesh.core.drafter.session import DRAFTING_STATES
from specmesh.core.requests import REQUEST_STATES
from specmesh.core.verifier.session import SESSION_STATES
from specmesh.core.verifier.session_context import CONTEXT_STATES
from specmesh.core.vocabulary.exchange import VOCABULARY_STATES
from specmesh.daemons.link.dealer import CONNECTION_STATES

PATH = Path(__file__).parents[1] / "ARCHITECTURE.md"
DRAWN = re.compile(r"(?<=^```\n)(?:[a-z ]+ -> .*\n)+(?=```$)", re.MULTILINE)

State = TypeVar("State", bound=Enum)
Event = TypeVar("Event", bound=Enum)


def drawing(table: Mapping[State, Collection[State]]) -> str:
    """Return a line for each state that may become another."""
    moves: dict[str, str] = {}
    for state, following in table.items():
        names = [to.value for to in table if to in following]
        if names:
            moves[state.value] = ", ".join(names)
    width = max(map(len, moves))
    lines = ""
    for name, targets in moves.items():
        lines += f"{name:{width}} -> {targets}\n"
    return lines


def drawing_of_moves(table: Mapping[State, Mapping[Event, State]]) -> str:
    """Return a line for each state that may become another, with the events that cause it."""
    width = max(len(state.value) for state, moves in table.items() if moves)
    lines = ""
    for state, moves in table.items():
        causes = [f"{to.value} ({event.value})" for event, to in moves.items()]
        if causes:
            lines += f"{state.value:{width}} -> {', '.join(causes)}\n"
    return lines


def filled(document: str) -> str:
    """Return the document with the tables of the code.

    Raise ValueError if it has another number of tables.
    """
    drawings = [
        drawing_of_moves(SESSION_STATES),
        drawing(CONTEXT_STATES),
        drawing_of_moves(DRAFTING_STATES),
        drawing(REQUEST_STATES),
        drawing(VOCABULARY_STATES),
        drawing(CONNECTION_STATES),
    ]
    if len(DRAWN.findall(document)) != len(drawings):
        raise ValueError(f"{PATH.name} wants {len(drawings)} tables of states")
    return DRAWN.sub(lambda _: drawings.pop(0), document)


if __name__ == "__main__":
    PATH.write_text(filled(PATH.read_text(encoding="utf-8")), encoding="utf-8")
