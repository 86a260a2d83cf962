"""Requests, sampling options, drafts and prefixes as messages, and back."""

from dataclasses import replace

import pytest

from specmesh.core import events as ev
from specmesh.core.prefix import Prefix
from specmesh.core.requests import DrafterRequest, Request
from specmesh.core.sampling.constraint import MAX_GRAMMAR, Grammar, GrammarKind, check_grammar
from specmesh.core.sampling.proposal import HEAVIEST, MAX_PROPOSAL, Proposal
from specmesh.core.sampling.sampler import MAX_BIASES, Penalties, SamplingParams, check_sampling
from specmesh.core.sampling.stop import MAX_LENGTH, MAX_STOPS, check_stops
from specmesh.core.session_params import MAX_DRAFTS, ChatMessage, SessionParams
from specmesh.daemons.drafter.upstream_link import open_of
from specmesh.daemons.link.frames import fields_of, frame_of, opened, params_of
from specmesh.daemons.verifier.drafters import frames_of, from_drafter, requested
from specmesh.errors import RequestError
from specmesh.wire import messages as m
from specmesh.wire.codec import decode, encode

PARAMS = SamplingParams(0.5, 40, 0.9, 7)
GRAMMAR = Grammar(GrammarKind.JSON_SCHEMA, '{"type": "object"}')
ORDER = m.Open(9, "hi", 20, 0.5, 40, 0.9, 7, m.DRAFT_N_AUTO)


def test_what_is_asked_for():
    """OPEN's fields as a request; numbers that no session can have are brought into range."""
    assert requested(ORDER) == Request("hi", None, SessionParams(PARAMS, 20, None))
    more = replace(ORDER, max_tokens=0, draft_n=60_000, rounds=True, ids=[1, 2], messages=[{"role": "user"}])
    params = SessionParams(PARAMS, 0, MAX_DRAFTS)
    assert requested(more) == Request("hi", (1, 2), params, True, (ChatMessage("user", ""),))
    chat = (ChatMessage("user", "hi", "ann"), ChatMessage("assistant", "The "))
    asked = Request("", None, params, messages=chat, continued=True)
    assert requested(decode_one(open_of(DrafterRequest(asked, None), 9))) == asked
    resumed = requested(replace(ORDER, ids=[1, 2, 3], n_prompt=2, name="cmpl-1", adopt=True))
    assert (resumed.prompt_ids, resumed.generated, resumed.id, resumed.named_only) == ((1, 2), (3,), "cmpl-1", True)
    for wrong in (
        replace(ORDER, stop=["x"] * 17),
        replace(ORDER, ids=[1], n_prompt=2),
        replace(ORDER, min_p=2.0),
        replace(ORDER, temperature=-1.0),
        replace(ORDER, temperature=1e308),
        replace(ORDER, top_p=-1.0),
        replace(ORDER, top_p=7.0),
        replace(ORDER, max_tokens=2**32 - 1),
        replace(ORDER, biases=[1.0]),
        replace(ORDER, grammar=GRAMMAR.text, grammar_kind="regex"),
        replace(ORDER, grammar="[]", grammar_kind="json_schema"),
        replace(ORDER, grammar=" " * 70_000, grammar_kind="json_schema"),
    ):
        with pytest.raises(RequestError):
            requested(wrong)


def decode_one(message):
    return decode(encode(message))


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(1.0, 3, 0.5, 2**32 - 1, 0.1, Penalties(1.1, 0.5, -0.5, 9), ((5, 1.5), (0, -1e9))),
        SamplingParams(1.0, penalties=Penalties(2.0, window=-1)),
    ],
)
def test_sampling_crosses_the_wire(params: SamplingParams):
    """Parameters as the fields of OPEN, through bytes, and of the OPENED that answers, are what they were."""
    asked = SessionParams(params, 20, stop=("x",), logprobs=2, grammar=GRAMMAR, cache_prompt=False)
    order = decode_one(m.Open(9, "hi", draft_n=0, **fields_of(asked)))
    assert params_of(order) == params_of(opened(3, 12, asked, 9)) == asked
    assert requested(order).params == replace(asked, draft_n=0)


def test_the_largest_law_fits_a_frame():
    """What a drafter may sample from is what a frame may say: as many tokens, as heavy."""
    assert m.MAX_SUPPORT == MAX_PROPOSAL
    law = Proposal(tuple(range(MAX_PROPOSAL)), (HEAVIEST,) * MAX_PROPOSAL)
    drafts = ev.Drafted(3, 9, (5,) * 32, (law,) * 32)
    assert from_drafter(decode(encode(frame_of(7, drafts)))).proposals == (law,) * 32


def test_the_largest_session_fits_a_frame():
    """What a request may have at most, in what JSON needs most for, is announced in one OPENED."""
    biases = tuple((2**32 - 1, -1.2345678901234567e-300) for _ in range(MAX_BIASES))
    grammar = check_grammar(Grammar(GrammarKind.GBNF, '"' * MAX_GRAMMAR))
    stops = check_stops(["\x01" * MAX_LENGTH] * MAX_STOPS)
    params = SessionParams(check_sampling(SamplingParams(logit_bias=biases)), 20, stop=stops, grammar=grammar)
    assert params_of(decode_one(opened(3, 12, params))) == params


def test_a_long_prefix_is_synced_in_frames_that_place_themselves():
    """Every SYNC frame starts where the one before ended and carries the CRC of all ids before it."""
    ids = tuple(range(2 * m.MAX_TOKENS + 3))
    prefix = Prefix(ids)
    frames = list(frames_of(7, ev.Told(0, 0, ids, 4, sync=True)))
    assert [frame.base for frame in frames] == [0, m.MAX_TOKENS, 2 * m.MAX_TOKENS]
    assert [frame.prefix_crc for frame in frames] == [prefix.crc_at(frame.base) for frame in frames]
    assert [token for frame in frames for token in frame.ids] == list(ids)
