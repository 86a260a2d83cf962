"""The states of a verifier's session are a table: what it does not list is refused, and changes nothing."""

from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest

from specmesh.core import events as ev
from specmesh.core.draft_length.estimates import StepCosts
from specmesh.core.sampling.sampler import SamplingParams
from specmesh.core.session import VerifierSession
from specmesh.core.session_params import SessionParams, TargetLimits
from specmesh.errors import LocalProtocolError

PROMPT = (1, 2, 3)
EVENTS: dict[type[ev.VerifierEvent], ev.VerifierEvent] = {
    ev.Drafted: ev.Drafted(0, 0, (1,)),
    ev.Nacked: ev.Nacked(0, 0),
    ev.Prefilled: ev.Prefilled(1),
    ev.Stepped: ev.Stepped((), np.eye(8, dtype=np.float32)[[4]], 0.1),
    ev.Cancelled: ev.Cancelled("cancelled"),
}


def in_state(state: ev.SessionState) -> VerifierSession:
    """A session that has come so far."""
    limits = TargetLimits(64, 8, frozenset({7}))
    session = VerifierSession(PROMPT, SessionParams(SamplingParams(), 9), limits, StepCosts(), 0.0)
    if state is not ev.SessionState.PREFILLING:
        session.handle(ev.Prefilled(len(PROMPT) - 1), 1.0)
    if state is ev.SessionState.ENDED:
        session.handle(ev.Cancelled("cancelled"), 2.0)
    assert session.state is state
    return session


@pytest.mark.parametrize("state", ev.SessionState)
@pytest.mark.parametrize("kind", EVENTS)
def test_what_is_not_listed_is_refused(state: ev.SessionState, kind: type[ev.VerifierEvent]):
    """Each event in each state: what the table lists is taken, at the end without effect; the rest raises."""
    session = in_state(state)
    before = deepcopy((session.prefix.ids, session.counts, session.finished))
    if kind in ev.LEGAL[state]:
        effects = session.handle(EVENTS[kind], 3.0)
        assert state is not ev.SessionState.ENDED or effects == []
    else:
        with pytest.raises(LocalProtocolError, match=f"{kind.__name__} while {state.value}"):
            session.handle(EVENTS[kind], 3.0)
        assert (session.prefix.ids, session.counts, session.finished) == before


def test_the_document_has_every_state():
    """ARCHITECTURE's table of a verifier's sessions names each state of the code's."""
    text = (Path(__file__).parents[3] / "ARCHITECTURE.md").read_text(encoding="utf-8")
    rows = text.partition("| verifier session |")[2].partition("\n\n")[0]
    assert [state.value for state in ev.SessionState if f"| {state.value} |" not in rows] == []
