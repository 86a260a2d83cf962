"""Draws the tables of states in ARCHITECTURE.md, whose words are written by hand: `make docs` runs it."""

import re
from collections.abc import Collection, Mapping
from enum import Enum
from pathlib import Path
from typing import TypeVar

from specmesh.core.requests import TRANSITIONS
from specmesh.core.verifier.session import STATES
from specmesh.core.verifier.session_context import CONTEXT_STATES
from specmesh.core.vocabulary.exchange import VOCABULARY_STATES
from specmesh.daemons.link.dealer import CONNECTION_STATES

PATH = Path(__file__).parents[1] / "ARCHITECTURE.md"
DRAWN = re.compile(r"(?<=^```\n)(?:[a-z ]+ -> .*\n)+(?=```$)", re.MULTILINE)

State = TypeVar("State", bound=Enum)


def drawing(table: Mapping[State, Collection[State]]) -> str:
    """A line for each state that may become another."""
    width = max(len(state.value) for state, those in table.items() if those)
    return "".join(
        f"{state.value:{width}} -> {', '.join(to.value for to in table if to in those)}\n"
        for state, those in table.items()
        if those
    )


def filled(document: str) -> str:
    """Return the document with the tables as the code has them. Raise ValueError where it has too few or too many."""
    moves = {state: those for state, (_, those) in STATES.items()}
    drawings = [
        drawing(moves),
        *map(drawing, (CONTEXT_STATES, TRANSITIONS, VOCABULARY_STATES, CONNECTION_STATES)),
    ]
    if len(DRAWN.findall(document)) != len(drawings):
        raise ValueError(f"{PATH.name} wants {len(drawings)} tables of states")
    return DRAWN.sub(lambda _: drawings.pop(0), document)


if __name__ == "__main__":
    PATH.write_text(filled(PATH.read_text(encoding="utf-8")), encoding="utf-8")
