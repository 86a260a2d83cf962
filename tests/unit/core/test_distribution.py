"""The distribution of whole texts, by each strategy that claims to keep the target's, enumerated exactly.

Everything random is integrated out: what the drafter samples, by its proposals; the coins, by the heights that they are
held against; the corrections, by their weights. What is left is a probability for each text, which must be the
target's. Real noise is held against it in tests/properties, and by `make distribution`.
"""

import itertools
from collections import defaultdict
from functools import cache
from hashlib import blake2b
from math import prod

import numpy as np
import pytest

from specmesh.core.sampling.block_verification import Block
from specmesh.core.sampling.proposal import Proposal, SampledDraft, proposal_of
from specmesh.core.sampling.sampler import Penalties, Sampler, SamplingParams

PROMPT = (2, 1)
LENGTH = 3
"""Ids of a text whose distribution is looked at."""

SAMPLING = {
    "plain": SamplingParams(1.0),
    "hot": SamplingParams(1.7),
    "top-k": SamplingParams(0.7, top_k=2),
    "top-p": SamplingParams(1.0, top_p=0.8),
    "min-p": SamplingParams(1.2, min_p=0.3),
    "penalties": SamplingParams(0.9, penalties=Penalties(1.5, 0.3, 0.4)),
    "bias": SamplingParams(0.8, top_k=3, logit_bias=((0, 1.5),)),
}


@cache
def row(ids, salt, n_vocab):
    digest = blake2b(repr((salt, ids)).encode(), digest_size=n_vocab).digest()
    return np.frombuffer(digest, np.uint8).astype(np.float32) / np.float32(64)


class Target:
    def __init__(self, params, n_vocab):
        self.sampler, self.n_vocab = Sampler(params), n_vocab

    def distribution(self, said):
        ids = (*PROMPT, *said)
        return self.sampler.after(ids).distribution(row(ids, "target", self.n_vocab))

    def texts(self):
        for said in itertools.product(range(self.n_vocab), repeat=LENGTH):
            yield said, prod(float(self.distribution(said[:i])[said[i]]) for i in range(LENGTH))


class Drafter:
    """What a drafter samples from after some ids: another model's distribution, cut and rounded as `form` says."""

    def __init__(self, form, n_vocab):
        self.form, self.n_vocab = form, n_vocab
        self.sampler = Sampler(SamplingParams(0.8))

    def offers(self, said):
        """Each draft that it may make here, and how likely it makes it."""
        logits = row((*PROMPT, *said), "drafter", self.n_vocab)
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
                    return [(SampledDraft(int(token)), float(share)) for token, share in zip(ids, shares, strict=True)]
        tokens, weights = proposal.shares()
        return [
            (SampledDraft(int(token), proposal), float(share)) for token, share in zip(tokens, weights, strict=True)
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


@pytest.mark.parametrize(
    ("sampling", "form", "schedule"),
    [
        ("plain", "fine", "blocks of three"),
        ("plain", "coarse", "one more in hand"),
        ("plain", "mixed", "many in hand"),
        ("hot", "certain", "blocks of three"),
        ("hot", "unlikely", "drafts without rows"),
        ("top-k", "fine", "one more in hand"),
        ("top-p", "coarse", "many in hand"),
        ("min-p", "fine", "blocks of one"),
        ("penalties", "fine", "many in hand"),
        ("bias", "coarse", "blocks of three"),
    ],
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
        blocks += drawn * sum(stood * share for stood, share in endings(Block.of(distributions, chain)))
        alive = 1.0
        for probs, offer in zip(distributions, chain, strict=True):
            alive *= Block.of([probs], [offer]).heights[0]
            singles += drawn * alive
    assert blocks > singles + 1e-4
    first = [target.distribution(())]
    one = sum(drawn * Block.of(first, chain).heights[0] for chain, drawn in drafter.chains((), (), 1))
    ids, shares = chain[0].shares()
    assert one == pytest.approx(np.minimum(target.distribution(())[ids], shares).sum(), abs=1e-12)
