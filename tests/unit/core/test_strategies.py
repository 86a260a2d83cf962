"""Strategies: the distribution of whole texts, the accept rule, and proposals.

The distribution of texts is enumerated exactly. Everything random is integrated out: the drafter's
samples by its proposals, the coins by the heights that they are held against, the corrections by
their weights. A probability is left for each text, and must be the target's. Real noise is tested
in tests/properties, and by `make distribution`.
"""

import itertools
from collections import defaultdict
from dataclasses import replace
from functools import cache
from math import prod
from unittest.mock import Mock, call

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
"""Ids of a text whose distribution is enumerated."""

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
        self.sampler = Sampler(params)
        self.n_vocab = n_vocab

    def distribution(self, text):
        ids = (*PROMPT, *text)
        return self.sampler.after(ids).distribution(logits_of(ids, 0, self.n_vocab))

    def texts(self):
        """Yield each text and its probability."""
        for text in itertools.product(range(self.n_vocab), repeat=LENGTH):
            yield text, prod(float(self.distribution(text[:i])[text[i]]) for i in range(LENGTH))


class Drafter:
    """A drafter that samples from the distribution of another model.

    form: how its proposals are cut and rounded.
    """

    def __init__(self, form, n_vocab):
        self.form = form
        self.n_vocab = n_vocab
        self.sampler = Sampler(SamplingParams(temperature=0.8))

    def offers(self, text):
        """Return each draft that it may make after a text, and its probability."""
        logits = logits_of((*PROMPT, *text), 1, self.n_vocab)
        ids, shares = self.sampler.likeliest(logits, 9)
        match self.form:
            case "fine":
                return sampled(proposal_of(ids.tolist(), shares))
            case "coarse":  # two tokens, in thirds
                return sampled(Proposal(tuple(ids[:2].tolist()), (2, 1)))
            case "certain":
                return [(SampledDraft(int(ids[0])), 1.0)]
            case "unlikely":  # the least likely one, for certain
                return [(SampledDraft(int(ids[-1])), 1.0)]
            case _:  # now and then without its proposal
                proposal = proposal_of(ids.tolist(), shares)
                if len(text) % 2 == 0 and proposal is not None:
                    return sampled(proposal)
                drafts = map(SampledDraft, ids.tolist())
                return [*zip(drafts, shares.tolist(), strict=True)]

    def chains(self, text, hand, count):
        """Yield each chain of `count` drafts that begins with `hand`, and its probability."""
        if len(hand) >= count:
            yield hand, 1.0
            return
        for offer, share in self.offers((*text, *tokens_of(hand))):
            for chain, others in self.chains(text, (*hand, offer), count):
                yield chain, share * others


def sampled(proposal):
    tokens, weights = proposal.shares()
    drafts = [SampledDraft(int(token), proposal) for token in tokens]
    return [*zip(drafts, weights.tolist(), strict=True)]


def tokens_of(chain):
    return tuple(draft.token for draft in chain)


def endings(block):
    """Yield each number of drafts that may stand, and its probability.

    The last coin within its height decides.
    """
    above = 1.0
    for stood in range(len(block.offers), 0, -1):
        yield stood, above * block.heights[stood - 1]
        above *= 1 - block.heights[stood - 1]
    yield 0, above


def stepped(target, text, chain, drafts):
    """Yield the ids that a step may commit, the rest of the chain, and the probability of both.

    drafts: the number of drafts of the chain that the step verifies.
    """
    offers = chain[: drafts + 1]
    tokens = tokens_of(offers)
    distributions = [target.distribution((*text, *tokens[:i])) for i in range(len(offers))]
    block = Block.of(distributions, offers)
    for stood, share in endings(block) if offers else [(0, 1.0)]:
        if share < 1e-15:
            continue
        if stood == len(offers) > drafts:
            yield tokens, chain[stood:], share
            continue
        if stood == len(offers):
            weights = target.distribution((*text, *tokens))
        else:
            weights = block.left(stood)
            assert weights[tokens[stood]] == 0, "a correction that is the draft which it replaces"
        for token in np.flatnonzero(weights):
            likely = float(weights[token] / weights.sum())
            yield (*tokens[:stood], int(token)), (), share * likely


def text_probs(target, drafter, schedule):
    """Return the probability of each text.

    schedule: the least number of drafts in hand, and the number verified, of each step.
    """
    states = {((), ()): 1.0}
    texts = defaultdict(float)
    for hand, drafts in schedule:
        after = defaultdict(float)
        for (text, left), share in states.items():
            for chain, drawn in drafter.chains(text, left, hand):
                for new, kept, likely in stepped(target, text, chain, drafts):
                    longer = (*text, *new)
                    probability = share * drawn * likely
                    if len(longer) >= LENGTH:
                        texts[longer[:LENGTH]] += probability
                    else:
                        after[longer, kept] += probability
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
    target = Target(SAMPLING[sampling], 3)
    found = text_probs(target, Drafter(form, 3), SCHEDULES[schedule])
    assert sum(found.values()) == pytest.approx(1, abs=1e-12)
    for text, share in target.texts():
        assert found[text] == pytest.approx(share, abs=1e-12), text


@pytest.fixture
def pair():
    return Target(SAMPLING["plain"], 4), Drafter("fine", 4)


def test_blocks_accept_more_than_single_drafts(pair):
    """A single draft stands with the probability min(1, p/q)."""
    target, drafter = pair
    blocks = 0.0
    singles = 0.0
    for chain, drawn in drafter.chains((), (), 3):
        tokens = tokens_of(chain)
        distributions = [target.distribution(tokens[:i]) for i in range(3)]
        for stood, share in endings(Block.of(distributions, chain)):
            blocks += drawn * stood * share
        standing = 1.0
        for probs, offer in zip(distributions, chain, strict=True):
            standing *= Block.of([probs], [offer]).heights[0]
            singles += drawn * standing
    assert blocks > singles + 1e-4


def test_one_draft_stands_as_often_as_the_distributions_overlap(pair):
    target, drafter = pair
    first = target.distribution(())
    stands = 0.0
    for chain, drawn in drafter.chains((), (), 1):
        stands += drawn * Block.of([first], chain).heights[0]
    ids, shares = chain[0].shares()
    assert stands == pytest.approx(np.minimum(first[ids], shares).sum(), abs=1e-12)


# --- ids of a step, row by row

HOT = SamplingParams(temperature=1.0, seed=3)
LOGITS = np.array([[3.0, 2.0, 0.0, -9.0]] * 4, np.float32)
LAW = Sampler(HOT).distribution(LOGITS[0])


def verified(params, logits, offers, base=3):
    """Return the rows of a step."""
    return VerifiedRows(
        base=base,
        prefix=Prefix(crc=77),
        logits=logits,
        offers=offers,
        sampler=lambda _: Sampler(params),
    )


def judged(params):
    """Return the first id that is committed if a 1 was drafted."""
    rows = verified(params, LOGITS, (SampledDraft(1),), base=10)
    return accept([1], strategy_of(params)(rows), end_ids=(), room=9).committed[0]


def own(params):
    """Return the target's own choice."""
    return Sampler(params).choose(LOGITS[0], 10)


@pytest.mark.parametrize("seed", range(5))
@cases(
    "strategy, temperature",
    """
    ["deterministic", 1]
    ["greedy", 1]
    ["probabilistic", 0]
    ["of a later version", 1]
    """,
)
def test_other_strategies_commit_the_targets_own_choice(strategy, temperature, seed):
    params = replace(HOT, seed=seed, strategy=strategy, temperature=temperature)
    assert not uses_proposals(params)
    assert judged(params) == own(params)


@pytest.mark.parametrize("strategy", ["deterministic", "probabilistic", "threshold"])
@given(st.lists(st.lists(st.integers(-1, 1), min_size=5, max_size=5), min_size=3, max_size=3))
def test_greedy_is_what_the_sampler_chooses(strategy, logits):
    """Of equal logits the lowest id is chosen."""
    params = SamplingParams(strategy=strategy, threshold=1.0)
    rows = np.array(logits, np.float32)
    offers = tuple(map(SampledDraft, (1, 4, 0)))
    choose = strategy_of(params)(verified(params, rows, offers))
    for at in range(3):
        assert choose(at) == Sampler(params).choose(rows[at], 3)


@pytest.mark.parametrize("seed", range(5))
def test_a_draft_of_the_threshold_stands(seed):
    """One below it is replaced."""
    params = replace(HOT, seed=seed, strategy="threshold")
    assert judged(replace(params, threshold=float(LAW[1] - 1e-9))) == 1
    assert judged(replace(params, threshold=float(LAW[1] + 1e-9))) == own(params)


@st.composite
def offered(draw):
    """A draft of any peer, honest or not: any token in any distribution, or in none."""
    ids = draw(st.lists(st.integers(0, 5), min_size=1, max_size=6, unique=True))
    weight = st.sampled_from([1, 2, 300, HEAVIEST])
    weights = draw(st.lists(weight, min_size=len(ids), max_size=len(ids)))
    proposal = draw(st.sampled_from([Proposal(tuple(ids), tuple(weights)), None]))
    return SampledDraft(draw(st.sampled_from(ids)), proposal)


scores = st.sampled_from([0.0, 1.0, -3.0, -60.0, -1e9, -np.inf])
rows_of_scores = st.lists(scores, min_size=5, max_size=5)
filter_sets = st.sampled_from([{}, {"top_k": 2}, {"top_p": 0.5}, {"temperature": 0.01}])
offer_lists = st.lists(offered(), max_size=4)


@given(offer_lists, rows_of_scores, st.integers(0, 2**32 - 1), filter_sets, st.booleans())
def test_a_lying_drafter_brings_nothing_impossible(offers, logits, seed, filters, more):
    """Each token is one that the target's filters leave; a draft is not replaced by itself."""
    params = replace(HOT, seed=seed, strategy="probabilistic", **filters)
    drafts = max(len(offers) - int(more), 0)
    rows = np.array([[1.0, *logits]] * (drafts + 1), np.float32)
    choose = strategy_of(params)(verified(params, rows, offers))
    tokens = [*tokens_of(offers)]
    verdict = accept(tokens[:drafts], choose, end_ids=(), room=9)
    assert list(verdict.committed[: verdict.accepted]) == tokens[: verdict.accepted]
    probs = Sampler(params).distribution(rows[0])
    assert all(probs[token] > 0 for token in verdict.committed)
    if verdict.accepted < drafts:
        assert verdict.committed[-1] != tokens[verdict.accepted]


# --- the accept rule

END = 0


@pytest.mark.parametrize("room", [1, 2, 9])
@pytest.mark.parametrize("length", range(4))
def test_every_small_case(length, room):
    """The target is asked for one id after the other."""
    every_draft = itertools.product(range(3), repeat=length)
    every_target = itertools.product(range(3), repeat=length + 1)
    for drafts, target in itertools.product(every_draft, every_target):
        accepted = 0
        while accepted < length and drafts[accepted] == target[accepted]:
            accepted += 1
        committed = target[: min(room, accepted + 1)]
        if END in committed:
            committed = committed[: committed.index(END) + 1]
        accepted = min(accepted, len(committed))
        choose = Mock(side_effect=target)
        verdict = accept(drafts, choose, end_ids={END}, room=room)
        tested = min(len(committed), length)
        assert verdict == Acceptance(committed, accepted, tested, committed[-1] == END)
        assert choose.call_args_list == [*map(call, range(len(committed)))]


# --- proposals: as few ids as carry the distribution

many_scores = st.lists(st.floats(-20, 20, width=32), min_size=2, max_size=200)


@given(many_scores, st.sampled_from([0, 5]), st.sampled_from([0.5, 1.0, 3.0]))
def test_a_proposal_is_the_likeliest_of_the_distribution(scores, top_k, temperature):
    logits = np.array(scores, np.float32)
    sampler = Sampler(SamplingParams(temperature=temperature, top_k=top_k))
    proposing = ProposalSampler(sampler, 7)
    token = proposing.choose(logits, 3)
    proposal = proposing.proposal
    probs = sampler.distribution(logits)
    assert proposal.fits(token, len(logits))
    assert proposal.weights[0] == HEAVIEST
    ids, shares = proposal.shares()
    carried = probs[ids].sum()
    assert carried > 0.96 or len(ids) == MAX_PROPOSAL
    assert carried - probs[ids[-1]] < 0.98, "less would have been enough"
    off = np.abs(shares - probs[ids] / carried)
    assert off.max() < 2 / HEAVIEST


@cases(
    "ids, weights, fits",
    """
    [[1, 2], [3, 4], true]
    [[2], [1], true]
    [[], [], false]
    [[1, 3], [3, 4], false]
    [[2, 2], [3, 4], false]
    [[2, 1], [3, 0], false]
    [[2, 1], [3, $TOO], false]
    [[2, 10], [3, 4], false]
    [[2, -1], [3, 4], false]
    [[2, 1], [3], false]
    """,
    TOO=HEAVIEST + 1,
)
def test_proposals_of_a_peer(ids, weights, fits):
    assert Proposal(tuple(ids), tuple(weights)).fits(2, 10) == fits


def test_a_proposal_of_too_many_ids():
    ids = (2, *range(10, 10 + MAX_PROPOSAL))
    assert not Proposal(ids, (1,) * len(ids)).fits(2, 1000)
