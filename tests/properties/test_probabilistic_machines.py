"""Texts of the strategy `probabilistic` in simulated worlds.

Such texts depend on the drafts, and only their distribution does not. A referee works each step out
from its drafts and their proposals. The tokens of many texts are compared with the target's
distribution.
"""

import random
from collections import Counter
from dataclasses import dataclass

import pytest
from harness.truth import place, surprise
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated_drafters import Drafter, HonestDrafter
from simulated_world import (
    EDITS,
    PROMPT,
    Faults,
    World,
    check,
    drafters,
    predicted_text,
    probabilistic,
    worlds_of,
)

from fuzz.oracle import END, N_VOCAB, row, said
from specmesh.core.prefix import Prefix
from specmesh.core.sampling.sampler import Penalties, Sampler, SamplingParams
from specmesh.core.sampling.strategy import Strategy
from specmesh.core.session_params import SessionParams


@dataclass(kw_only=True)
class Refereed(World):
    """A world in which a referee looks at each step."""

    def finished(self, step, rows, seconds):
        """Assert that each session commits the ids that its drafts and their proposals lead to."""
        expected = {}
        for span, logits in zip(step.spans, rows, strict=True):
            expected[span.seq] = self.core.prefix(span.seq) + self.refereed(span, logits)
        super().finished(step, rows, seconds)
        for key, ids in expected.items():
            assert self.core.prefix(key) == ids

    def refereed(self, span, logits):
        """Return the ids that a session must commit."""
        if logits is None:
            return []
        served = self.sessions[span.seq]
        ids = self.core.prefix(span.seq)
        offers = self.core.in_hand(span.seq, span.ids[1:])
        honest = isinstance(served.drafter, HonestDrafter) and self.faults.damage == 0
        if honest:
            check_proposals(served.drafter, ids, offers)
        self.seen["beyond the rows"] += int(len(offers) >= len(span.ids))
        self.seen["blocks"] += int(len(offers) > 1)
        committed = said(served.params.sampling, Prefix(ids), list(logits), offers)
        committed = committed[: self.core.room(span.seq)]
        if END in committed:
            return committed[: committed.index(END) + 1]
        return committed


def check_proposals(drafter, ids, offers):
    """Assert that each proposal is the one that its drafter has sampled the draft from.

    Drafts of other sources have none.
    """
    prefix = Prefix(ids)
    for offer in offers:
        if offer.proposal is not None:
            assert (offer.token, offer.proposal) == drafter.proposed(prefix)
        prefix.extend([offer.token])


def probabilities(world, served, tokens):
    """Yield the prefix before each token, and the target's distribution there."""
    prefix = Prefix(served.prompt)
    sampler = Sampler(served.params.sampling)
    for token in tokens:
        logits = row(prefix.crc, end_bias=world.end_bias)
        yield prefix, sampler.after(prefix[0 : len(prefix)]).distribution(logits)
        prefix.extend([token])


def generated(world, key):
    prompt = world.sessions[key].prompt
    return world.core.prefix(key)[len(prompt) :]


def possible(world, key):
    """Return a session's text and how it must end; each token is one that the filters allow."""
    served = world.sessions[key]
    ids = generated(world, key)
    for token, (_, probs) in zip(ids, probabilities(world, served, ids), strict=True):
        assert probs[token] > 0
    if END in ids:
        assert ids.index(END) == len(ids) - 1 < served.params.max_tokens
        return ids[:-1], "stop"
    full = len(served.prompt) + len(ids) == world.n_ctx
    assert full or len(ids) == served.params.max_tokens
    return ids, "length"


@settings(max_examples=settings().max_examples // 4)
@given(
    worlds_of(Refereed),
    st.lists(st.tuples(probabilistic, st.lists(drafters, max_size=3)), min_size=1, max_size=2),
)
def test_probabilistic_steps_are_block_verification(world, sessions):
    """Also with drafters that lie about their distributions, over any link."""
    world.open_all(sessions)
    check(world.run(), possible)


@settings(max_examples=settings().max_examples // 10)
@given(worlds_of(Refereed), probabilistic, drafters, drafters, st.sampled_from([0.05, 0.3, 1.0]))
def test_probabilistic_steps_with_two_drafters(world, params, first, second, swaps):
    """Drafts of the one are never compared with the other's distributions."""
    world.open(params, [first])
    world.share(1, second, swaps)
    check(world.run(), possible)


@settings(max_examples=settings().max_examples // 4)
@given(worlds_of(Refereed), probabilistic, st.lists(drafters, max_size=2), EDITS)
def test_probabilistic_steps_with_a_prediction(world, params, attached, kind):
    """A predicted draft was sampled from nothing, also if a drafter has the same one."""
    world.open(params, attached, predicted=predicted_text(kind, params, PROMPT, world))
    check(world.run(), possible)


def ranks(world, luck):
    """Yield a number for each token, by the tastes of an inaccurate drafter.

    The numbers are uniform if the tokens have the target's distribution.
    """
    for key, served in world.sessions.items():
        ids = generated(world, key)
        for token, (prefix, probs) in zip(ids, probabilities(world, served, ids), strict=True):
            tastes = row(prefix.crc ^ 1, end_bias=0.0)
            yield place(probs, tastes, token, luck.random())


PENALTIES = (Penalties(), Penalties(1.2, 0.2, 0.2, 8), Penalties())


def bad_world(seed):
    """Return a world that has run: lost, late and doubled frames, drafters that die or swap."""
    world = Refereed(
        n_ctx=4096,
        end_bias=-100.0,
        seed=seed,
        faults=Faults(0.03, 0.1, 0.1),
        round_trip=[0.0003, 0.02, 0.08][seed % 3],
    )
    for number, draft_n in enumerate((None, 4, 8)):
        sampling = SamplingParams(
            temperature=1.0,
            seed=1000 * seed + number,
            penalties=PENALTIES[number],
            strategy=Strategy.PROBABILISTIC,
        )
        attached = [Drafter(accuracy=0.95, life=1.0), Drafter(accuracy=0.85)]
        prompt = (*PROMPT, seed % N_VOCAB, number)
        world.open(SessionParams(sampling, 120, draft_n=draft_n), attached, prompt)
    world.share(1, Drafter(accuracy=0.9), 1.0)
    return world.run()


@pytest.mark.parametrize("worlds", [8, pytest.param(48, marks=pytest.mark.slow)])
def test_probabilistic_texts_over_bad_links_have_the_targets_distribution(worlds):
    found = []
    seen = Counter()
    accepted = 0
    luck = random.Random(1)
    for seed in range(worlds):
        world = bad_world(seed)
        check(world, possible)
        found += ranks(world, luck)
        seen += world.seen
        accepted += sum(served.accepted for served in world.sessions.values())
    assert len(found) == worlds * 3 * 120
    assert accepted > len(found) / 5
    for event in ("DraftProbs of a drafter", "blocks", "beyond the rows", "lost"):
        assert seen[event] > 32 * worlds
    assert seen["swaps"] > 2 * worlds
    assert abs(surprise(found, 20)) < 4
