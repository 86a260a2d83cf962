"""Finished sessions between their end and their report."""

from specmesh.api.requests import ClientEvent
from specmesh.core.draft_length.estimates import RollingAcceptance
from specmesh.core.draft_length.step_costs import StepCosts
from specmesh.core.events import Told
from specmesh.core.sampling.sampler import SamplingParams
from specmesh.core.session import VerifierSession
from specmesh.core.session_params import SessionParams, TargetLimits
from specmesh.daemons.verifier.session_context import SessionContext
from specmesh.wire.messages import MAX_TOKENS


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


def test_a_long_prefix_is_synced_in_frames_that_place_themselves():
    """Every SYNC frame starts where the one before ended and carries the CRC of all ids before it."""
    session = live(prompt=tuple(range(2 * MAX_TOKENS + 3)))
    prefix = session.machine.prefix
    frames = list(session.frames(Told(0, 0, tuple(prefix[0 : len(prefix)]), 4, sync=True)))
    assert [frame.base for frame in frames] == [0, MAX_TOKENS, 2 * MAX_TOKENS]
    assert [frame.prefix_crc for frame in frames] == [prefix.crc_at(frame.base) for frame in frames]
    assert [token for frame in frames for token in frame.ids] == prefix[0 : len(prefix)]
