"""A peer that breaks every rule: the verifier lives, its text is its own, and its counters tell."""

import itertools
import os
import random
import struct
from collections.abc import Iterator
from zlib import crc32

import pytest
import zmq
from processes import Daemon, Mesh, Stream, body, complete, sim_ids, sim_text, until

from specmesh.client import Json
from specmesh.core.probes import PROBES
from specmesh.core.vocabulary import Vocabulary
from specmesh.engines.sim import SimSettings, SimVerifier
from specmesh.wire import messages as m
from specmesh.wire.codec import MAX_FRAME, decode, encode

PROMPT = "Trust nobody"
N = 80


class Peer:
    """A raw DEALER that says whatever it is told to."""

    def __init__(self, port: int) -> None:
        self._context = zmq.Context()
        self.socket = self._context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.connect(f"tcp://127.0.0.1:{port}")

    def close(self) -> None:
        self._context.destroy(linger=0)

    def say(self, message: m.Message) -> None:
        self.socket.send(encode(message))

    def raw(self, *parts: bytes) -> None:
        self.socket.send_multipart(parts)

    def hear(self, seconds: float = 20.0) -> m.Message | None:
        """The next message; None where none comes."""
        return decode(self.socket.recv()) if self.socket.poll(int(seconds * 1000)) else None

    def expect(self, kind: type, seconds: float = 20.0) -> m.Message:
        """The next message of this kind; others are skipped."""
        while (message := self.hear(seconds)) is not None:
            if isinstance(message, kind):
                return message
        raise AssertionError(f"no {kind.__name__} came")

    def join(self, vocabulary: Vocabulary) -> m.Welcome:
        """Introduce itself as a good drafter would."""
        self.say(m.Hello("mallory", "sim", "evil", vocabulary.fingerprint(), len(vocabulary), 4096))
        welcome = self.expect(m.Welcome)
        assert isinstance(welcome, m.Welcome)
        return welcome


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return SimVerifier(SimSettings()).vocabulary


@pytest.fixture(scope="module")
def verifier(shared: Mesh) -> Daemon:
    return shared.verifier("step_ms=2")


@pytest.fixture
def peer(verifier: Daemon, shared: Mesh) -> Iterator[Peer]:
    made = Peer(shared.port)
    yield made
    made.close()


@pytest.fixture
def chosen(verifier: Daemon, shared: Mesh) -> Iterator[Peer]:
    """A peer that gets the next session, because the ones before it are forgotten."""
    until(lambda: not verifier.stats()["peers"], "the verifier forgets the others", 10)
    made = Peer(shared.port)
    yield made
    made.close()


def wire(verifier: Daemon) -> Json:
    """The verifier's wire counters."""
    counters: Json = verifier.stats()["wire"]  # type: ignore[assignment]
    return counters


def rejected(verifier: Daemon, reason: str) -> int:
    """How many frames it refused for this reason."""
    return wire(verifier)["rejected"].get(reason, 0)  # type: ignore[attr-defined]


def header(magic: bytes = b"SM", version: int = 1, kind: int = 1, count: int = 0, crc: int = 0) -> bytes:
    """A frame's first 20 bytes."""
    return struct.pack("<2sBBIIIHH", magic, version, kind, 1, 0, crc, count, 0)


BAD_FRAMES = [
    pytest.param("length", [b""], id="empty"),
    pytest.param("length", [header()[:-1]], id="half a header"),
    pytest.param("magic", [header(magic=b"MS")], id="other magic"),
    pytest.param("magic", [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"], id="HTTP"),
    pytest.param("version", [header(version=2)], id="newer version"),
    pytest.param("version", [header(version=0)], id="older version"),
    pytest.param("kind", [header(kind=99)], id="unknown kind"),
    pytest.param("length", [header(count=9) + bytes(8)], id="fewer ids than counted"),
    pytest.param("length", [header(count=1) + bytes(8)], id="more ids than counted"),
    pytest.param("count", [header(count=65535)], id="count beyond all bounds"),
    pytest.param("body", [header(kind=16) + b"{}"], id="wrong body checksum"),
    pytest.param("body", [header(kind=16, crc=crc32(b"{}")) + b"{}"], id="HELLO without fields"),
    pytest.param("body", [header(kind=16, crc=crc32(b"[" * 9999)) + b"[" * 9999], id="deeply nested body"),
    pytest.param("parts", [b"", header()], id="a REQ socket's delimiter"),
    pytest.param("parts", [header()] * 2000, id="two thousand parts"),
]


@pytest.mark.parametrize(("reason", "parts"), BAD_FRAMES)
def test_bad_frame_is_counted_and_dropped(verifier: Daemon, peer: Peer, reason: str, parts: list[bytes]):
    """Whatever arrives is counted under its reason, and the verifier serves on."""
    before = rejected(verifier, reason)
    peer.raw(*parts)
    until(lambda: rejected(verifier, reason) == before + 1, f"{reason} is counted", 10)
    assert complete(verifier, body(PROMPT, 5)).text == sim_text(PROMPT, 5)


@pytest.mark.parametrize("version", [0, 2, 255])
def test_other_protocol_version_is_told(peer: Peer, version: int):
    """A frame of another version is answered with an ERROR that names both."""
    peer.raw(header(version=version, kind=16))
    answer = peer.expect(m.Error)
    assert isinstance(answer, m.Error)
    assert answer.code == "version"
    assert f"version {m.PROTOCOL_VERSION}" in answer.message
    assert f"says {version}" in answer.message


@pytest.mark.parametrize(
    "message",
    [
        m.Draft(1, 0, 0, (1, 2)),
        m.Nack(1, 0, 0),
        m.Ping(1, 1),
        m.Open(1, "hi", 5, 0.0, 0, 1.0, 1, 4),
        m.Close(1, 0, 0.0),
        m.Vocab(0),
    ],
    ids=lambda message: type(message).__name__,
)
def test_frames_before_hello_are_refused(verifier: Daemon, peer: Peer, message: m.Message):
    """Who has not said HELLO gets ERROR hello, and no session."""
    sessions = len(verifier.events("session_opened"))
    before = verifier.stats()["handshake_failures"]["hello"]  # type: ignore[index]
    peer.say(message)
    answer = peer.expect(m.Error)
    assert isinstance(answer, m.Error)
    assert answer.code == "hello"
    until(lambda: verifier.stats()["handshake_failures"]["hello"] > before, "it is counted")  # type: ignore[index]
    assert len(verifier.events("session_opened")) == sessions


def test_other_vocabulary_is_for_the_drafter_to_judge(peer: Peer, vocabulary: Vocabulary):
    """A HELLO with another fingerprint is answered with what it takes to compare: fingerprint, size, ends, probes."""
    peer.say(m.Hello("x", "llama", "other-model", "0" * 64, 999, 4096))
    answer = peer.expect(m.Welcome)
    assert isinstance(answer, m.Welcome)
    assert (answer.vocab_fingerprint, answer.n_vocab) == (vocabulary.fingerprint(), len(vocabulary))
    assert answer.eog_ids == sorted(vocabulary.end_ids)
    assert answer.probes == {text: list(text.encode()) for text in PROBES}


def test_messages_of_the_other_direction_are_counted(verifier: Daemon, peer: Peer, vocabulary: Vocabulary):
    """TRUTH, WELCOME and the like from a drafter are counted and dropped."""
    peer.join(vocabulary)
    before = rejected(verifier, "direction")
    for message in (
        m.Truth(1, 0, 0, (1,), 4),
        m.Sync(1, 0, 0, (1,), 4),
        m.Done(1, "stop", 4),
        m.Round(1, [], 0),
        m.Opened(1, 0, 1, 0.0, 0, 1.0, 0),
        m.Error("busy", "no"),
    ):
        peer.say(message)
    until(lambda: rejected(verifier, "direction") == before + 6, "they are counted", 10)


def test_frames_for_unknown_sessions_are_stray(verifier: Daemon, peer: Peer, vocabulary: Vocabulary):
    """Drafts and NACKs for sessions that do not exist are counted as stray."""
    peer.join(vocabulary)
    before = wire(verifier)["stray"]
    for session in (0, 1, 2**32 - 1):
        peer.say(m.Draft(session, 5, 0, (1, 2, 3)))
        peer.say(m.Nack(session, 5, 0))
    until(lambda: wire(verifier)["stray"] == before + 6, "they are counted", 10)  # type: ignore[operator]


def test_hostile_drafts_never_change_the_text(verifier: Daemon, chosen: Peer, vocabulary: Vocabulary):
    """Wrong ids, wild ids, bases and CRCs, right prefixes with wrong continuations: the text is the target's own."""
    chosen.join(vocabulary)
    rng = random.Random(1)
    with Stream(verifier, body(PROMPT, N, draft_n=4)) as stream:
        session = chosen.expect(m.Opened).session  # type: ignore[union-attr]
        truth = list(PROMPT.encode())
        for turn in itertools.count():
            heard = chosen.hear(0.002)
            if isinstance(heard, m.Done):
                break
            if isinstance(heard, m.Truth):
                truth = truth[: heard.base] + list(heard.ids)
                right = crc32(struct.pack(f"<{len(truth)}i", *truth))
                chosen.say(m.Draft(session, len(truth), right, tuple(rng.choices(b"abc", k=4))))
            base = rng.choice([0, 1, len(truth), len(truth) + 1, 2**32 - 1, rng.randrange(200)])
            crc = rng.choice([0, rng.getrandbits(32), crc32(struct.pack(f"<{len(truth[:base])}i", *truth[:base]))])
            known = [0, 65, 90, 255] if turn % 3 else [256, -1, 2**31 - 1, -(2**31)]
            ids = [rng.choice(known) for _ in range(rng.choice([0, 1, 5, 100]))]
            chosen.say(m.Draft(session, base, crc, tuple(ids), rng.choice([0, 1, 65535])))
            chosen.say(m.Nack(session, base, crc))
            if turn % 10 == 0:
                chosen.raw(os.urandom(rng.randrange(200)))
        stream.read()
    assert stream.ids == sim_ids(PROMPT, N)
    assert stream.result["report"]["drafted"] > 0  # type: ignore[index]


def test_right_drafts_from_a_stranger_are_accepted(verifier: Daemon, chosen: Peer, vocabulary: Vocabulary):
    """The raw peer is no straw man: when it says what the target would, its drafts are accepted."""
    chosen.join(vocabulary)
    whole = list(PROMPT.encode()) + sim_ids(PROMPT, N + 20)
    with Stream(verifier, body(PROMPT, N, draft_n=4)) as stream:
        session = chosen.expect(m.Opened).session  # type: ignore[union-attr]
        while not isinstance(heard := chosen.hear(), m.Done):
            if isinstance(heard, m.Truth | m.Sync):
                at = heard.base + len(heard.ids)
                crc = crc32(struct.pack(f"<{at}i", *whole[:at]))
                chosen.say(m.Draft(session, at, crc, tuple(whole[at : at + 4])))
        stream.read()
    assert stream.ids == sim_ids(PROMPT, N)
    assert sum(stream.accepted) > N // 2


def test_flood_leaves_the_api_and_the_text_alone(verifier: Daemon, peer: Peer, vocabulary: Vocabulary):
    """Thousands of frames a second: requests are answered with the right text all the same, and the peer is cut off."""
    peer.join(vocabulary)
    junk = [encode(m.Draft(7, 1, 2, (3, 4))), b"junk", header(version=9)]
    for frame in itertools.islice(itertools.cycle(junk), 6000):
        peer.socket.send(frame)
    assert complete(verifier, body(PROMPT, 20)).text == sim_text(PROMPT, 20)
    until(lambda: "flooding" in {event["reason"] for event in verifier.events("drafter_gone")}, "it is cut off", 20)
    assert rejected(verifier, "version") > 0


def test_oversized_frame_costs_the_sender_its_connection(verifier: Daemon, peer: Peer, vocabulary: Vocabulary):
    """A frame beyond the maximum never reaches the loop; the verifier serves on."""
    peer.join(vocabulary)
    before = wire(verifier)["bytes_received"]
    peer.raw(bytes(MAX_FRAME + 1))
    assert complete(verifier, body(PROMPT, 20)).text == sim_text(PROMPT, 20)
    assert wire(verifier)["bytes_received"] - before < MAX_FRAME  # type: ignore[operator]


def test_repeated_hello_is_welcomed_again(verifier: Daemon, chosen: Peer, vocabulary: Vocabulary):
    """The same HELLO again, as of a drafter that waited for an answer: one peer, and it keeps its session."""
    chosen.join(vocabulary)
    with Stream(verifier, body(PROMPT, 300)) as stream:
        opened = chosen.expect(m.Opened)
        assert chosen.expect(m.Sync).base == 0  # type: ignore[union-attr]
        chosen.join(vocabulary)
        truth = chosen.expect(m.Truth)
        assert truth.session == opened.session  # type: ignore[union-attr]
        stream.read(3)
        until(lambda: len(verifier.stats()["peers"]) == 1, "there is one peer")  # type: ignore[arg-type]


def test_sessions_of_a_hostile_owner_end_with_it(verifier: Daemon, peer: Peer, vocabulary: Vocabulary):
    """OPEN with absurd parameters is refused with its ref, or bounded; CLOSE ends the session."""
    peer.join(vocabulary)
    for order in (
        m.Open(11, "", 5, 0.0, 0, 1.0, 1, 4),
        m.Open(12, "", 5, 0.0, 0, 1.0, 1, 4, ids=[256]),
        m.Open(13, "x" * 9000, 5, 0.0, 0, 1.0, 1, 4),
        m.Open(15, "many", 5, 0.0, 0, 1.0, 1, 4, stop=["a"] * 100_000),
    ):
        peer.say(order)
        answer = peer.expect(m.Error)
        assert isinstance(answer, m.Error)
        assert (answer.code, answer.ref) == ("request", order.ref)
    peer.say(m.Open(14, "endless", 2**32 - 1, 0.0, 0, 1.0, 1, 0xFFFF))
    opened = peer.expect(m.Opened)
    assert isinstance(opened, m.Opened)
    assert opened.ref == 14
    peer.say(m.Close(opened.session, 0, 0.0))
    until(lambda: verifier.live() == 0, "the session ends", 10)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -1.0),
        ("temperature", 1e30),
        ("top_p", -1.0),
        ("top_p", 7.0),
        ("top_k", 2**32 - 1),
        ("draft_n", 65534),
        ("draft_n", 65536),
        ("draft_n", 2**32 - 1),
        ("max_tokens", 0),
        ("seed", 2**32 - 1),
    ],
)
def test_open_with_wild_parameters(verifier: Daemon, peer: Peer, vocabulary: Vocabulary, field: str, value: float):
    """A peer's parameters of any size are refused by ERROR, or the session runs and ends; the verifier lives."""
    peer.join(vocabulary)
    fields = {"max_tokens": 20, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "seed": 1, "draft_n": 4} | {field: value}
    peer.say(m.Open(ref=21, prompt=PROMPT, **fields))  # type: ignore[arg-type]
    while not isinstance(heard := peer.hear(), m.Done):
        assert heard is not None, "neither ERROR nor DONE came"
        if isinstance(heard, m.Error):
            assert (heard.code, heard.ref) == ("request", 21)
            break
    assert complete(verifier, body(PROMPT, 5)).text == sim_text(PROMPT, 5)
    assert verifier.process.poll() is None
