"""Texts of the strategy `probabilistic`, over the links and with the drafters of the simulated worlds.

Such texts depend on the drafts, and only their distribution does not. Of each step a referee says what must come of it,
by its drafts and what they were sampled from. Of many texts the tokens are held against the target's distribution.
"""

import random
from collections import Counter
from dataclasses import dataclass

import pytest
from harness.truth import place, surprise
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated_drafters import Drafter, HonestDrafter
from simulated_world import PROMPT, Faults, World, check, drafters, probabilistic, worlds_of

from fuzz.oracle import END, N_VOCAB, row, said
from specmesh.core.prefix import Prefix
from specmesh.core.sampling.sampler import Penalties, Sampler, SamplingParams
from specmesh.core.sampling.strategy import Strategy
from specmesh.core.session_params import SessionParams


@dataclass
class Refereed(World):
    """A world in which the referee looks at each step."""

    def finished(self, step, rows, seconds):
        """Each session says what its drafts lead to, by drafts and distributions that its drafter has made."""
        shall = {
            span.seq: self.refereed(span, logits)
            for span, logits in zip(step.spans, rows, strict=True)
        }
        before = {key: len(self.core.prefix(key)) for key in shall}
        super().finished(step, rows, seconds)
        for key, ids in shall.items():
            assert self.core.prefix(key)[before[key] :] == ids

    def refereed(self, span, logits):
        served, ids = self.sessions[span.seq], self.core.prefix(span.seq)
        if logits is None:
            return []
        offers = self.core.in_hand(span.seq, span.ids[1:])
        if isinstance(served.drafter, HonestDrafter) and self.faults.damage == 0:
            for i, offer in enumerate(offers):
                made = served.drafter.proposed(Prefix([*ids, *(one.token for one in offers[:i])]))
                assert (offer.token, offer.proposal) == made, (
                    "not what its drafter has sampled it from"
                )
        self.seen["beyond the rows"] += len(offers) > len(span.ids) - 1
        self.seen["blocks"] += len(offers) > 1
        shall = said(served.params.sampling, Prefix(ids), list(logits), offers)[
            : self.core.room(span.seq)
        ]
        return shall[: shall.index(END) + 1] if END in shall else shall


def possible(world, key):
    """A text that depends on the drafts, and how it ends: each token is one that the target may say."""
    served = world.sessions[key]
    prefix, shown = Prefix(served.prompt), world.core.prefix(key)[len(served.prompt) :]
    sampler = Sampler(served.params.sampling)
    for token in shown:
        probs = sampler.after(prefix[0 : len(prefix)]).distribution(
            row(prefix.crc, end_bias=world.end_bias)
        )
        assert probs[token] > 0, "what the filters leave out"
        prefix.extend([token])
    if END in shown:
        assert shown.index(END) == len(shown) - 1 < served.params.max_tokens
        return shown[:-1], "stop"
    assert len(shown) == served.params.max_tokens or len(prefix) == world.n_ctx
    return shown, "length"


@settings(max_examples=settings().max_examples // 4)
@given(
    worlds_of(Refereed),
    st.lists(st.tuples(probabilistic, st.lists(drafters, max_size=3)), min_size=1, max_size=2),
)
def test_probabilistic_steps_say_what_their_drafts_lead_to(world, opened):
    """Any drafters over any link, also such as lie about their distributions: each step is block verification of the
    drafts in hand, as they were sampled, and nothing is said that the target's filters leave out."""
    for number, (params, attached) in enumerate(opened):
        world.open(params, attached, (*PROMPT, number + 1))
    check(world.run(), possible)


@settings(max_examples=settings().max_examples // 10)
@given(worlds_of(Refereed), probabilistic, drafters, drafters, st.sampled_from([0.05, 0.3, 1.0]))
def test_probabilistic_steps_with_two_drafters(world, params, first, second, swaps):
    """The same where two drafters change places all the time: drafts of the one are never held against the other's
    distributions."""
    world.open(params, [first])
    world.share(1, second, swaps)
    check(world.run(), possible)


def ranks(world, luck):
    """A number for each token of the world's texts, uniform where they have the target's distribution, by what an
    inaccurate drafter likes."""
    for key, served in world.sessions.items():
        prefix, sampler = Prefix(served.prompt), Sampler(served.params.sampling)
        for token in world.core.prefix(key)[len(served.prompt) :]:
            probs = sampler.after(prefix[0 : len(prefix)]).distribution(
                row(prefix.crc, end_bias=world.end_bias)
            )
            yield place(probs, row(prefix.crc ^ 1, end_bias=0.0), token, luck.random())
            prefix.extend([token])


@pytest.mark.parametrize("worlds", [16, pytest.param(48, marks=pytest.mark.slow)])
def test_probabilistic_texts_over_bad_links_have_the_targets_distribution(worlds):
    """Frames that are lost, late and doubled, drafters that die and change places, steps and drafts in any order: the
    tokens come as often as the target alone says them."""
    found, seen, accepted, luck = list[float](), Counter(), 0, random.Random(1)
    for seed in range(worlds):
        round_trip, faults = [0.0003, 0.02, 0.08][seed % 3], Faults(0.03, 0.1, 0.1)
        world = Refereed(
            n_ctx=4096, end_bias=-100.0, seed=seed, faults=faults, round_trip=round_trip
        )
        for number, draft_n in enumerate((None, 4, 8)):
            penalties = Penalties(1.2, 0.2, 0.2, 8) if number == 1 else Penalties()
            noise = 1000 * seed + number
            sampling = SamplingParams(
                temperature=1.0, seed=noise, penalties=penalties, strategy=Strategy.PROBABILISTIC
            )
            attached = [Drafter(0.95, life=1.0), Drafter(0.85)]
            world.open(
                SessionParams(sampling, 120, draft_n), attached, (*PROMPT, seed % N_VOCAB, number)
            )
        world.share(1, Drafter(0.9), 1.0)
        check(world.run(), possible)
        found += ranks(world, luck)
        seen += world.seen
        accepted += sum(round_[2] for served in world.sessions.values() for round_ in served.rounds)
    assert len(found) == worlds * 3 * 120
    assert accepted > len(found) / 5
    assert (
        min(seen[what] for what in ("DraftProbs of a drafter", "blocks", "beyond the rows", "lost"))
        > 32 * worlds
    )
    assert seen["swaps"] > 2 * worlds
    assert abs(surprise(found, 20)) < 4
