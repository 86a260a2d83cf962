"""What drafts are sampled from: as little as carries the distribution, and exactly that."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specmesh.core.sampling.proposal import HEAVIEST, MASS, MAX_PROPOSAL, Proposal, ProposalSampler
from specmesh.core.sampling.sampler import Sampler, SamplingParams

PROFILE = settings(derandomize=True, deadline=None, max_examples=100)
scores = st.lists(st.floats(-20, 20, width=32), min_size=2, max_size=200)


@PROFILE
@given(scores, st.sampled_from([0, 5]), st.sampled_from([0.5, 1.0, 3.0]))
def test_a_proposal_is_the_likeliest_of_the_distribution(scores, top_k, temperature):
    logits = np.array(scores, np.float32)
    sampler = Sampler(SamplingParams(temperature, top_k))
    proposing = ProposalSampler(sampler, 7)
    token = proposing.choose(logits, 3)
    made, probs = proposing.proposal, sampler.distribution(logits)
    assert made.fits(token, len(logits))
    assert made.weights[0] == HEAVIEST
    ids, shares = made.shares()
    carried = probs[ids].sum()
    assert carried >= MASS - MAX_PROPOSAL / HEAVIEST or len(ids) == MAX_PROPOSAL
    assert carried - probs[ids[-1]] < MASS
    assert np.abs(shares - probs[ids] / carried).max() < 2 / HEAVIEST


@pytest.mark.parametrize(
    ("proposal", "fits"),
    [
        (Proposal((1, 2), (3, 4)), True),
        (Proposal((2,), (1,)), True),
        (Proposal((), ()), False),
        (Proposal((1, 3), (3, 4)), False),
        (Proposal((2, 2), (3, 4)), False),
        (Proposal((2, 1), (3, 0)), False),
        (Proposal((2, 1), (3, HEAVIEST + 1)), False),
        (Proposal((2, 10), (3, 4)), False),
        (Proposal((2, -1), (3, 4)), False),
        (Proposal((2, 1), (3,)), False),
        (Proposal((2, *range(10, 10 + MAX_PROPOSAL)), (1,) * (MAX_PROPOSAL + 1)), False),
    ],
    ids=str,
)
def test_what_a_peer_may_say(proposal, fits):
    assert proposal.fits(2, 10 if len(proposal.ids) < MAX_PROPOSAL else 1000) == fits
