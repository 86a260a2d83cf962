"""States of sessions and of requests are tables: what these do not list is refused, and changes nothing."""

from copy import deepcopy
from enum import Enum
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from harness.sessions import session

from specmesh.core import events as ev
from specmesh.core.requests import TRANSITIONS, DrafterRequest, Request, RequestState
from specmesh.core.sampling.sampler import SamplingParams
from specmesh.core.session import STATES, SessionState
from specmesh.core.session_params import SessionParams, TargetLimits
from specmesh.errors import InvalidTransition, LocalProtocolError
from specmesh.wire import messages as m

PROMPT = (1, 2, 3)


@pytest.mark.parametrize("state", SessionState)
@pytest.mark.parametrize("part", [ev.Prefill, ev.Verify])
def test_what_is_not_listed_is_refused(state: SessionState, part: type[ev.Prefill | ev.Verify]):
    """Each kind of step in each state; what peers and clients say has no effect at the end."""
    made = session(PROMPT, SessionParams(SamplingParams(), 9), TargetLimits(64, 8, frozenset({7})))
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


SESSIONS = {state: those for state, (_, those) in STATES.items()}


@pytest.mark.parametrize(
    ("state", "to"), [*product(SessionState, SessionState), *product(RequestState, RequestState)], ids=str
)
def test_what_moves_as_listed(state: SessionState | RequestState, to: SessionState | RequestState):
    """Each pair; a client is told of no end that is refused."""
    told: list[object] = []
    params = SessionParams(SamplingParams(), 9)
    request = DrafterRequest(Request("", None, params), SimpleNamespace(on_event=told.append))
    made = request if isinstance(state, RequestState) else session(PROMPT, params, TargetLimits(64, 8, frozenset({7})))
    made.state = state
    if to in (SESSIONS | TRANSITIONS)[state]:
        made.move(to)
        assert made.state is to
        return
    with pytest.raises(InvalidTransition, match=f"that is {state.value} cannot become {to.value}") as refused:
        made.fail(LocalProtocolError(), to) if made is request else made.move(to)
    assert (refused.value.state, refused.value.to) == (state, to)
    assert (made.state, told) == (state, [])


@pytest.mark.parametrize("table", [TRANSITIONS, SESSIONS], ids=["requests", "sessions"])
def test_the_tables_are_drawn(table: dict[Enum, set[Enum]]):
    width = max(len(state.value) for state, those in table.items() if those)
    lines = [
        f"{state.value:{width}} -> {', '.join(to.value for to in type(state) if to in those)}"
        for state, those in table.items()
        if those
    ]
    architecture = Path(__file__).parents[3] / "ARCHITECTURE.md"
    assert "\n".join(["```", *lines, "```"]) in architecture.read_text(encoding="utf-8")
