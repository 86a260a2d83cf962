"""A drafter's loop, and a verifier that says what the test tells it to."""

import time
from zlib import crc32

import pytest
from harness.loops import PATIENCE, PROMPT, Bench, request, welcome, welcomed

from specmesh import errors
from specmesh.daemons.link.dealer import ConnectionState, Dealer
from specmesh.engines.ngram import NgramDrafter
from specmesh.wire import messages as m
from specmesh.wire.codec import encode


def of_version(version: int, frame: bytes) -> bytes:
    frame = b"SM" + bytes([version]) + frame[3:-4]
    return frame + crc32(frame).to_bytes(4, "little")


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (encode(m.Error("version", "I speak version 9")), ["refused", "version 9"]),
        (of_version(9, encode(welcome())), ["version 9", "this drafter 2", "update"]),
    ],
    ids=["version told", "version seen"],
)
@pytest.mark.fault("E8.98")
def test_refusals_end_the_drafter(bench: Bench, answer: bytes, words: list[str]):
    """A refusal ends the drafter with a ConfigError that says why."""
    router, _ = bench.router(), bench.drafter()
    router.expect(m.Hello)
    router.raw(answer)
    error = bench.errors.get(timeout=PATIENCE)
    assert isinstance(error, errors.ConfigError)
    assert [word for word in (*words, bench.address) if word not in str(error)] == []


def with_version(version: int, message: m.Message) -> bytes:
    """A frame whose version byte alone is another."""
    return b"SM" + bytes([version]) + encode(message)[3:]


def test_a_damaged_frame_after_the_welcome(bench: Bench):
    """Of the token plane, or another version, it is dropped; else something may be lost for good: it connects anew."""
    router, drafter = welcomed(bench)
    router.raw(with_version(9, m.Truth(1, 0, 0, (1, 2), 4)))
    router.raw(of_version(9, encode(welcome())))
    router.say(m.Ping(5))
    router.expect(m.Pong)
    assert drafter.stats()["wire"]["rejected"] == {"checksum": 1, "version": 1}
    before = router.peer
    router.raw(with_version(9, m.Done(1, "stop", 4)))
    router.expect(m.Hello)
    assert router.peer != before
    assert bench.errors.empty()


@pytest.mark.parametrize(
    "answer",
    [m.Vocab(0, ["!"]), m.Vocab(0, ["ü"]), m.Vocab(0, ["YQ=="])],
    ids=["not base64", "not ASCII", "not as told"],
)
def test_lying_vocabulary_ends_the_drafter(bench: Bench, answer: m.Vocab):
    """Its clients hear why: those who have asked, and those who ask while it ends."""
    router, drafter = bench.router(), bench.drafter(NgramDrafter(4096, 2))
    router.expect(m.Hello)
    router.say(welcome(n_vocab=1))
    router.expect(m.Vocab)
    client = drafter.ask(request())
    router.expect(m.Open)
    router.say(answer)
    assert isinstance(bench.errors.get(timeout=PATIENCE), errors.RemoteProtocolError)
    assert isinstance(client.error(), errors.WentAway)
    assert isinstance(drafter.ask(request()).error(), errors.WentAway)


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
        m.Logprobs(99, 0, [-1.0], [2**32 - 1], [0.0]),
        m.Close(99),
        m.Draft(99, 0, 0, (1,)),
        m.Error("session", "nonsense", 77),
        m.Pong(12345),
        m.Vocab(0, ["YQ=="]),
        m.Opened(5, 0, 3, {"temperature": 0}),
        m.Opened(6, 0, 3, {"temperature": "hot"}),
        m.Truth(5, 2**32 - 1, 7, (-1, 2**31 - 1), 255),
        m.Sync(5, 0, 0, (-1,), 4),
        m.Truth(5, 0, 99, (1,), 4),
        m.Sync(5, 0, 0, PROMPT, 4),
    )
    assert router.expect(m.Close).session == 6
    draft = router.expect(m.Draft)
    assert (draft.session, draft.base) == (5, len(PROMPT))
    rejected = drafter.stats()["wire"]["rejected"]
    assert (rejected["parts"], rejected["direction"], rejected["body"]) == (1, 2, 1)
    assert sum(rejected.values()) == 5


CODES = ("busy", "request", "engine", "session", "context")
CLASSES = (errors.Busy, errors.RequestError, errors.EngineError, errors.NoSuchText, errors.PromptTooLong)


@pytest.mark.parametrize(("code", "error"), [*zip(CODES, CLASSES, strict=True)])
def test_refused_open(bench: Bench, code: str, error: type[errors.SpecmeshError]):
    router, drafter = welcomed(bench)
    client = drafter.ask(request())
    order = router.expect(m.Open)
    router.say(m.Error(code, "no room", order.ref))
    refusal = client.error()
    assert (type(refusal), str(refusal)[-7:]) == (error, "no room")


def test_hello_is_said_ever_more_rarely(bench: Bench):
    """Several drafters of one key, where nobody answers, stay within its limits."""
    began = time.monotonic()
    router, _ = bench.router(), bench.drafter()
    for _ in range(4):
        router.expect(m.Hello)
    assert time.monotonic() > began + 0.25 + 0.5 + 1.0, "at the soonest; every half a second it would be sooner"


def test_a_close_that_is_lost(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    """Nobody says it again, and a session would go on for nobody: the drafter connects anew."""
    send = Dealer.send

    def without_room(dealer: Dealer, message: m.Message) -> int:
        if isinstance(message, m.Close):
            dealer.state = ConnectionState.CUT
        return 0 if dealer.cut else send(dealer, message)

    monkeypatch.setattr(Dealer, "send", without_room)
    router, _ = welcomed(bench)
    before = router.peer
    router.say(m.Opened(5, 0, 3, {"temperature": 0}), m.Sync(5, 0, 0, (1, 2, 3), 4), m.Done(5, "stop", 3))
    router.expect(m.Hello)
    assert router.peer != before
