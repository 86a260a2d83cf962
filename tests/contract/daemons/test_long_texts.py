"""Texts of 100,000 ids, and chats of 1.5 MB, between the daemons: opened, resumed, drafted for."""

from contextlib import suppress
from dataclasses import replace
from functools import partial
from hashlib import sha256
from itertools import cycle
from math import inf

import pytest
import zmq
from harness import PATIENCE
from harness.long_opens import frames_of
from harness.loops import Flaky, ask_for, attach, request, until, welcomed
from named_texts import LONG, NAME

from specmesh.core.liveness import Link
from specmesh.core.prefix import Prefix
from specmesh.core.requests import Finished
from specmesh.core.text.chat_message import ChatMessage
from specmesh.core.verifier import outgoing_frames
from specmesh.errors import RequestError
from specmesh.wire import messages as m
from specmesh.wire.codec import decode_body, encode

PROMPT = tuple(32 + at % 95 for at in range(100_000))
N_CTX = 2**17


def long_target(step_ms=2):
    """Return a target for long texts."""
    return Flaky(n_ctx=N_CTX, n_batch=16384, step_ms=step_ms)


def order(ref=1, max_tokens=20):
    """Return an OPEN with the whole prompt in it, which no frame holds."""
    return replace(ask_for(ref, ids=PROMPT, max_tokens=max_tokens), n_prompt=len(PROMPT), name=NAME)


def refused(peer, *frames):
    """Return the code of the error that answers an OPEN."""
    peer.say(*frames)
    return peer.expect(m.Error, m.Opened).code


def test_a_text_of_a_dead_verifier_goes_on(bench):
    """The next one gets all of its ids again, and its client the rest of the text, once."""
    verifier = bench.verifier(long_target(100), drain=0.0)
    drafter = bench.drafter()
    attach(verifier, drafter)
    client = drafter.ask(replace(request(300, ids=PROMPT), id=NAME, reconnect_timeout=PATIENCE))
    client.heard(20)
    bench.end(verifier)
    again = bench.verifier(long_target(0))
    end = client.end()
    assert isinstance(end, Finished), end
    assert 0 < end.report["resumed_tokens"] < 300
    alone = again.ask(request(300, 0, ids=PROMPT))
    alone.end()
    assert client.ids == alone.ids


@pytest.fixture
def peer(bench):
    """A drafter of a verifier for long texts."""
    bench.verifier(long_target())
    return bench.dealer()


def test_ids_that_came_before_an_open_are_its_text(peer):
    peer.say(*frames_of(order()))
    opened = peer.expect(m.Opened)
    assert (opened.ref, opened.prompt_tokens) == (1, len(PROMPT))
    peer.expect(m.Done)
    assert tuple(peer.truth[: len(PROMPT)]) == PROMPT


@pytest.mark.parametrize("lost", [0, 5, -2], ids=["first", "in the middle", "last"])
def test_an_open_whose_ids_did_not_all_come_may_be_sent_again(peer, lost):
    frames = frames_of(order())
    whole = frames_of(order(ref=2))
    del frames[lost]
    assert refused(peer, *frames) == "busy"
    peer.say(*whole)
    assert peer.expect(m.Opened).ref == 2


def test_ids_are_forgotten_with_their_drafter(peer):
    *frames, end = frames_of(order())
    peer.say(*frames, m.Bye())
    peer.hello("again")
    peer.expect(m.Welcome)
    assert refused(peer, end) == "busy"


def test_more_ids_than_a_session_can_have(bench):
    bench.verifier()
    assert refused(bench.dealer(), *frames_of(order())) == "context"


def test_a_drafter_sends_ids_before_its_open(bench):
    router, drafter = welcomed(bench, n_ctx=N_CTX, takes_ids=True)
    drafter.ask(request(ids=PROMPT))
    ids = []
    while not isinstance(frame := router.expect(m.Ids, m.Open), m.Open):
        assert frame.base == len(ids)
        ids += frame.ids
    assert tuple(ids) == PROMPT
    assert (frame.n_ids, frame.n_prompt, frame.ids) == (len(PROMPT), len(PROMPT), [])


def test_a_verifier_that_takes_none(bench):
    """The client gets the reason at once."""
    _, drafter = welcomed(bench, n_ctx=N_CTX)
    error = drafter.ask(request(ids=2 * PROMPT)).error()
    assert isinstance(error, RequestError)
    assert "longer than what a drafter can pass on" in str(error)


# --- bodies that no OPEN holds


class Digesting(Flaky):
    """A target for which a text is 64 ids, which all of its letters decide."""

    def encode(self, text, **options):
        return super().encode(sha256(text.encode()).hexdigest(), **options)

    def least_ids(self, _):
        return 64


LETTERS = 'Grüße, "世界"\\ und\n' * 70_000
CHAT = replace(
    request(ids=()),
    prompt="",
    prompt_ids=None,
    messages=(
        ChatMessage("user", LETTERS),
        ChatMessage("assistant", "ja"),
        ChatMessage("user", ""),
    ),
)


def chat_order(ref=1, text=LETTERS):
    """Return an OPEN with a chat in it."""
    return replace(ask_for(ref), messages=[{"role": "user", "content": text}])


@pytest.fixture
def chatting(bench):
    """A drafter of a verifier for long chats."""
    bench.verifier(Digesting())
    return bench.dealer()


def answer_to(end):
    """Return the ids of the answer to the long chat at one end."""
    client = end.ask(CHAT)
    last = client.end()
    assert isinstance(last, Finished), last
    return client.ids


def test_a_chat_of_megabytes_is_answered_as_at_the_verifier(bench):
    assert len(LETTERS.encode()) > 1_500_000
    verifier, drafter = bench.pair(Digesting())
    there = answer_to(verifier)
    assert len(there) == 20
    assert answer_to(drafter) == there


def test_a_long_chat_of_a_dead_verifier_goes_on(bench):
    """The next one gets all of it again."""
    verifier = bench.verifier(Digesting(step_ms=100), drain=0.0)
    drafter = bench.drafter()
    attach(verifier, drafter)
    asked = replace(CHAT, id=f"chat{NAME}", reconnect_timeout=PATIENCE)
    client = drafter.ask(asked)
    client.heard(5)
    bench.end(verifier)
    again = bench.verifier(Digesting())
    end = client.end()
    assert isinstance(end, Finished), end
    assert client.ids == answer_to(again)


def test_a_chat_and_its_ids_come_before_an_open(bench):
    """The text that both begin has the ids of the one and the messages of the other."""
    bench.verifier(long_target())
    peer = bench.dealer()
    both = replace(chat_order(text=LETTERS[:100_000]), ids=list(PROMPT), n_prompt=len(PROMPT))
    peer.say(*frames_of(both))
    assert peer.expect(m.Opened).prompt_tokens == len(PROMPT)


@pytest.mark.parametrize("lost", [0, 5, -2], ids=["first", "in the middle", "last"])
def test_an_open_whose_body_did_not_come_whole_may_be_sent_again(chatting, lost):
    frames = frames_of(chat_order())
    del frames[lost]
    assert refused(chatting, *frames) == "busy"
    chatting.say(*frames_of(chat_order(ref=2)))
    assert chatting.expect(m.Opened).ref == 2


@pytest.mark.parametrize("base", [0, 1, 2**32 - 1])
def test_a_piece_with_a_lying_base(chatting, base):
    *frames, last, order = frames_of(chat_order())
    assert refused(chatting, *frames, replace(last, base=base), order) == "busy"
    assert refused(chatting, *frames, last, m.Body(1, base, ""), order) == "busy"
    chatting.say(*frames_of(chat_order(ref=2)))
    assert chatting.expect(m.Opened).ref == 2


def test_a_body_is_forgotten_with_its_drafter(chatting):
    *frames, order = frames_of(chat_order())
    chatting.say(*frames, m.Bye())
    chatting.hello("again")
    chatting.expect(m.Welcome)
    assert refused(chatting, order) == "busy"


def test_a_body_that_is_none(chatting):
    """The drafter learns why, and stays."""
    order = m.Open(ref=1, prompt="", options={}, n_body=2)
    assert refused(chatting, m.Body(1, 0, "[]"), order) == "request"
    chatting.say(ask_for(2, ids=PROMPT[:9]))
    assert chatting.expect(m.Opened).ref == 2


def test_a_flood_of_pieces_is_cut(bench):
    """A drafter that never sends the OPEN costs bounded memory, and is let go."""
    verifier = bench.verifier(Digesting())
    peer = bench.dealer()
    *frames, _ = frames_of(chat_order())
    pieces = cycle(map(encode, frames))

    def is_gone():
        with suppress(zmq.Again):  # as many as the connection takes
            for _ in range(1000):
                peer.socket.send(next(pieces), zmq.NOBLOCK)
        return not verifier.stats()["peers"]

    until(is_gone, "it is cut off")
    assert verifier.stats()["wire"]["rejected"]["rate"] > 0


def test_a_drafter_sends_a_body_before_its_open(bench):
    router, drafter = welcomed(bench, takes_ids=True, takes_body=True)
    drafter.ask(CHAT)
    body = b""
    while not isinstance(frame := router.expect(m.Body, m.Open), m.Open):
        assert (frame.base, len(frame.text) <= m.MAX_PIECE) == (len(body), True)
        body += frame.text.encode()
    assert frame == m.Open(ref=frame.ref, prompt="", options={}, n_body=len(body))
    whole = decode_body(m.Open, body)
    assert whole.ref == frame.ref
    assert [message["content"] for message in whole.messages] == [LETTERS, "ja", ""]


def test_a_verifier_that_takes_no_text_before_an_open(bench):
    """The client gets the reason at once."""
    _, drafter = welcomed(bench, takes_ids=True)
    error = drafter.ask(CHAT).error()
    assert isinstance(error, RequestError)
    assert "longer than what a drafter can pass on" in str(error)


def test_a_body_that_no_verifier_takes(bench):
    _, drafter = welcomed(bench, takes_ids=True, takes_body=True)
    error = drafter.ask(
        replace(CHAT, messages=(ChatMessage("user", m.MAX_OPEN_BODY * "x"),))
    ).error()
    assert isinstance(error, RequestError)
    assert str(m.MAX_OPEN_BODY) in str(error)


# --- what waits for a long text


@pytest.fixture
def only_pongs(monkeypatch):
    """A verifier that waits for PONGs for ever."""
    monkeypatch.setattr(outgoing_frames, "ACKNOWLEDGED_S", inf)


class Watched:
    """A drafter with a session of a long text and one of a short text, which answers no PING.

    frames: of the long text, after each TRUTH of the short one.
    pings: that it has not answered.
    """

    def __init__(self, bench):
        bench.verifier(long_target(5), link=partial(Link, silence=inf))
        self.peer = bench.dealer()
        self.peer.answers = False
        short = ask_for(1, "to be or not", max_tokens=LONG)
        options = {**short.options, "draft_n": 4}
        self.peer.say(replace(short, options=options))
        self.short = self.peer.expect(m.Opened).session
        self.peer.expect(m.Truth)
        order = replace(ask_for(2, ids=PROMPT, max_tokens=LONG), n_prompt=len(PROMPT), name=NAME)
        self.peer.say(*frames_of(order))
        self.long = self.peer.expect(m.Opened).session
        self.ids = Prefix()
        self.frames = []
        self.pings = []

    def truths(self, count):
        """Take frames until so many TRUTHs of the short text have come."""
        self.frames = [0]
        while len(self.frames) <= count:
            self.next()

    def next(self):
        message = self.peer.expect(m.Ping, m.Sync, m.Truth)
        match message:
            case m.Ping(number):
                self.pings.append(number)
            case m.Sync() | m.Truth() if message.session == self.long:
                assert self.ids.holds(message.base, message.prefix_crc), "a gap"
                self.ids.truncate(message.base)
                self.ids.extend(message.ids)
                self.frames[-1] += 1
            case m.Truth():
                self.frames.append(0)
            case _:
                pass

    def answer(self):
        """Answer the PINGs that have come."""
        for number in self.pings:
            self.peer.say(m.Pong(number))
        self.pings = []


def test_truths_do_not_wait_for_a_long_text(bench, only_pongs):
    """Without PONGs there are two frames of it among the TRUTHs of ten steps of another session."""
    drafter = Watched(bench)
    drafter.truths(10)
    assert sum(drafter.frames) == 2


def test_a_long_text_comes_whole_between_truths(bench, only_pongs):
    """Each PONG lets two frames of it pass."""
    drafter = Watched(bench)
    most = 0
    while len(drafter.ids) <= len(PROMPT):
        drafter.truths(1)
        most = max(most, *drafter.frames)
        drafter.answer()
    assert tuple(drafter.ids[: len(PROMPT)]) == PROMPT
    assert most <= 4


def test_nacks_for_a_long_text_add_nothing_to_what_waits(bench, only_pongs):
    drafter = Watched(bench)
    for _ in range(20):
        drafter.peer.say(m.Nack(drafter.long, 0, 0))
    drafter.truths(10)
    assert sum(drafter.frames) == 2
