"""Requests, sampling options, drafts and prefixes as messages, and back."""

import struct
from binascii import crc32
from dataclasses import replace

import pytest
from harness.long_opens import frames_of, incoming_open
from hypothesis import given
from hypothesis import strategies as st

from specmesh.core.draft_length.controller import DraftLengthController
from specmesh.core.draft_length.speculation import Speculations
from specmesh.core.draft_length.step_costs import StepCosts
from specmesh.core.prefix import Prefix
from specmesh.core.request_frames import open_of, requested
from specmesh.core.requests import Request
from specmesh.core.sampling.constraint import MAX_GRAMMAR, Grammar, GrammarKind, check_grammar
from specmesh.core.sampling.proposal import HEAVIEST, MAX_PROPOSAL, Proposal, flattened, unflattened
from specmesh.core.sampling.sampler import MAX_BIASES, Penalties, SamplingParams
from specmesh.core.session_params import SessionParams, stops_of, wire_params
from specmesh.core.statistics.counters import SessionTimes
from specmesh.core.text.chat_message import ChatMessage
from specmesh.core.text.stop import MAX_STOPS, MAX_TOGETHER
from specmesh.core.verifier.truth_sender import TruthSender
from specmesh.errors import RequestError, UnfitMessage
from specmesh.wire import messages as m
from specmesh.wire.codec import decode, encode, encode_body

PARAMS = SessionParams(SamplingParams(temperature=0.5, top_k=40, top_p=0.9, seed=7), 20)
GRAMMAR = Grammar(GrammarKind.JSON_SCHEMA, '{"type": "object"}')
OPEN = m.Open(ref=9, prompt="hi", options=PARAMS.named())


def crossed(message):
    """Return a message as its receiver gets it."""
    return decode(encode(message))


CHAT = (ChatMessage("user", "hi", name="ann"), ChatMessage("assistant", "The "))


@pytest.mark.parametrize(
    "original",
    [
        Request("hi", None, PARAMS),
        Request("hi", (1, 2), PARAMS),
        Request("", None, PARAMS, messages=CHAT, continued=True),
    ],
    ids=["text", "ids", "chat"],
)
def test_requests_cross_the_wire(original):
    assert requested(crossed(open_of(original, 9))) == original


def test_ids_before_an_open_cross_the_wire():
    """The longest text is in frames of ids, and an OPEN that has their number."""
    original = replace(OPEN, ids=list(range(2**18)), n_prompt=2**17)
    incoming = incoming_open(2**18)
    *frames, order = map(crossed, frames_of(original))
    for frame in frames:
        incoming.take_ids(frame, 0.0)
    assert incoming.complete(order) == original


@pytest.mark.parametrize("letter", ["x", '"', "\x01", "世", "😀"])
def test_a_body_before_an_open_crosses_the_wire(letter):
    """Whatever JSON makes of its letters, the frames hold it."""
    original = replace(OPEN, messages=[{"role": "user", "content": letter * 400_000}])
    incoming = incoming_open(0)
    *pieces, order = map(crossed, frames_of(original))
    for piece in pieces:
        incoming.take_body(piece, 0.0)
    assert incoming.complete(order) == original


@pytest.mark.parametrize(
    ("takes_body", "most"), [(False, m.MAX_BODY), (True, m.MAX_OPEN_BODY)], ids=["before", "in it"]
)
def test_the_longest_body(takes_body, most):
    empty = len(encode_body(replace(OPEN, prompt="")))
    longest = replace(OPEN, prompt=(most - empty) * "x")
    assert frames_of(longest, takes_body=takes_body)
    with pytest.raises(UnfitMessage, match=str(most)):
        frames_of(replace(longest, prompt=longest.prompt + "x"), takes_body=takes_body)


@pytest.mark.parametrize(("takes_body", "count"), [(False, 1), (True, 3)], ids=["in it", "before"])
def test_a_body_of_more_than_a_piece(takes_body, count):
    """It goes ahead of the OPEN although that would hold it: a piece that is lost is noticed."""
    order = replace(OPEN, prompt=m.MAX_PIECE * "x")
    assert len(frames_of(order, takes_body=takes_body)) == count


def test_a_message_without_content_is_empty():
    order = replace(OPEN, messages=[{"role": "user"}])
    [message] = requested(order).messages
    assert message == ChatMessage("user", "")


def test_a_resumed_request():
    order = replace(OPEN, ids=[1, 2, 3], n_prompt=2, name="cmpl-1", adopt=True)
    resumed = requested(order)
    assert resumed.prompt_ids == (1, 2)
    assert resumed.generated == (3,)
    assert resumed.id == "cmpl-1"
    assert resumed.named_only


def of_form(text, kind):
    return {"options": {**OPEN.options, "grammar": text, "grammar_kind": kind}}


@pytest.mark.parametrize(
    "changes",
    [
        of_form("[]", "json_schema"),
        of_form(" " * 70_000, "json_schema"),
        of_form(GRAMMAR.text, "regex"),
        {"ids": [1], "n_prompt": 2},
    ],
    ids=["no schema", "too long", "of an unknown kind", "a prompt longer than its ids"],
)
def test_requests_that_no_session_can_have(changes):
    with pytest.raises(RequestError):
        requested(replace(OPEN, **changes))


FILTERS = SamplingParams(temperature=1.0, top_k=3, top_p=0.5, seed=2**32 - 1, min_p=0.1)
BIASES = SamplingParams(logit_bias=((5, 1.5), (0, -1e9)))
PENALTIES = SamplingParams(penalties=Penalties(1.1, 0.5, -0.5, 9))
WHOLE_WINDOW = SamplingParams(penalties=Penalties(2.0, window=-1))


@pytest.mark.parametrize("sampling", [SamplingParams(), FILTERS, BIASES, PENALTIES, WHOLE_WINDOW])
def test_options_cross_the_wire(sampling):
    params = SessionParams(
        sampling, 20, draft_n=5, stop=("x",), logprobs=2, grammar=GRAMMAR, cache_prompt=False
    )
    order = crossed(replace(OPEN, options=params.named()))
    assert wire_params(order.options) == params


def test_the_largest_distribution_fits_a_frame():
    """A frame holds as many tokens, as heavy, as a drafter may sample from."""
    assert m.MAX_SUPPORT == MAX_PROPOSAL
    tokens = tuple(range(MAX_PROPOSAL))
    weights = (HEAVIEST,) * MAX_PROPOSAL
    proposals = (Proposal(tokens, weights),) * 32
    message = m.DraftProbs(7, 3, 9, (5,) * 32, *flattened(proposals))
    drafts = crossed(message)
    assert unflattened((drafts.sizes, drafts.support, drafts.weights)) == proposals


def test_the_largest_session_fits_a_frame():
    """One OPENED holds the longest options of a request, in letters that JSON escapes."""
    biases = ((2**31 - 1, -1.2345678901234567e-300),) * MAX_BIASES
    grammar = check_grammar(Grammar(GrammarKind.GBNF, '"' * MAX_GRAMMAR))
    longest_stop = "\x01" * (MAX_TOGETHER // MAX_STOPS)
    stops = stops_of([longest_stop] * MAX_STOPS)
    params = SessionParams(SamplingParams(logit_bias=biases), 20, stop=stops, grammar=grammar)
    opened = crossed(m.Opened(3, 0, 12, params.named()))
    assert wire_params(opened.options) == params


# --- TRUTH and SYNC


class Sender:
    """A TruthSender with its prefix; `received`: the ids that its drafter got."""

    def __init__(self, ids, draft_n):
        self.prefix = Prefix(ids)
        controller = DraftLengthController(
            fixed=draft_n,
            most=24,
            costs=StepCosts(),
            speculations=Speculations(),
            times=SessionTimes(opened=0.0),
        )
        self.truths = TruthSender(7, self.prefix, controller)
        self.syncs = self.truths.begin()
        self.received = []
        self.note(self.syncs)

    def note(self, messages):
        for message in messages:
            assert crossed(message) == message
            self.received += message.ids

    def grow(self, ids, now, accepted=0, idle=True):
        """Return the TRUTH messages after a step that generated these ids."""
        base = len(self.prefix)
        self.prefix.extend(ids)
        messages = self.truths.grown(base, accepted, now, idle=idle)
        self.note(messages)
        return messages


def test_a_drafter_learns_at_once_that_it_is_to_stop():
    sender = Sender((1, 2, 3), 4)
    assert [sync.draft_n for sync in sender.syncs] == [4]
    [truth] = sender.grow((4,), 0.0)
    assert truth.ids == (4,)
    assert sender.grow((), 0.1) == []


def test_an_idle_drafter_gets_the_text_once_a_second_or_when_it_is_to_draft():
    """Step 25 wants drafts; step 26 ends them."""
    sender = Sender((1, 2, 3), 0)
    for step in range(2, 41):
        sent = sender.grow(range(step), step / 10, idle=step != 25)
        assert bool(sent) == (step in (2, 12, 22, 25, 26, 36))
    assert sender.received == sender.prefix[: len(sender.received)]


def test_a_long_text_does_not_wait_until_it_fits_no_frame():
    sender = Sender((1, 2, 3), 0)
    sender.grow((4,), 0.0)
    sender.grow(range(m.MAX_TOKENS), 0.1)
    assert sender.received == sender.prefix[0:]


def test_accepted_drafts_of_a_grammar_are_counted():
    """Counts of an idle drafter's TRUTH fit their field, and none is lost on the way."""
    sender = Sender((1, 2, 3), 0)
    accepted = 0
    for _ in range(40):
        for truth in sender.grow(range(24), 4.0, accepted=24):
            accepted += truth.accepted
    assert accepted > 40 * 24 - 256


def test_a_long_prefix_is_synced_in_frames_that_place_themselves():
    """Each SYNC frame starts at the end of the one before, with the CRC of all ids before it."""
    ids = list(range(2 * m.MAX_TOKENS + 3))
    sender = Sender(ids, 4)
    bases = [frame.base for frame in sender.syncs]
    assert bases == [0, m.MAX_TOKENS, 2 * m.MAX_TOKENS]
    for frame in sender.syncs:
        assert frame.prefix_crc == sender.prefix.crc_at(frame.base)
    assert sender.received == ids


def answered(sender, nack, seconds):
    """Return the ids of the answers to a NACK that comes each millisecond."""
    ids = 0
    for millisecond in range(1000 * seconds):
        for frame in sender.truths.nacked(nack, millisecond / 1000):
            ids += len(frame.ids)
    return ids


def test_nacks_for_a_long_text_cost_bounded_bytes():
    sender = Sender([1] * 100_000, 4)
    nack = m.Nack(7, 0, 0)
    assert answered(sender, nack, 10) <= 100_000 + 10 * 2**18


def test_nacks_near_the_end_of_a_long_text_are_answered_as_those_of_a_short_one():
    counts = []
    for length in (200, 100_000):
        sender = Sender([1] * length, 4)
        nack = m.Nack(7, length - 100, sender.prefix.crc_at(length - 100))
        counts.append(answered(sender, nack, 1))
    assert counts[0] == counts[1] > 1000


# --- prefixes name themselves by a CRC

ids = st.lists(st.integers(-(2**31), 2**31 - 1), max_size=30)
words = st.integers(0, 2**32 - 1)


@given(ids, ids, st.integers(0, 40))
def test_every_prefix_has_the_crc_of_its_bytes(first, second, length):
    """Ids that were there before and were cut off do not count."""
    prefix = Prefix(first)
    prefix.extend(second)
    prefix.truncate(length)
    prefix.extend(first)
    tokens = [*(first + second)[:length], *first]
    assert prefix[0 : len(prefix)] == tokens
    for base in range(len(tokens) + 1):
        crc = crc32(struct.pack(f"<{base}i", *tokens[:base]))
        assert prefix.crc_at(base) == crc
        assert prefix.holds(base, crc)
    assert prefix.crc == crc


@given(ids, words, words)
def test_no_prefix_has_another_crc(tokens, base, crc):
    prefix = Prefix(tokens)
    assert prefix.holds(base, crc) == (base <= len(tokens) and prefix.crc_at(base) == crc)
