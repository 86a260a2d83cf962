"""The two loops in this process, over real sockets, with engines that fail and peers that are scripted."""

import queue
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from loops import (
    PATIENCE,
    PROMPT,
    Bench,
    Flaky,
    FlakyDrafter,
    Hearing,
    Running,
    Scripted,
    ask_for,
    attach,
    request,
    truth,
    until,
    welcome,
)
from numpy.typing import NDArray

from specmesh.api.body import endless
from specmesh.core.chat import ChatMessage
from specmesh.core.drafter_session import SHADOW
from specmesh.core.prefix import Prefix
from specmesh.core.sampling import Sampler, SamplingParams
from specmesh.core.verifier_session import SessionParams
from specmesh.core.vocabulary import Vocabulary
from specmesh.daemons import peers
from specmesh.daemons import verifier as verifier_module
from specmesh.daemons.notify import STUCK, Notifier, Watchdog
from specmesh.daemons.vocabulary_cache import VocabularyCache
from specmesh.daemons.vocabulary_chunks import vocabulary_chunk
from specmesh.engines.ngram import NgramDrafter
from specmesh.engines.sim import SimDrafter, SimSettings, SimVerifier
from specmesh.errors import (
    Busy,
    ConfigError,
    DaemonUnreachable,
    EngineError,
    PromptTooLong,
    RemoteProtocolError,
    RequestError,
    SpecmeshError,
)
from specmesh.requests import (
    ClientEvent,
    Finished,
    Peer,
    Pinged,
    Ponged,
    Request,
    Started,
)
from specmesh.wire import messages as m
from specmesh.wire.codec import decode, encode


def test_verifier_alone(bench: Bench):
    """A request is answered by Started, its ids and the report; nothing was drafted."""
    client = bench.verifier().ask(request())
    started = client.next()
    assert isinstance(started, Started)
    assert started.prompt_tokens == len(PROMPT)
    end = client.end()
    assert isinstance(end, Finished)
    assert (client.ids, end.reason, end.prompt_ids) == (truth(20), "length", PROMPT)
    assert (end.report["generated_tokens"], end.report["drafted"], end.report["bytes_sent"]) == (20, 0, 0)


@pytest.mark.parametrize(
    ("what", "error"),
    [
        (request(ids=()), RequestError),
        (request(ids=(256,)), RequestError),
        (request(ids=(-1,)), RequestError),
        (request(ids=(65,) * 8192), PromptTooLong),
    ],
    ids=["empty", "id too large", "id negative", "too long"],
)
def test_requests_that_cannot_be(bench: Bench, what: Request, error: type[SpecmeshError]):
    """What can never be served fails at once and takes no place."""
    verifier = bench.verifier()
    assert type(verifier.ask(what).error()) is error
    assert isinstance(verifier.ask(request(3)).end(), Finished)


@pytest.mark.fault("E5.57")
def test_engine_failure_ends_the_session_only(bench: Bench):
    """A step that fails: the client gets the engine's error, and the place serves the next request."""
    engine = Flaky(SimSettings(n_seq=1))
    engine.fail_from = len(PROMPT) + 5
    verifier = bench.verifier(engine)
    client = verifier.ask(request())
    assert isinstance(client.error(), EngineError)
    assert client.ids == truth(6)
    short = verifier.ask(request(3))
    assert isinstance(short.end(), Finished)
    assert short.ids == truth(3)


@pytest.mark.parametrize("ignored", [False, True])
def test_a_forbidden_end_is_not_said(bench: Bench, ignored: bool):
    """`ignore_eos`: the text goes on where the target would have ended it, at either end, with drafts and without."""
    verifier = bench.verifier(Flaky(SimSettings(end_after=len(PROMPT) + 5)))
    drafter = bench.drafter()
    attach(verifier, drafter)
    what = request(20, draft_n=0)
    if ignored:
        what = replace(what, params=endless(what.params, {255}))
    clients = verifier.ask(what), drafter.ask(replace(what, params=replace(what.params, draft_n=4)))
    reasons = {client.end().reason for client in clients}  # type: ignore[union-attr]
    assert (clients[0].ids, reasons) == (clients[1].ids, {"length" if ignored else "stop"})
    assert (len(clients[0].ids), 255 in clients[0].ids) == (20 if ignored else 5, False)


def test_engine_failure_is_told_to_the_drafters_client(bench: Bench):
    """The same with the client on the drafter's socket: an error, never a text that only looks finished."""
    engine = Flaky(SimSettings())
    engine.fail_from = len(PROMPT) + 30
    verifier, drafter = bench.verifier(engine), bench.drafter()
    attach(verifier, drafter)
    client = drafter.ask(request(200))
    assert str(client.error()) == "the verifier's engine failed: out of memory"
    assert client.ids == truth(len(client.ids))


@pytest.mark.parametrize("socket_of", ["verifier", "verifier with drafter", "drafter"])
def test_text_cut_by_a_shutdown_is_an_error(bench: Bench, monkeypatch: pytest.MonkeyPatch, socket_of: str):
    """A session that outlasts the drain ends with DaemonUnreachable, not as if its text were whole."""
    monkeypatch.setattr(verifier_module, "DRAIN", 0.05)
    verifier = bench.verifier(Flaky(SimSettings(step_ms=5)))
    asked = verifier
    if socket_of != "verifier":
        drafter = bench.drafter()
        attach(verifier, drafter)
        asked = drafter if socket_of == "drafter" else verifier
    client = asked.ask(request(5000))
    while len(client.ids) < 3:
        client.next()
    verifier.stop()
    assert isinstance(client.error(), DaemonUnreachable)


def test_stopping_verifier_takes_no_more(bench: Bench):
    """While it drains, new requests are Busy and the old one is finished."""
    verifier = bench.verifier(Flaky(SimSettings(step_ms=10)))
    client = verifier.ask(request(20))
    client.next()
    verifier.loop.stop()
    assert isinstance(verifier.ask(request()).error(), Busy)
    assert isinstance(client.end(), Finished)
    assert client.ids == truth(20)


def test_draft_engine_failure_changes_nothing(bench: Bench):
    """A draft model that fails is given up for that session: the text is whole, at both sockets."""
    verifier = bench.verifier()
    engine = FlakyDrafter(SimSettings())
    drafter = bench.drafter(engine)
    attach(verifier, drafter)
    for asked in (verifier, drafter):
        engine.left = 3
        client = asked.ask(request(60))
        assert isinstance(client.end(), Finished)
        assert client.ids == truth(60)


class SlowReader(Flaky):
    """A target that takes its time over texts with the word slow."""

    def __init__(self, settings: SimSettings) -> None:
        super().__init__(settings)
        self.reading, self.go_on = threading.Event(), threading.Event()

    def encode(self, text: str) -> list[int]:
        if "slow" in text:
            self.reading.set()
            assert self.go_on.wait(PATIENCE)
        return super().encode(text)

    def encode_chat(self, messages: Sequence[ChatMessage]) -> list[int]:
        return self.encode("".join(message.content for message in messages))


@pytest.mark.parametrize("chat", [False, True], ids=["text", "chat"])
@pytest.mark.parametrize("socket_of", ["verifier", "drafter"])
def test_a_slow_prompt_holds_up_nobody(bench: Bench, socket_of: str, chat: bool):
    """While a prompt is encoded others are opened and served, at both sockets; then it has its turn."""
    engine = SlowReader(SimSettings())
    verifier, drafter = bench.verifier(engine), bench.drafter()
    attach(verifier, drafter)
    said = (ChatMessage("user", "slow"),) if chat else ()
    slow = (verifier if socket_of == "verifier" else drafter).ask(
        Request("slow" * (not chat), None, SessionParams(SamplingParams(), 20, 4), messages=said)
    )
    assert engine.reading.wait(PATIENCE)
    for side in (verifier, drafter):
        client = side.ask(request(40))
        assert isinstance(client.end(), Finished)
        assert client.ids == truth(40)
    engine.go_on.set()
    assert isinstance(slow.end(), Finished)
    assert slow.ids == truth(20, tuple(b"slow"))


def test_order_of_sessions_with_slow_prompts(bench: Bench):
    """An OPEN that is ready overtakes one that is not; in each session OPENED, SYNC and TRUTH keep their order."""
    engine = SlowReader(SimSettings())
    bench.verifier(engine)
    peer = bench.dealer()
    peer.say(ask_for(1, "slow"), ask_for(2, ids=PROMPT), m.Close(0, 0, 0.0))
    sessions = (m.Opened, m.Sync, m.Truth, m.Done)
    for ref in (2, 1):
        opened, sync, truth_ = (peer.expect(*sessions) for _ in range(3))
        assert isinstance(opened, m.Opened)
        assert opened.ref == ref
        assert isinstance(sync, m.Sync)
        assert isinstance(truth_, m.Truth)
        assert opened.session == sync.session == truth_.session
        while not isinstance(done := peer.expect(*sessions), m.Done):
            assert done.session == opened.session
        engine.go_on.set()


def test_client_that_leaves_a_slow_prompt(bench: Bench):
    """At either socket: its session never begins."""
    engine = SlowReader(SimSettings(step_ms=1))
    verifier, drafter = bench.verifier(engine), bench.drafter()
    attach(verifier, drafter)
    slow = Request("slow", None, SessionParams(SamplingParams(), 8000, 4))
    sessions = lambda: verifier.loop.snapshot(0.0)["sessions"]  # type: ignore[index] # noqa: E731
    for side in (verifier, drafter):
        client = side.ask(slow)
        assert engine.reading.wait(PATIENCE)
        until(lambda: sessions()["queued"] == 1, "it waits")
        side.cancel(client)
        until(lambda: sessions()["queued"] == 0, "it is withdrawn")
    engine.go_on.set()
    for side in (verifier, drafter):
        last = side.ask(Request("slow", None, SessionParams(SamplingParams(), 3, 4)))
        assert isinstance(last.end(), Finished)
    assert sessions()["opened"] == 2


def test_drafter_that_starts_anew_under_a_slow_prompt(bench: Bench):
    """Another HELLO closes what was before: the OPEN is forgotten, and the next one served."""
    engine = SlowReader(SimSettings())
    bench.verifier(engine)
    peer = bench.dealer()
    peer.say(ask_for(1, "slow"))
    assert engine.reading.wait(PATIENCE)
    peer.hello("another")
    peer.say(ask_for(2, "also slow"))
    engine.go_on.set()
    opened = peer.expect(m.Opened)
    assert opened.ref == 2  # type: ignore[union-attr]
    assert opened.prompt_tokens == len(b"also slow")  # type: ignore[union-attr]


def test_more_slow_prompts_than_sessions(bench: Bench):
    """Prompts being encoded count among a drafter's requests; one too many is Busy, and others are served."""
    engine = SlowReader(SimSettings(n_seq=2))
    bench.verifier(engine, max_queue=2)
    peer, other = bench.dealer(), bench.dealer()
    peer.say(*(ask_for(ref, "slow") for ref in (1, 2, 3, 4)))
    error = peer.expect(m.Error)
    assert (error.code, error.ref) == ("busy", 4)  # type: ignore[union-attr]
    other.say(ask_for(5, ids=PROMPT))
    assert other.expect(m.Opened).ref == 5  # type: ignore[union-attr]
    other.expect(m.Done)
    engine.go_on.set()
    assert [peer.expect(m.Opened).ref for _ in range(3)] == [1, 2, 3]  # type: ignore[union-attr]


def test_stopping_under_a_slow_prompt(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    """Its client is told at once, and the end is not held up."""
    monkeypatch.setattr(verifier_module, "ENCODE_PATIENCE", 0.0)
    engine = SlowReader(SimSettings())
    verifier = bench.verifier(engine)
    peer = bench.dealer()
    peer.say(ask_for(1, "slow"))
    assert engine.reading.wait(PATIENCE)
    client = verifier.ask(Request("slow", None, SessionParams(SamplingParams(), 5)))
    verifier.stop()
    refusal = client.error()
    assert isinstance(refusal, Busy)
    assert peer.expect(m.Error) == m.Error("busy", str(refusal), 1)
    engine.go_on.set()


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Silence tells nobody anything."""
    monkeypatch.setattr(peers, "SILENCE", 1e9)


@pytest.mark.usefixtures("patient")
def test_a_drafter_that_stops_says_so(bench: Bench):
    """The verifier detaches it at once and goes on alone; the drafter's own client has its error."""
    verifier, drafter = bench.verifier(Flaky(SimSettings(step_ms=1))), bench.drafter()
    attach(verifier, drafter)
    own, other = drafter.ask(request(8000)), verifier.ask(request(300))
    while not (own.ids and other.ids):
        own.next()
        other.next()
    drafter.stop()
    until(lambda: not verifier.loop.snapshot(0.0)["peers"], "the verifier knows")
    assert isinstance(own.error(), DaemonUnreachable)
    assert isinstance(other.end(), Finished)
    assert other.ids == truth(300)
    until(lambda: verifier.loop.snapshot(0.0)["sessions"]["live"] == 0, "its client's session ends")  # type: ignore[index]


@pytest.mark.usefixtures("patient")
def test_a_verifier_that_stops_says_so(bench: Bench):
    """Its drafter looks for it anew at once, and finds the next one."""
    first, drafter = bench.verifier(), bench.drafter()
    attach(first, drafter)
    bench.end(first)
    until(lambda: drafter.loop.verifier is None, "the drafter knows")
    assert isinstance(drafter.ask(request()).error(), DaemonUnreachable)

    def next_one() -> bool:
        with suppress(ConfigError):  # ZeroMQ lets an address go when it comes to it
            bench.verifier()
            return True
        return False

    until(next_one, "the address is free")
    until(lambda: drafter.loop.verifier is not None, "it is welcome again")
    client = drafter.ask(request(40))
    assert isinstance(client.end(), Finished)
    assert client.ids == truth(40)


@pytest.mark.usefixtures("patient")
def test_a_bye_concerns_its_sender_only(bench: Bench):
    """Its own session ends; one that it drafted for is another's now, and that one's own goes on."""
    verifier = bench.verifier(Flaky(SimSettings(step_ms=2)))
    leaving = bench.dealer()
    client = verifier.ask(request(400, None))
    announced = leaving.expect(m.Opened)
    staying = bench.dealer()
    leaving.say(ask_for(1, ids=PROMPT, max_tokens=8000))
    staying.say(ask_for(2, ids=PROMPT, max_tokens=400))
    leaving.expect(m.Opened)
    assert staying.expect(m.Opened).ref == 2  # type: ignore[union-attr]
    leaving.say(m.Bye(), m.Bye())
    again = staying.expect(m.Opened)
    assert (again.session, again.ref) == (announced.session, 0)  # type: ignore[union-attr]
    assert [peer["drafter"] for peer in verifier.loop.snapshot(0.0)["peers"]] == ["scripted"]  # type: ignore[attr-defined]
    assert {staying.expect(m.Done).finish_reason for _ in range(2)} == {"length"}  # type: ignore[union-attr]
    assert isinstance(client.end(), Finished)
    assert client.ids == truth(400)


def test_bye_of_a_stranger(bench: Bench):
    """It is not asked to introduce itself: it leaves."""
    bench.verifier()
    peer = bench.dealer(known=False)
    peer.say(m.Bye(), m.Hello("late", "scripted", "none", "", 0, 4096))
    assert isinstance(peer.expect(m.Error, m.Welcome), m.Welcome)


def test_bye_without_a_welcome(bench: Bench):
    """A drafter that nobody has welcomed goes on asking."""
    router = bench.router()
    drafter = bench.drafter()
    router.expect(m.Hello)
    router.say(m.Bye(), welcome())
    until(lambda: drafter.loop.vocabulary is not None, "it is welcome")
    assert drafter.loop.stats.reconnects.count == 0


def test_cancel_frees_the_place(bench: Bench):
    """A client that leaves, at either socket, frees its place at the verifier."""
    verifier, drafter = bench.verifier(Flaky(SimSettings(n_seq=1, step_ms=1))), bench.drafter()
    attach(verifier, drafter)
    for asked in (verifier, drafter):
        client = asked.ask(request(8000))
        while not client.ids:
            client.next()
        asked.cancel(client)
        until(lambda: verifier.loop.snapshot(0.0)["sessions"]["live"] == 0, "the session ends")  # type: ignore[index]
        last = asked.ask(request(5))
        assert isinstance(last.end(), Finished)
        assert last.ids == truth(5)


def test_more_sessions_than_the_draft_model_holds(bench: Bench):
    """Sessions without a place in the draft model are followed without drafts, and whole all the same."""
    verifier, drafter = bench.verifier(), bench.drafter(SimDrafter(SimSettings(n_seq=1)))
    attach(verifier, drafter)
    clients = [drafter.ask(request(80)) for _ in range(4)]
    for client in clients:
        assert isinstance(client.end(), Finished)
        assert client.ids == truth(80)


def test_vocabulary_comes_to_a_drafter_without_one(bench: Bench):
    """An n-gram drafter downloads the verifier's vocabulary."""
    verifier, drafter = bench.verifier(), bench.drafter(NgramDrafter(4096, 2))
    attach(verifier, drafter)
    assert drafter.loop.vocabulary == SimVerifier(SimSettings()).vocabulary


class Turned(SimDrafter):
    """The simulated draft model with its ids in reverse order."""

    @property
    def vocabulary(self) -> Vocabulary:
        return Vocabulary(super().vocabulary.pieces[::-1], frozenset({0}))

    def predict(self, seq: int, ids: Sequence[int], sampler: Sampler | None) -> int | None:
        guess = super().predict(seq, [255 - token for token in ids], sampler and Reversing(sampler))
        return None if guess is None else 255 - guess


class Reversing(Sampler):
    """Shows a sampler the logits of `Turned`."""

    def __init__(self, sampler: Sampler) -> None:
        super().__init__(sampler.params)
        self._own = sampler

    def choose(self, logits: NDArray[np.float32], position: int) -> int:
        return 255 - self._own.choose(logits[::-1], position)


def test_remapped_drafter_is_asked_once_for_what_it_can_keep(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Other ids: right drafts, the verifier's text. VOCAB is asked the first time only, or where the file is bad."""
    asked: list[int] = []
    monkeypatch.setattr(
        verifier_module,
        "vocabulary_chunk",
        lambda vocabulary, start: asked.append(start) or vocabulary_chunk(vocabulary, start),
    )
    verifier = bench.verifier()
    for number, expected in enumerate(([0], [0], [0, 0])):
        drafter = bench.drafter(Turned(SimSettings(alpha=1.0)), VocabularyCache(tmp_path))
        attach(verifier, drafter)
        client = drafter.ask(request(60))
        end = client.end()
        assert isinstance(end, Finished)
        assert client.ids == truth(60)
        assert end.report["accepted"] == end.report["drafted"] > 0
        assert asked == expected
        drafter.stop()
        until(lambda: not verifier.loop.snapshot(0.0)["peers"], "the verifier has noticed")
        if number == 1:
            next(tmp_path.iterdir()).write_bytes(b"damaged")


# --- a drafter and a scripted verifier


def welcomed(bench: Bench) -> tuple[Scripted, Running]:
    """A scripted verifier and a drafter it has welcomed."""
    router, drafter = bench.router(), bench.drafter()
    router.expect(m.Hello)
    router.say(welcome())
    until(lambda: drafter.loop.vocabulary is not None, "it is welcome")
    return router, drafter


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (encode(m.Error("version", "I speak version 9")), ["refused", "version 9"]),
        (b"SM\x09" + encode(welcome())[3:], ["version 9", "this drafter 1"]),
    ],
    ids=["version told", "version seen"],
)
@pytest.mark.fault(
    "E8.98",
    "verifier and drafter of different protocol versions",
    "refused, both versions named; the drafter ends with 78",
)
def test_refusals_end_the_drafter(bench: Bench, answer: bytes, words: list[str]):
    """A refusal that trying again cannot change ends the drafter with a ConfigError that says why."""
    router, _ = bench.router(), bench.drafter()
    router.expect(m.Hello)
    router.raw(answer)
    error = bench.errors.get(timeout=PATIENCE)
    assert isinstance(error, ConfigError)
    for word in (*words, bench.address):
        assert word in str(error)


@pytest.mark.parametrize(
    "answer",
    [m.Vocab(0, ["!"]), m.Vocab(0, ["ü"]), m.Vocab(0, ["YQ=="])],
    ids=["not base64", "not ASCII", "not as told"],
)
def test_lying_vocabulary_ends_the_drafter(bench: Bench, answer: m.Vocab):
    """A vocabulary that is not what WELCOME promised is an error of the peer, not a crash."""
    router, _ = bench.router(), bench.drafter(NgramDrafter(4096, 2))
    router.expect(m.Hello)
    router.say(welcome(n_vocab=1))
    router.expect(m.Vocab)
    router.say(answer)
    assert isinstance(bench.errors.get(timeout=PATIENCE), RemoteProtocolError)


def test_drafter_survives_a_hostile_verifier(bench: Bench):
    """Frames that are none, messages for nobody, wild TRUTHs: they are counted or ignored, and it drafts on."""
    router, drafter = welcomed(bench)
    router.raw(b"junk")
    router.raw(b"two", b"parts")
    router.say(
        m.Truth(99, 5, 1, (1, 2), 4),
        m.Sync(99, 0, 0, (), 4),
        m.Nack(99, 2**32 - 1, 1),
        m.Done(99, "stop", 5),
        m.Round(99, [1], 1),
        m.Logprobs(99, 0, [-1.0], [2**32 - 1], [0.0]),
        m.Close(99, 0, 0.0),
        m.Draft(99, 0, 0, (1,)),
        m.Error("session", "nonsense", 77),
        m.Pong(12345, 1, 0.0),
        m.Vocab(0, ["YQ=="]),
        m.Opened(5, 0, 3, 0.0, 0, 1.0, 0),
        m.Truth(5, 2**32 - 1, 7, (-1, 2**31 - 1), 65535),
        m.Sync(5, 0, 0, (-1,), 4),
        m.Truth(5, 0, 99, (1,), 4),
        m.Sync(5, 0, 0, PROMPT, 4),
    )
    draft = router.expect(m.Draft)
    assert isinstance(draft, m.Draft)
    assert (draft.session, draft.base) == (5, len(PROMPT))
    rejected = drafter.loop.snapshot(0.0)["wire"]["rejected"]  # type: ignore[index]
    assert rejected["parts"] == 1
    assert rejected["direction"] == 2
    assert sum(rejected.values()) == 4


def test_a_drafter_that_is_asked_for_nothing_shadows(bench: Bench):
    """With draft_n 0 the truth is guessed although it is known, which counts as no draft; not for a client who wanted
    no drafts."""
    router, drafter = welcomed(bench)
    text = tuple(truth(SHADOW))
    told = [m.Sync(9, 0, 0, PROMPT, 0), m.Truth(9, len(PROMPT), Prefix(PROMPT).crc, text, 0)]
    router.say(m.Opened(9, 0, len(PROMPT), 0.0, 0, 1.0, 0), *told)
    assert router.expect(m.Shadow) == m.Shadow(9, len(PROMPT), Prefix(PROMPT).crc, text)
    assert drafter.loop.stats.drafted == 0
    drafter.ask(request(draft_n=0))
    order = router.expect(m.Open)
    mine = m.Opened(10, order.ref, len(PROMPT), 0.0, 0, 1.0, 0)  # type: ignore[union-attr]
    router.say(mine, *[replace(frame, session=10) for frame in told])
    router.say(m.Truth(9, len(PROMPT) + SHADOW, Prefix((*PROMPT, *text)).crc, text, 0))
    assert router.expect(m.Shadow).session == 9  # type: ignore[union-attr]


def test_session_opened_for_a_client_that_left_is_closed(bench: Bench):
    """A client that left before OPENED came: the drafter closes the session at the verifier."""
    router, drafter = welcomed(bench)
    client = drafter.ask(request())
    order = router.expect(m.Open)
    drafter.cancel(client)
    withdrawal = router.expect(m.Close)
    assert (withdrawal.session, withdrawal.ref) == (0, order.ref)  # type: ignore[union-attr]
    router.say(m.Opened(41, order.ref, len(PROMPT), 0.0, 0, 1.0, 0))  # type: ignore[union-attr]
    close = router.expect(m.Close)
    assert close.session == 41  # type: ignore[union-attr]


def test_why_a_text_ends_in_an_error(bench: Bench):
    """ERROR says it, as of a grammar, and DONE that it is so."""
    router, drafter = welcomed(bench)
    client = drafter.ask(request())
    order = router.expect(m.Open)
    begun = m.Opened(4, order.ref, len(PROMPT), 0.0, 0, 1.0, 0)  # type: ignore[union-attr]
    router.say(begun, m.Error("request", "too much", order.ref), m.Done(4, "error", 0, {}))  # type: ignore[union-attr]
    broken = client.error()
    assert (type(broken), str(broken)) == (RequestError, "too much")


@pytest.mark.parametrize(("code", "error"), [("busy", Busy), ("request", RequestError), ("engine", EngineError)])
def test_refused_open(bench: Bench, code: str, error: type[SpecmeshError]):
    """ERROR to an OPEN is its client's error, of the class the code says."""
    router, drafter = welcomed(bench)
    client = drafter.ask(request())
    order = router.expect(m.Open)
    router.say(m.Error(code, "no room", order.ref))  # type: ignore[union-attr]
    refusal = client.error()
    assert type(refusal) is error
    assert str(refusal).endswith("no room")


def test_forgetful_verifier_is_greeted_again(bench: Bench):
    """ERROR hello: the sessions of the drafter's clients end as unreachable, and it says HELLO again."""
    router, drafter = welcomed(bench)
    client = drafter.ask(request())
    order = router.expect(m.Open)
    router.say(m.Opened(4, order.ref, len(PROMPT), 0.0, 0, 1.0, 0), m.Error("hello", "who are you"))  # type: ignore[union-attr]
    assert isinstance(client.error(), DaemonUnreachable)
    router.expect(m.Hello)
    router.say(welcome())
    until(lambda: drafter.loop.verifier is not None, "it is welcome again")
    assert drafter.loop.stats.reconnects.count == 1


def test_request_without_a_verifier(bench: Bench):
    """While there is no verifier, a request fails at once with its address."""
    refusal = bench.drafter().ask(request()).error()
    assert isinstance(refusal, DaemonUnreachable)
    assert bench.address in str(refusal)


def test_prompt_beyond_a_frame(bench: Bench):
    """A prompt that no frame holds, or that is no Unicode, is refused at the drafter."""
    _, drafter = welcomed(bench)
    for prompt in ("x" * 600_000, "\udcff"):
        asked = Request(prompt, None, SessionParams(SamplingParams(), 5, None))
        assert isinstance(drafter.ask(asked).error(), RequestError)


def test_lost_end_is_an_error(bench: Bench):
    """DONE for more ids than were heard: the client gets an error, never a text with a hole."""
    router, drafter = welcomed(bench)
    client = drafter.ask(request())
    order = router.expect(m.Open)
    router.say(
        m.Opened(4, order.ref, len(PROMPT), 0.0, 0, 1.0, 0),
        m.Sync(4, 0, 0, PROMPT, 4),  # type: ignore[union-attr]
        m.Done(4, "length", len(PROMPT) + 9, {}),
    )
    assert "lost" in str(client.error())


def test_probes_from_both_sides(bench: Bench):
    """A probe goes to every peer, and each answer is told with its time; the peer is named with its address."""
    verifier, drafter = bench.verifier(), bench.drafter()
    attach(verifier, drafter)
    for side, peer in ((verifier, Peer("d", "tcp://127.0.0.1")), (drafter, Peer("v", bench.address))):
        heard = side.probe(4)
        assert heard.get(timeout=PATIENCE) == Pinged(4, (peer,))
        answered = heard.get(timeout=PATIENCE)
        assert isinstance(answered, Ponged)
        assert (answered.number, answered.peer) == (4, peer)
        assert 0 < answered.seconds < PATIENCE


@pytest.mark.parametrize("role", ["verifier", "drafter"])
def test_a_probe_without_peers(bench: Bench, role: str):
    """Where nobody is there, that is what is told."""
    side = bench.verifier() if role == "verifier" else bench.drafter()
    assert side.probe(1).get(timeout=PATIENCE) == Pinged(1, ())


def test_only_its_own_pong_answers_a_probe(bench: Bench):
    """A PONG with another number answers nothing, and one that comes twice answers once."""
    router, drafter = welcomed(bench)
    heard = drafter.probe(9)
    assert heard.get(timeout=PATIENCE) == Pinged(9, (Peer("v", bench.address),))
    while heard.empty():
        ping = router.expect(m.Ping)  # some are of liveness
        router.say(*(m.Pong(ping.number + more, 1) for more in (100, 0, 0)))  # type: ignore[union-attr]
    client = drafter.ask(request())
    router.say(m.Error("busy", "no", router.expect(m.Open).ref))  # type: ignore[union-attr]
    assert isinstance(client.error(), Busy)  # so all that was said before was heard
    answered = heard.get()
    assert isinstance(answered, Ponged)
    assert heard.empty()


class Blocking(Hearing):
    """A client that holds up the loop that tells it something."""

    def __init__(self) -> None:
        super().__init__()
        self.holds, self.let_go = threading.Event(), threading.Event()

    def hear(self, event: ClientEvent) -> None:
        self.holds.set()
        self.let_go.wait(PATIENCE)
        super().hear(event)


class Beats(Notifier):
    """A manager that notes heartbeats."""

    def __init__(self) -> None:
        super().__init__({})
        self.heard: queue.SimpleQueue[float] = queue.SimpleQueue()

    def heartbeat(self) -> None:
        self.heard.put(time.monotonic())


@pytest.mark.fault(
    "E8.91", "the loop hangs; a long prompt is read", "no heartbeat, and the process is ended; heartbeats go on"
)
def test_a_hung_loop_has_no_heartbeat(bench: Bench):
    """The watchdog's own thread runs on and says nothing for it: what hangs without a manager is ended."""
    running, beats = bench.verifier(), Beats()
    ended: queue.SimpleQueue[int] = queue.SimpleQueue()
    watchdog = Watchdog(lambda: running.loop.progress, beats, interval=1.5, checks=1, end=ended.put)
    beats.heard.get(timeout=PATIENCE)
    beats.heard.get(timeout=PATIENCE)
    blocking = Blocking()
    running.ask(request(), blocking)
    assert blocking.holds.wait(PATIENCE)
    held = time.monotonic()
    assert ended.get(timeout=PATIENCE) == STUCK
    after = [beat for beat in (beats.heard.get() for _ in range(beats.heard.qsize())) if beat > held]
    assert len(after) <= 1  # what the loop did before it hung may be seen once more
    blocking.let_go.set()
    assert isinstance(blocking.end(), Finished)
    watchdog.close()


class Held(SimDrafter):
    """A draft model that is let on by the test, a call at a time."""

    def __init__(self, settings: SimSettings) -> None:
        super().__init__(settings)
        self.begun: queue.SimpleQueue[int] = queue.SimpleQueue()
        self.go_on = threading.Semaphore(0)

    def predict(self, seq: int, ids: Sequence[int], sampler: Sampler | None) -> int | None:
        self.begun.put(len(ids))
        assert self.go_on.acquire(timeout=PATIENCE)
        return super().predict(seq, ids, sampler)


@pytest.fixture
def held(bench: Bench) -> Iterator[tuple[Scripted, Running, Held]]:
    """A drafter at the first chunk of a prompt of 4000 ids, which it takes in by at most 8, and its verifier."""
    engine = Held(SimSettings(n_batch=8))
    router, drafter = bench.router(), bench.drafter(engine)
    router.expect(m.Hello)
    router.say(welcome())
    until(lambda: drafter.loop.vocabulary is not None, "it is welcome")
    router.say(m.Opened(5, 0, 4000, 0.0, 0, 1.0, 0), m.Sync(5, 0, 0, (65,) * 4000, 4))
    assert engine.begun.get(timeout=PATIENCE) == 8
    yield router, drafter, engine
    engine.go_on.release(10_000)


@pytest.mark.fault("E8.91")
def test_a_long_prefill_has_heartbeats(held: tuple[Scripted, Running, Held]):
    """Each chunk of a prompt is a sign of life for the manager; within one there is none."""
    _, running, engine = held
    beats = Beats()
    watchdog = Watchdog(lambda: running.loop.progress, beats, interval=0.001, checks=10**9)
    beats.heard.get(timeout=PATIENCE)
    for _ in range(20):
        assert beats.heard.empty()
        engine.go_on.release()
        assert engine.begun.get(timeout=PATIENCE) == 8
        beats.heard.get(timeout=PATIENCE)
    watchdog.close()


def test_a_long_prefill_answers_pings(held: tuple[Scripted, Running, Held]):
    """Or the verifier would take the drafter for dead, and it would begin again and again."""
    router, _, engine = held
    router.say(m.Ping(77, 1))
    answered, chunks = None, 1
    while answered is None:
        engine.go_on.release()
        assert engine.begun.get(timeout=PATIENCE) == 8, "the prompt was over before the answer came"
        chunks += 1
        while router.socket.poll(20):
            message = decode(router.socket.recv_multipart()[1])
            if isinstance(message, m.Pong):
                answered = message
    assert answered.number == 77
    assert chunks < 4000 / 8


def test_a_draft_model_that_hangs_has_no_heartbeat(held: tuple[Scripted, Running, Held]):
    """What never comes back from the model is found stuck, although the watchdog's own thread runs on."""
    _, running, _ = held
    ended: queue.SimpleQueue[int] = queue.SimpleQueue()
    watchdog = Watchdog(lambda: running.loop.progress, Beats(), interval=0.001, checks=5, end=ended.put)
    assert ended.get(timeout=PATIENCE) == STUCK
    watchdog.close()
