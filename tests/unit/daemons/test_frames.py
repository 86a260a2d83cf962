"""Drafts and prefixes as frames."""

from specmesh.core import events as ev
from specmesh.core.prefix import Prefix
from specmesh.core.sampling.proposal import HEAVIEST, MAX_PROPOSAL, Proposal
from specmesh.daemons.link.frames import frame_of, from_drafter, to_drafter
from specmesh.wire import messages as m
from specmesh.wire.codec import decode, encode


def test_the_largest_law_fits_a_frame():
    """What a drafter may sample from is what a frame may say: as many tokens, as heavy."""
    assert m.MAX_SUPPORT == MAX_PROPOSAL
    law = Proposal(tuple(range(MAX_PROPOSAL)), (HEAVIEST,) * MAX_PROPOSAL)
    drafts = ev.Drafted(3, 9, (5,) * 32, (law,) * 32)
    assert from_drafter(decode(encode(frame_of(7, drafts)))).proposals == (law,) * 32


def test_a_long_prefix_is_synced_in_frames_that_place_themselves():
    """Every SYNC frame starts where the one before ended and carries the CRC of all ids before it."""
    ids = tuple(range(2 * m.MAX_TOKENS + 3))
    prefix = Prefix(ids)
    frames = list(to_drafter(7, ev.Told(0, 0, ids, 4, sync=True)))
    assert [frame.base for frame in frames] == [0, m.MAX_TOKENS, 2 * m.MAX_TOKENS]
    assert [frame.prefix_crc for frame in frames] == [prefix.crc_at(frame.base) for frame in frames]
    assert [token for frame in frames for token in frame.ids] == list(ids)
