"""E1: bytes that are no frames, from a peer whose key is allowed: counted, dropped, and nothing besides."""

import os
import struct
from zlib import crc32

import pytest
from peer import Peer, Wire
from processes import Daemon, Stream, body, complete, sim_ids, sim_text, until
from usage import Usage

from specmesh.wire import messages as m

PROMPT = "Trust nobody"
N = 80
MIB = 2**20
fault = pytest.mark.fault


VERSION = m.PROTOCOL_VERSION


def header(magic: bytes = b"SM", version: int = VERSION, kind: int = 1, count: int = 0, crc: int = 0) -> bytes:
    return struct.pack("<2sBBIIIHH", magic, version, kind, 1, 0, crc, count, 0)


def sealed(frame: bytes) -> bytes:
    return frame + crc32(frame).to_bytes(4, "little")


def big_endian(message: m.Draft) -> bytes:
    """The frame as a machine of the other byte order would write its memory."""
    words = (message.session, message.base, message.prefix_crc)
    ids = struct.pack(f">{len(message.ids)}i", *message.ids)
    return b"MS" + struct.pack(">BBIIIHH", VERSION, 1, *words, len(message.ids), 0) + ids


BAD_FRAMES = [
    pytest.param("length", [b""], id="empty", marks=fault("E1.1")),
    *(pytest.param("length", [header()[:size]], id=f"{size} bytes", marks=fault("E1.2")) for size in (1, 19)),
    pytest.param("magic", [header(magic=b"XY")], id="other magic", marks=fault("E1.3")),
    pytest.param("magic", [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"], id="HTTP", marks=fault("E1.3")),
    pytest.param("version", [sealed(header(version=VERSION + 1))], id="newer version", marks=fault("E1.4")),
    pytest.param("version", [sealed(header(version=0))], id="older version", marks=fault("E1.4")),
    pytest.param("checksum", [b"SM\x09" + sealed(header())[3:]], id="damaged version", marks=fault("E1.4")),
    pytest.param("checksum", [b"SM\x09" + sealed(header(kind=16))[3:]], id="damaged version of a HELLO"),
    pytest.param("kind", [sealed(header(kind=99))], id="unknown kind", marks=fault("E1.5")),
    pytest.param("length", [sealed(header(count=9) + bytes(8))], id="fewer ids than counted", marks=fault("E1.6")),
    pytest.param("length", [sealed(header(count=1) + bytes(8))], id="more ids than counted", marks=fault("E1.7")),
    pytest.param(
        "count",
        [sealed(header(kind=3, count=m.MAX_TOKENS + 1) + bytes(4 * (m.MAX_TOKENS + 1)))],
        id="one id too many",
        marks=fault("E1.9"),
    ),
    pytest.param("count", [sealed(header(kind=3, count=65535))], id="count beyond all bounds", marks=fault("E1.9")),
    pytest.param("checksum", [header(kind=16) + b"{}"], id="no checksum"),
    pytest.param("body", [sealed(header(kind=16) + b"{}")], id="HELLO without fields"),
    pytest.param("body", [sealed(header(kind=16) + b"[" * 9999)], id="deeply nested body"),
    pytest.param("parts", [b"", header()], id="a REQ socket's delimiter", marks=fault("E1.12")),
    pytest.param("parts", [header()] * 2000, id="two thousand parts", marks=fault("E1.13")),
    pytest.param("magic", [big_endian(m.Draft(1, 0, 0, (1, 2)))], id="big-endian", marks=fault("E1.15")),
]


@pytest.mark.parametrize(("reason", "parts"), BAD_FRAMES)
def test_bad_frame_is_counted_and_dropped(wire: Wire, verifier: Daemon, chosen: Peer, reason: str, parts: list[bytes]):
    before = wire.rejected(reason)
    with Stream(verifier, body(PROMPT, 40)) as stream:
        stream.read(2)
        chosen.raw(*parts)
        chosen.answered()
        stream.read()
    assert stream.text == sim_text(PROMPT, 40)
    until(lambda: wire.rejected(reason) == before + 1, f"{reason} is counted")
    assert len(verifier.events("drafter_gone")) < len(verifier.events("drafter_attached"))


@pytest.mark.parametrize("version", [0, 1, 3, 255])
@fault("E1.4")
@fault("E8.98")
def test_other_protocol_version_is_told(peer: Peer, version: int):
    peer.raw(sealed(header(version=version, kind=16) + b"{}"))
    answer = peer.expect(m.Error)
    assert answer.code == "version"
    assert f"version {m.PROTOCOL_VERSION}" in answer.message
    assert f"says {version}" in answer.message


@pytest.mark.parametrize(
    "ids",
    [
        pytest.param((-1,), marks=fault("E1.10")),
        pytest.param((-(2**31),), marks=fault("E1.10")),
        pytest.param((256,), marks=fault("E1.11")),
        pytest.param((2**31 - 1,), marks=fault("E1.11")),
        pytest.param((), marks=fault("E1.8")),
    ],
)
def test_ids_that_cannot_be(verifier: Daemon, chosen: Peer, ids: tuple[int, ...]):
    """Behind ids that the target would say, after every TRUTH: they are counted, or nothing, and never used."""
    whole = [*PROMPT.encode(), *sim_ids(PROMPT, N + 2)]
    before = verifier.stats()["totals"]["stale_drafts"]

    def counted() -> bool:
        with Stream(verifier, body(PROMPT, N, draft_n=4)) as stream:
            session = chosen.opened()
            while not isinstance(chosen.on_event(), m.Done):
                at = len(chosen.truth)
                chosen.say(chosen.draft(session, [*whole[at : at + 2], *ids] if ids else []))
            stream.read()
        assert stream.ids == sim_ids(PROMPT, N)
        assert sum(stream.accepted) == 0
        assert stream.result["report"]["drafted"] == 0
        return verifier.stats()["totals"]["stale_drafts"] > before or not ids

    until(counted, "they are counted")


@fault("E1.14")
def test_oversized_frame_costs_the_sender_its_connection(wire: Wire, verifier: Daemon, chosen: Peer):
    attached, received = len(verifier.events("drafter_attached")), wire.counters()["bytes_received"]
    with Stream(verifier, body(PROMPT, 4000)) as stream:
        stream.read(3)
        chosen.raw(bytes(MIB))

        def back() -> bool:
            chosen.join()
            return len(verifier.events("drafter_attached")) > attached

        until(back, "it comes back as another one")
        stream.read(3)
    assert stream.text == sim_text(PROMPT, len(stream.ids))
    assert wire.counters()["bytes_received"] - received < MIB


@fault("E1.13")
def test_bad_frames_leave_nothing_behind(wire: Wire, verifier: Daemon):
    frames: list[list[bytes]] = [case.values[1] for case in BAD_FRAMES]

    def throw(peers: int) -> None:
        for _ in range(peers):
            with Peer(wire) as peer:
                peer.join()
                for parts in [*frames, [os.urandom(60)]]:
                    peer.raw(*parts)
                peer.answered()

    throw(30)
    usage = Usage(verifier.pid)
    throw(70)
    usage.unchanged()
    assert complete(verifier, body(PROMPT, 5)).text == sim_text(PROMPT, 5)
