"""The accept rule against a brute-force oracle, what each strategy lets a step say, row by row, and what drafts are
sampled from."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specmesh.core.accept import Acceptance, VerifiedRows, accept, strategy_of, uses_proposals
from specmesh.core.sampling.proposal import HEAVIEST, MAX_PROPOSAL, Proposal, ProposalSampler, SampledDraft
from specmesh.core.sampling.sampler import Sampler, SamplingParams

HOT = SamplingParams(1.0, seed=3)
LOGITS = np.array([[3.0, 2.0, 0.0, -9.0]] * 4, np.float32)
LAW = Sampler(HOT).distribution(LOGITS[0])


def judged(params, offers, drafts, room=9, end_ids=()):
    rows = VerifiedRows(10, 77, LOGITS, offers, lambda _: Sampler(params))
    tokens = [offer.token for offer in offers[:drafts]]
    return accept(tokens, strategy_of(params)(rows), end_ids=end_ids, room=room)


@pytest.mark.parametrize("strategy", ["deterministic", "greedy", "probabilistic at 0", "of a later version"])
def test_others_say_the_targets_own_choice(strategy):
    for seed in range(5):
        params = replace(
            HOT, seed=seed, strategy=strategy.removesuffix(" at 0"), temperature=0 if "0" in strategy else 1
        )
        assert not uses_proposals(params)
        assert judged(params, (SampledDraft(1),), 1).committed[0] == Sampler(params).choose(LOGITS[0], 10)


@pytest.mark.parametrize("strategy", ["deterministic", "probabilistic", "threshold"])
@given(st.lists(st.lists(st.integers(-1, 1), min_size=5, max_size=5), min_size=3, max_size=3))
def test_greedy_is_what_the_sampler_chooses(strategy, logits):
    """Row by row, of equal logits the lowest id, whatever was drafted."""
    params, rows = SamplingParams(strategy=strategy, threshold=1.0), np.array(logits, np.float32)
    offers = tuple(SampledDraft(token) for token in (1, 4, 0))
    choose = strategy_of(params)(VerifiedRows(3, 9, rows, offers, lambda _: Sampler(params)))
    assert [choose(i) for i in range(3)] == [Sampler(params).choose(row, 3) for row in rows]


@pytest.mark.parametrize(("least", "stands"), [(LAW[1] - 1e-9, True), (LAW[1] + 1e-9, False)])
def test_threshold_is_the_least_probability(least, stands):
    for seed in range(5):
        params = replace(HOT, seed=seed, strategy="threshold", threshold=float(least))
        own = Sampler(params).choose(LOGITS[0], 10)
        verdict = judged(params, (SampledDraft(1),), 1)
        assert verdict.committed[0] == (1 if stands else own)


@st.composite
def offered(draw):
    """A draft that a peer may send, honest or not: any token in any distribution, or in none."""
    ids = draw(st.lists(st.integers(0, 5), min_size=1, max_size=6, unique=True))
    weights = draw(st.lists(st.sampled_from([1, 2, 300, HEAVIEST]), min_size=len(ids), max_size=len(ids)))
    proposal = draw(st.sampled_from([Proposal(tuple(ids), tuple(weights)), None]))
    return SampledDraft(draw(st.sampled_from(ids)), proposal)


@given(
    st.lists(offered(), max_size=4),
    st.lists(st.sampled_from([0.0, 1.0, -3.0, -60.0, -1e9, -np.inf]), min_size=5, max_size=5),
    st.integers(0, 2**32 - 1),
    st.sampled_from([{}, {"top_k": 2}, {"top_p": 0.5}, {"temperature": 0.01}]),
    st.booleans(),
)
def test_a_lying_drafter_brings_nothing_impossible(offers, logits, seed, filters, more):
    """Whatever distributions a drafter claims: each token is one that the target's filters leave, what stands was
    drafted, and what replaces a draft is not it."""
    params = replace(HOT, seed=seed, strategy="probabilistic", **filters)
    drafts = max(len(offers) - more, 0)
    rows = np.array([[1.0, *logits]] * (drafts + 1), np.float32)
    choose = strategy_of(params)(VerifiedRows(3, 9, rows, offers, lambda _: Sampler(params)))
    tokens = [offer.token for offer in offers]
    verdict = accept(tokens[:drafts], choose, end_ids=(), room=9)
    assert list(verdict.committed[: verdict.accepted]) == tokens[: verdict.accepted]
    probs = Sampler(params).distribution(rows[0])
    assert all(probs[token] > 0 for token in verdict.committed)
    if verdict.accepted < drafts:
        assert verdict.committed[-1] != tokens[verdict.accepted]


# --- the accept rule

END = 0


def one_by_one(drafts, target, room):
    """What the target says alone, as far as the drafts carry it: (committed, accepted, tested)."""
    said = []
    while True:
        said.append(target[len(said)])
        agree = said == list(drafts[: len(said)])
        if not agree or said[-1] == END or len(said) == room:
            break
    accepted = sum(1 for n in range(1, len(drafts) + 1) if said[:n] == list(drafts[:n]))
    return tuple(said), accepted, min(len(said), len(drafts))


def noting(asked, target):
    return lambda i: asked.append(i) or target[i]


def test_every_small_case():
    for length in range(4):
        for drafts in itertools.product(range(3), repeat=length):
            for target in itertools.product(range(3), repeat=length + 1):
                for room in (1, 2, 9):
                    asked = []
                    verdict = accept(drafts, noting(asked, target), end_ids={END}, room=room)
                    committed, accepted, tested = one_by_one(drafts, target, room)
                    assert verdict == Acceptance(committed, accepted, tested, committed[-1] == END)
                    assert asked == [*range(len(committed))]


# --- what drafts are sampled from: as little as carries the distribution, and exactly that


scores = st.lists(st.floats(-20, 20, width=32), min_size=2, max_size=200)


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
    assert carried > 0.96 or len(ids) == MAX_PROPOSAL
    assert carried - probs[ids[-1]] < 0.98, "less would have been enough"
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
