"""Finished sessions between their end and their report."""

import pytest

from specmesh.api.requests import ClientEvent, Finished
from specmesh.core.draft_length.acceptance import RollingAcceptance
from specmesh.core.draft_length.step_costs import StepCosts
from specmesh.core.events import SendSync
from specmesh.core.sampling.sampler import SamplingParams
from specmesh.core.session import VerifierSession
from specmesh.core.session_params import SessionParams, TargetLimits
from specmesh.daemons.verifier.session_context import PendingReports, SessionContext
from specmesh.wire.messages import MAX_TOKENS

REPORT = {"restart_ms": 10.0, "restarts": 1}


class Hearing:
    """A client that keeps what it hears."""

    def __init__(self) -> None:
        self.events: list[ClientEvent] = []

    def on_event(self, event: ClientEvent) -> None:
        self.events.append(event)


def live(prompt=(1, 2), opened=100.0):
    """A session opened at `opened`, drafted for by b"d"."""
    limits = TargetLimits(10**6, 10**6, frozenset())
    params = SessionParams(SamplingParams(), 5)
    machine = VerifierSession(prompt, params, limits, StepCosts(), RollingAcceptance(), opened)
    return SessionContext(7, 0, machine, Hearing(), None, b"d", bytes_sent=11, bytes_received=22)


@pytest.mark.parametrize(("draft_s", "told_ms"), [(2.0, 2000.0), (1e308, 10_000.0), (-5.0, 0.0)])
def test_a_drafter_cannot_have_worked_longer_than_the_session(draft_s, told_ms):
    """What CLOSE claims is bounded by the session's life, so that every report is finite."""
    closing, session = PendingReports(), live()
    closing.add(session, Finished("stop", (1, 2), REPORT), 110.0)
    closing.told(7, b"someone else", 1, 0.1, 110.0)
    assert session.client.events == []
    closing.told(7, b"d", 4, draft_s, 110.0)
    (event,) = session.client.events
    assert event.report["draft_ms"] == told_ms
    assert (event.report["bytes_sent"], event.report["bytes_received"]) == (11, 22)
    assert not closing


def test_a_long_prefix_is_synced_in_frames_that_place_themselves():
    """Every SYNC frame starts where the one before ended and carries the CRC of all ids before it."""
    session = live(prompt=tuple(range(2 * MAX_TOKENS + 3)))
    prefix = session.machine.prefix
    frames = list(session.frames(SendSync(0, 0, tuple(prefix[0 : len(prefix)]), 4)))
    assert [frame.base for frame in frames] == [0, MAX_TOKENS, 2 * MAX_TOKENS]
    assert [frame.prefix_crc for frame in frames] == [prefix.crc_at(frame.base) for frame in frames]
    assert [token for frame in frames for token in frame.ids] == prefix[0 : len(prefix)]
