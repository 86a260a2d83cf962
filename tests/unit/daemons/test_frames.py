"""Requests, sampling options, drafts and prefixes as messages, and back; prefixes name themselves by a CRC."""

import struct
from binascii import crc32
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specmesh.core.draft_length.controller import DraftLengthController
from specmesh.core.draft_length.speculation import SharedSpeculations
from specmesh.core.draft_length.step_costs import StepCosts
from specmesh.core.prefix import Prefix
from specmesh.core.requests import DrafterRequest, Request, open_of, requested
from specmesh.core.sampling.constraint import MAX_GRAMMAR, Grammar, GrammarKind, check_grammar
from specmesh.core.sampling.proposal import HEAVIEST, MAX_PROPOSAL, Proposal, flattened, unflattened
from specmesh.core.sampling.sampler import MAX_BIASES, Penalties, SamplingParams
from specmesh.core.session_params import ChatMessage, SessionParams, stops_of, wire_params
from specmesh.core.statistics.counters import SessionTimes
from specmesh.core.text.stop import MAX_STOPS, MAX_TOGETHER
from specmesh.core.verifier.truth_sender import TruthSender
from specmesh.errors import RequestError
from specmesh.wire import messages as m
from specmesh.wire.codec import decode, encode

PARAMS = SessionParams(SamplingParams(temperature=0.5, top_k=40, top_p=0.9, seed=7), 20)
GRAMMAR = Grammar(GrammarKind.JSON_SCHEMA, '{"type": "object"}')
ORDER = m.Open(ref=9, prompt="hi", options=PARAMS.named())


def decode_one(message):
    return decode(encode(message))


def test_what_is_asked_for():
    assert requested(ORDER) == Request("hi", None, PARAMS)
    more = replace(
        ORDER, options=replace(PARAMS, draft_n=3).named(), ids=[1, 2], messages=[{"role": "user"}]
    )
    params = replace(PARAMS, draft_n=3)
    assert requested(more) == Request("hi", (1, 2), params, messages=(ChatMessage("user", ""),))
    chat = (ChatMessage("user", "hi", "ann"), ChatMessage("assistant", "The "))
    asked = Request("", None, params, messages=chat, continued=True)
    assert requested(decode_one(open_of(DrafterRequest(asked, None), 9))) == asked
    resumed = requested(replace(ORDER, ids=[1, 2, 3], n_prompt=2, name="cmpl-1", adopt=True))
    assert (resumed.prompt_ids, resumed.generated, resumed.id, resumed.named_only) == (
        (1, 2),
        (3,),
        "cmpl-1",
        True,
    )
    with pytest.raises(RequestError):
        requested(replace(ORDER, ids=[1], n_prompt=2))


@pytest.mark.parametrize(
    ("text", "kind"),
    [(GRAMMAR.text, "regex"), ("[]", "json_schema"), (" " * 70_000, "json_schema")],
)
def test_grammars_that_no_session_can_have(text, kind):
    with pytest.raises(RequestError):
        requested(replace(ORDER, options=ORDER.options | {"grammar": text, "grammar_kind": kind}))


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(
            temperature=1.0,
            top_k=3,
            top_p=0.5,
            seed=2**32 - 1,
            min_p=0.1,
            penalties=Penalties(1.1, 0.5, -0.5, 9),
            logit_bias=((5, 1.5), (0, -1e9)),
        ),
        SamplingParams(temperature=1.0, penalties=Penalties(2.0, window=-1)),
    ],
)
def test_sampling_crosses_the_wire(params: SamplingParams):
    """As options of OPEN, through bytes, they are what they were."""
    asked = SessionParams(params, 20, 5, ("x",), logprobs=2, grammar=GRAMMAR, cache_prompt=False)
    assert (
        wire_params(decode_one(m.Open(ref=9, prompt="hi", options=asked.named())).options) == asked
    )


def test_the_largest_distribution_fits_a_frame():
    """What a drafter may sample from is what a frame may say: as many tokens, as heavy."""
    assert m.MAX_SUPPORT == MAX_PROPOSAL
    proposal = Proposal(tuple(range(MAX_PROPOSAL)), (HEAVIEST,) * MAX_PROPOSAL)
    drafts = decode_one(m.DraftProbs(7, 3, 9, (5,) * 32, *flattened((proposal,) * 32)))
    assert unflattened((drafts.sizes, drafts.support, drafts.weights)) == (proposal,) * 32


def test_the_largest_session_fits_a_frame():
    """What a request may have at most, in what JSON needs most for, is announced in one OPENED."""
    biases = tuple((2**31 - 1, -1.2345678901234567e-300) for _ in range(MAX_BIASES))
    grammar = check_grammar(Grammar(GrammarKind.GBNF, '"' * MAX_GRAMMAR))
    stops = stops_of(["\x01" * (MAX_TOGETHER // MAX_STOPS)] * MAX_STOPS)
    params = SessionParams(SamplingParams(logit_bias=biases), 20, stop=stops, grammar=grammar)
    assert wire_params(decode_one(m.Opened(3, 0, 12, params.named())).options) == params


def sending(ids, draft_n):
    prefix = Prefix(ids)
    draft_length = DraftLengthController(
        fixed=draft_n,
        most=24,
        costs=StepCosts(),
        shared=SharedSpeculations(),
        times=SessionTimes(opened=0.0),
    )
    return TruthSender(7, prefix, draft_length), prefix


def test_who_was_told_to_draft_hears_at_once_that_it_is_to_stop():
    sender, prefix = sending((1, 2, 3), 4)
    assert [sync.draft_n for sync in sender.begin()] == [4]
    prefix.extend((4,))
    assert [truth.ids for truth in sender.grown(3, 0, 0.0, idle=True)] == [(4,)]
    assert sender.grown(4, 0, 0.1, idle=True) == []


def test_who_is_off_hears_once_a_second_or_when_it_is_to_draft():
    """All of it, in frames that can be sent."""
    sender, prefix = sending((1, 2, 3), 0)
    heard = [ids for sync in sender.begin() for ids in sync.ids]
    for step in range(2, 41):
        base = len(prefix)
        prefix.extend(range(step))
        truths = sender.grown(base, 0, step / 10, idle=step != 25)
        assert bool(truths) == (step in (2, 12, 22, 25, 26, 36))  # 26: that it is to stop
        heard += [ids for truth in truths for ids in truth.ids]
    assert heard == prefix.ids[: len(heard)]
    prefix.extend(range(m.MAX_TOKENS - len(prefix)))
    [truth] = sender.grown(base, 0, 4.0, idle=True)
    assert [*heard, *truth.ids] == prefix.ids
    assert decode_one(truth) == truth
    accepted = list[int]()
    for _ in range(40):  # drafts of a grammar's own
        prefix.extend(range(24))
        for truth in sender.grown(len(prefix) - 24, 24, 4.0, idle=True):
            assert decode_one(truth) == truth
            accepted.append(truth.accepted)
    assert sum(accepted) > 40 * 24 - 256


def test_a_long_prefix_is_synced_in_frames_that_place_themselves():
    """Every SYNC frame starts where the one before ended and carries the CRC of all ids before it."""
    ids = tuple(range(2 * m.MAX_TOKENS + 3))
    sender, prefix = sending(ids, 4)
    frames = sender.begin()
    assert [frame.base for frame in frames] == [0, m.MAX_TOKENS, 2 * m.MAX_TOKENS]
    assert [frame.prefix_crc for frame in frames] == [prefix.crc_at(frame.base) for frame in frames]
    assert [token for frame in frames for token in frame.ids] == list(ids)


# --- prefixes name themselves by a CRC

ids = st.lists(st.integers(-(2**31), 2**31 - 1), max_size=30)


def crc_of(tokens):
    return crc32(struct.pack(f"<{len(tokens)}i", *tokens))


@given(ids, ids, st.integers(0, 40), st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))
def test_every_prefix_has_the_crc_of_its_bytes_and_no_other(first, second, length, base, crc):
    """Whatever was there before and was cut off."""
    prefix = Prefix(first)
    prefix.extend(second)
    prefix.truncate(length)
    prefix.extend(first)
    tokens = [*(first + second)[:length], *first]
    crcs = [crc_of(tokens[:n]) for n in range(len(tokens) + 1)]
    assert (len(prefix), prefix[0 : len(prefix)], prefix.crc) == (len(tokens), tokens, crcs[-1])
    assert [prefix.crc_at(n) for n in range(len(crcs))] == crcs
    assert all(prefix.holds(n, one) for n, one in enumerate(crcs))
    assert prefix.holds(base, crc) == (base <= len(tokens) and crcs[base] == crc)
