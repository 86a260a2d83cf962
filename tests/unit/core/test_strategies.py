"""Strategies: the distribution of whole texts, by each that claims to keep the target's, enumerated exactly; what each
lets a step say, row by row; the accept rule against a brute-force oracle; what drafts are sampled from.

Everything random is integrated out: what the drafter samples, by its proposals; the coins, by the heights that they are
held against; the corrections, by their weights. What is left is a probability for each text, which must be the
target's. Real noise is held against it in tests/properties, and by `make distribution`.
"""

import itertools
from collections import defaultdict
from dataclasses import replace
from functools import cache
from math import prod

import numpy as np
import pytest
from harness.tables import cases
from hypothesis import given
from hypothesis import strategies as st

from fuzz.oracle import row
from specmesh.core.prefix import Prefix
from specmesh.core.sampling.block_verification import Block
from specmesh.core.sampling.proposal import (
    HEAVIEST,
    MAX_PROPOSAL,
    Proposal,
    ProposalSampler,
    SampledDraft,
    proposal_of,
)
from specmesh.core.sampling.sampler import Penalties, Sampler, SamplingParams
from specmesh.core.verifier.accept import (
    Acceptance,
    VerifiedRows,
    accept,
    strategy_of,
    uses_proposals,
)

PROMPT = (2, 1)
LENGTH = 3
"""Ids of a text whose distribution is looked at."""

SAMPLING = {
    "plain": SamplingParams(temperature=1.0),
    "hot": SamplingParams(temperature=1.7),
    "top-k": SamplingParams(temperature=0.7, top_k=2),
    "top-p": SamplingParams(temperature=1.0, top_p=0.8),
    "min-p": SamplingParams(temperature=1.2, min_p=0.3),
    "penalties": SamplingParams(temperature=0.9, penalties=Penalties(1.5, 0.3, 0.4)),
    "bias": SamplingParams(temperature=0.8, top_k=3, logit_bias=((0, 1.5),)),
}


@cache
def logits_of(ids, salt, n_vocab):
    return row(Prefix(ids).crc ^ salt, n_vocab, 0.0) / 2


class Target:
    def __init__(self, params, n_vocab):
        self.sampler, self.n_vocab = Sampler(params), n_vocab

    def distribution(self, said):
        ids = (*PROMPT, *said)
        return self.sampler.after(ids).distribution(logits_of(ids, 0, self.n_vocab))

    def texts(self):
        for said in itertools.product(range(self.n_vocab), repeat=LENGTH):
            yield said, prod(float(self.distribution(said[:i])[said[i]]) for i in range(LENGTH))


class Drafter:
    """What a drafter samples from after some ids: another model's distribution, cut and rounded as `form` says."""

    def __init__(self, form, n_vocab):
        self.form, self.n_vocab = form, n_vocab
        self.sampler = Sampler(SamplingParams(temperature=0.8))

    def offers(self, said):
        """Each draft that it may make here, and how likely it makes it."""
        logits = logits_of((*PROMPT, *said), 1, self.n_vocab)
        ids, shares = self.sampler.likeliest(logits, 9)
        match self.form:
            case "fine":
                proposal = proposal_of(ids.tolist(), shares)
            case "coarse":  # two tokens, in thirds
                proposal = Proposal(tuple(ids[:2].tolist()), (2, 1))
            case "certain":
                return [(SampledDraft(int(ids[0])), 1.0)]
            case "unlikely":  # what it finds least likely, for certain
                return [(SampledDraft(int(ids[-1])), 1.0)]
            case _:  # now and then without telling from what
                sampled = len(said) % 2 == 0
                proposal = proposal_of(ids.tolist(), shares) if sampled else None
                if proposal is None:
                    return [
                        (SampledDraft(int(token)), float(share))
                        for token, share in zip(ids, shares, strict=True)
                    ]
        tokens, weights = proposal.shares()
        return [
            (SampledDraft(int(token), proposal), float(share))
            for token, share in zip(tokens, weights, strict=True)
        ]

    def chains(self, said, hand, count):
        """Every chain of `count` drafts that begins with those in hand, and its probability."""
        if len(hand) >= count:
            yield hand, 1.0
            return
        for offer, share in self.offers((*said, *(one.token for one in hand))):
            for chain, others in self.chains(said, (*hand, offer), count):
                yield chain, share * others


def endings(block):
    """Every number of drafts that may stand, with its probability: the last coin within its height decides."""
    above = 1.0
    for stood in range(len(block.offers), 0, -1):
        yield stood, above * block.heights[stood - 1]
        above *= 1 - block.heights[stood - 1]
    yield 0, above


def stepped(target, said, chain, drafts):
    """What a step may say that verifies so many drafts of a chain: (ids, what is left of the chain, probability)."""
    offers = chain[: drafts + 1]
    tokens = tuple(one.token for one in offers)
    distributions = [target.distribution((*said, *tokens[:i])) for i in range(len(offers))]
    block = Block.of(distributions, offers)
    for stood, share in endings(block) if offers else [(0, 1.0)]:
        if share < 1e-15:
            continue
        if stood == len(offers) > drafts:
            yield tokens, chain[stood:], share
            continue
        if stood == len(offers):
            weights = target.distribution((*said, *tokens))
        else:
            weights = block.left(stood)
            assert weights[tokens[stood]] == 0, "a correction that is the draft which it replaces"
        for token in np.flatnonzero(weights):
            kept = chain[stood + 1 :] if stood < len(chain) and chain[stood].token == token else ()
            assert not kept, "drafts that the coins have looked at"
            yield (*tokens[:stood], int(token)), (), share * float(weights[token] / weights.sum())


def text_probs(target, drafter, schedule):
    """The probability of each text where step i begins with at least schedule[i][0] drafts in hand and verifies
    schedule[i][1] of them."""
    states, texts = {((), ()): 1.0}, defaultdict(float)
    for hand, drafts in schedule:
        after = defaultdict(float)
        for (said, left), share in states.items():
            for chain, drawn in drafter.chains(said, left, hand):
                for new, kept, likely in stepped(target, said, chain, drafts):
                    longer = (*said, *new)
                    if len(longer) >= LENGTH:
                        texts[longer[:LENGTH]] += share * drawn * likely
                    else:
                        after[longer, kept] += share * drawn * likely
        states = after
    assert not states
    return texts


SCHEDULES = {
    "blocks of one": [(1, 1)] * 3,
    "blocks of three": [(3, 3)] * 3,
    "one more in hand": [(3, 2), (2, 1), (2, 2)],
    "many in hand": [(4, 1), (1, 1), (2, 0)],
    "drafts without rows": [(1, 0), (2, 0), (0, 0)],
}


@cases(
    "sampling, form, schedule",
    """
    ["plain", "fine", "blocks of three"]
    ["plain", "coarse", "one more in hand"]
    ["plain", "mixed", "many in hand"]
    ["hot", "certain", "blocks of three"]
    ["hot", "unlikely", "drafts without rows"]
    ["top-k", "fine", "one more in hand"]
    ["top-p", "coarse", "many in hand"]
    ["min-p", "fine", "blocks of one"]
    ["penalties", "fine", "many in hand"]
    ["bias", "coarse", "blocks of three"]
    """,
)
def test_probabilistic_texts_have_the_targets_distribution(sampling, form, schedule):
    """Whatever the drafter samples from, however many drafts a step verifies or finds beyond them: each text is exactly
    as likely as from the target alone."""
    target = Target(SAMPLING[sampling], 3)
    found = text_probs(target, Drafter(form, 3), SCHEDULES[schedule])
    assert sum(found.values()) == pytest.approx(1, abs=1e-12)
    for text, share in target.texts():
        assert found[text] == pytest.approx(share, abs=1e-12), text


def test_more_stands_than_draft_by_draft():
    """A block accepts at least as many drafts, on the average, as min(1, p/q) for each; with one draft just as many,
    1 less the total variation of the two distributions."""
    target, drafter = Target(SAMPLING["plain"], 4), Drafter("fine", 4)
    blocks = singles = 0.0
    for chain, drawn in drafter.chains((), (), 3):
        tokens = [one.token for one in chain]
        distributions = [target.distribution(tokens[:i]) for i in range(3)]
        blocks += drawn * sum(
            stood * share for stood, share in endings(Block.of(distributions, chain))
        )
        alive = 1.0
        for probs, offer in zip(distributions, chain, strict=True):
            alive *= Block.of([probs], [offer]).heights[0]
            singles += drawn * alive
    assert blocks > singles + 1e-4
    first = [target.distribution(())]
    one = sum(
        drawn * Block.of(first, chain).heights[0] for chain, drawn in drafter.chains((), (), 1)
    )
    ids, shares = chain[0].shares()
    assert one == pytest.approx(np.minimum(target.distribution(())[ids], shares).sum(), abs=1e-12)


# --- what a step may say, row by row

HOT = SamplingParams(temperature=1.0, seed=3)
LOGITS = np.array([[3.0, 2.0, 0.0, -9.0]] * 4, np.float32)
LAW = Sampler(HOT).distribution(LOGITS[0])


def verified(params, logits, offers, base=3):
    """The rows of a step."""
    return VerifiedRows(
        base=base, crc=77, logits=logits, offers=offers, sampler=lambda _: Sampler(params)
    )


def judged(params):
    """The first id that is committed if a 1 was drafted."""
    rows = verified(params, LOGITS, (SampledDraft(1),), base=10)
    return accept([1], strategy_of(params)(rows), end_ids=(), room=9).committed[0]


@pytest.mark.parametrize(
    "strategy", ["deterministic", "greedy", "probabilistic at 0", "of a later version"]
)
def test_others_say_the_targets_own_choice(strategy):
    for seed in range(5):
        params = replace(
            HOT,
            seed=seed,
            strategy=strategy.removesuffix(" at 0"),
            temperature=0 if "0" in strategy else 1,
        )
        assert not uses_proposals(params)
        assert judged(params) == Sampler(params).choose(LOGITS[0], 10)


@pytest.mark.parametrize("strategy", ["deterministic", "probabilistic", "threshold"])
@given(st.lists(st.lists(st.integers(-1, 1), min_size=5, max_size=5), min_size=3, max_size=3))
def test_greedy_is_what_the_sampler_chooses(strategy, logits):
    """Row by row, of equal logits the lowest id, whatever was drafted."""
    params, rows = SamplingParams(strategy=strategy, threshold=1.0), np.array(logits, np.float32)
    offers = tuple(SampledDraft(token) for token in (1, 4, 0))
    choose = strategy_of(params)(verified(params, rows, offers))
    assert [choose(i) for i in range(3)] == [Sampler(params).choose(row, 3) for row in rows]


@pytest.mark.parametrize(("least", "stands"), [(LAW[1] - 1e-9, True), (LAW[1] + 1e-9, False)])
def test_threshold_is_the_least_probability(least, stands):
    for seed in range(5):
        params = replace(HOT, seed=seed, strategy="threshold", threshold=float(least))
        assert judged(params) == (1 if stands else Sampler(params).choose(LOGITS[0], 10))


@st.composite
def offered(draw):
    """A draft that a peer may send, honest or not: any token in any distribution, or in none."""
    ids = draw(st.lists(st.integers(0, 5), min_size=1, max_size=6, unique=True))
    weights = draw(
        st.lists(st.sampled_from([1, 2, 300, HEAVIEST]), min_size=len(ids), max_size=len(ids))
    )
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
    choose = strategy_of(params)(verified(params, rows, offers))
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
        if said != list(drafts[: len(said)]) or said[-1] == END or len(said) == room:
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
    sampler = Sampler(SamplingParams(temperature=temperature, top_k=top_k))
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
