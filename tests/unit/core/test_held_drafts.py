"""Drafts in hand against a naive model: the text, and a list of ids beyond it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specmesh.core import events as ev
from specmesh.core.draft_buffer import MOST_HELD, HeldDrafts
from specmesh.core.draft_length.acceptance import RollingAcceptance
from specmesh.core.draft_length.controller import Pacing
from specmesh.core.draft_length.step_costs import StepCosts
from specmesh.core.prefix import Prefix
from specmesh.core.sampling.constraint import Guided
from specmesh.core.sampling.proposal import Offer, Proposal
from specmesh.core.statistics import SessionTimes

PROFILE = settings(derandomize=True, deadline=None, max_examples=200)
token = st.integers(1, 3)
path = st.lists(token, max_size=5)
LAW, OTHER = Proposal((1, 2, 3), (9, 8, 7)), Proposal((3, 2, 1), (5, 4, 3))


def held(*committed):
    """A text, and its drafts."""
    prefix = Prefix(committed)
    pacing = Pacing(None, 8, StepCosts(), RollingAcceptance(), SessionTimes(0.0))
    return prefix, HeldDrafts(prefix, 16, Guided(None), pacing)


def told(drafts, before, ids, law=None):
    """A DRAFT of these ids after those of `before`."""
    prefix = Prefix(before)
    proposals = (law,) * len(ids) if law else ()
    drafts.take(ev.Drafted(len(prefix), prefix.crc, tuple(ids), proposals), 0.0)


@PROFILE
@given(st.data())
def test_a_chain_that_newer_drafts_replace(data):
    """Whatever is drafted and committed: the drafts in hand are those told last that follow the text."""
    prefix, drafts = held(9, 8, 7)
    chain = []
    for _ in range(data.draw(st.integers(1, 12))):
        ids, text = data.draw(path), prefix[0 : len(prefix)]
        if data.draw(st.integers(0, 3)):
            whole = [*text, *chain]
            before = data.draw(st.sampled_from([whole[:n] for n in range(1, len(whole) + 1)]) | path)
            told(drafts, before, ids)
            if before == whole[: len(before)]:
                new = [*before, *ids]
                agrees = new[: len(text)] == text[: len(new)]
                if agrees and new != whole[: len(new)]:
                    chain = new[len(text) :]
        elif ids:
            prefix.extend(ids)
            drafts.moved(tuple(ids), 0, over=False)
            chain = chain[len(ids) :] if chain[: len(ids)] == ids else []
        assert len(drafts) == len(chain)
        assert [drafts.chain(most) for most in (0, 1, 99)] == [(), tuple(chain[:1]), tuple(chain)]


def test_drafts_on_another_prefix_are_stale():
    """Of another CRC, or another place."""
    prefix, drafts = held(9, 8, 7)
    for base, crc in ((3, prefix.crc ^ 1), (2, prefix.crc), (4, prefix.crc), (2**32 - 1, 0)):
        drafts.take(ev.Drafted(base, crc, (1,)), 0.0)
    assert (len(drafts), drafts.stale) == (0, 4)


def test_they_are_bounded():
    """At once and one by one; more can come when the text has grown."""
    prefix, drafts = held(9)
    told(drafts, [9], [1] * 1000)
    told(drafts, [9] + [1] * MOST_HELD, [2])
    assert len(drafts) == MOST_HELD
    prefix.extend([1])
    drafts.moved((1,), 1, over=False)
    told(drafts, [9] + [1] * MOST_HELD, [2])
    assert drafts.chain(999)[-2:] == (1, 2)


def test_what_they_were_sampled_from_stays_as_it_was_first_told():
    """Also of drafts that are told again; of others nothing is known."""
    _, drafts = held(9)
    told(drafts, [9], [1, 2], LAW)
    told(drafts, [9], [1, 2, 3], OTHER)
    assert drafts.offers((1, 2)) == (Offer(1, LAW), Offer(2, LAW), Offer(3, OTHER))
    assert drafts.offers((1, 2, 3)) == (Offer(1, LAW), Offer(2, LAW), Offer(3, OTHER))
    assert drafts.offers((1, 3)) == (Offer(1, LAW), Offer(3))
    told(drafts, [9, 1], [3], OTHER)
    assert drafts.offers((1, 2)) == (Offer(1, LAW), Offer(2))


@pytest.mark.parametrize("again", [LAW, None])
def test_forgotten_drafts_are_no_more_than_ids(again):
    """For the step that has them, although the same came anew."""
    prefix, drafts = held(9)
    told(drafts, [9], [1, 2], LAW)
    drafts.forget(stepping=True)
    told(drafts, [9], [1, 2], again)
    assert drafts.offers((1, 2)) == (Offer(1), Offer(2))
    prefix.extend([1])
    drafts.moved((1,), 1, over=False)
    assert drafts.offers((2,)) == (Offer(2, again),)
