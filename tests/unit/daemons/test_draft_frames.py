"""Drafts as frames and back."""

from specmesh.core import events as ev
from specmesh.core.sampling.proposal import HEAVIEST, MAX_PROPOSAL, Proposal
from specmesh.daemons.link.frames import drafted, frame_of
from specmesh.wire import messages as m
from specmesh.wire.codec import decode, encode


def test_the_largest_law_fits_a_frame():
    """What a drafter may sample from is what a frame may say: as many tokens, as heavy."""
    assert m.MAX_SUPPORT == MAX_PROPOSAL
    law = Proposal(tuple(range(MAX_PROPOSAL)), (HEAVIEST,) * MAX_PROPOSAL)
    drafts = ev.Drafted(3, 9, (5,) * 32, (law,) * 32)
    assert drafted(decode(encode(frame_of(7, drafts)))).proposals == (law,) * 32
