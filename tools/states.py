"""Draw the tables of states in ARCHITECTURE.md. `make docs` runs it."""

import re
from collections.abc import Mapping
from pathlib import Path

from specmesh.core.drafter.pending_request import REQUEST_STATES
from specmesh.core.drafter.session import DRAFTING_STATES
from specmesh.core.states import Event, State
from specmesh.core.verifier.session import SESSION_STATES
from specmesh.core.verifier.session_context import CONTEXT_STATES
from specmesh.core.vocabulary.exchange import VOCABULARY_STATES
from specmesh.daemons.link.dealer import CONNECTION_STATES

PATH = Path(__file__).parents[1] / "ARCHITECTURE.md"
DRAWN = re.compile(r"(?<=^```\n)(?:[a-z ]+ -> .*\n)+(?=```$)", re.MULTILINE)


def drawing(table: Mapping[State, Mapping[Event, State]]) -> str:
    """Return a line for each move: a state, the state that follows, and the events that cause it.

    A state that nothing follows has no line.
    """
    width = max(len(state.value) for state, moves in table.items() if moves)
    lines = ""
    for state, moves in table.items():
        causes: dict[str, list[str]] = {}
        for event, to in moves.items():
            causes.setdefault(to.value, []).append(event.value)
        name = state.value
        for to_name, events in causes.items():
            lines += f"{name:{width}} -> {to_name} ({', '.join(events)})\n"
            name = ""
    return lines


def filled(document: str) -> str:
    """Return the document with the tables of the code.

    Raise ValueError if it has another number of tables.
    """
    drawings = [
        drawing(SESSION_STATES),
        drawing(CONTEXT_STATES),
        drawing(DRAFTING_STATES),
        drawing(REQUEST_STATES),
        drawing(VOCABULARY_STATES),
        drawing(CONNECTION_STATES),
    ]
    if len(DRAWN.findall(document)) != len(drawings):
        raise ValueError(f"{PATH.name} wants {len(drawings)} tables of states")
    return DRAWN.sub(lambda _: drawings.pop(0), document)


if __name__ == "__main__":
    PATH.write_text(filled(PATH.read_text(encoding="utf-8")), encoding="utf-8")
