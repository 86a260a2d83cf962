"""E1: bytes that are no frames, from a peer whose key is allowed, are counted and dropped."""

import os
import struct
from itertools import chain
from zlib import crc32

import pytest
from harness.tables import vectors
from peer import Peer
from processes import Stream, Usage, body, sim_ids, until, warm, writes

from specmesh.wire import messages as m

PROMPT = "Trust nobody"
N = 80
MIB = 2**20
fault = pytest.mark.fault


def header(version=m.PROTOCOL_VERSION, kind=1, count=0):
    fields = (b"SM", version, kind, 1, 0, 0, count, 0)
    return struct.pack("<2sBBIIIHH", *fields)


def sealed(frame):
    return frame + crc32(frame).to_bytes(4, "little")


OVER_RATE = {
    "DRAFT_PROBS whose count is beyond all bounds",
    "one id more than MAX_TOKENS, none sent",
}
"""Drafts that say that they have more ids than a peer may send at once.

They count as `rate`, and are not decoded.
"""
TOO_MANY = m.MAX_TOKENS + 1
BAD_FRAMES = {
    "length": [[b"S"]],
    "magic": [[b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"]],
    "count": [[sealed(header(kind=3, count=TOO_MANY) + bytes(4 * TOO_MANY))]],
    "body": [[sealed(header(kind=16) + b"[" * 9999)]],
    "parts": [[b"", header()], [header()] * 2000],  # the first as a REQ socket sends
    "version": [],
    "checksum": [],
    "kind": [],
}
"""Messages in their parts, by the reason why they are refused."""
for vector in vectors("rejected"):
    if vector["name"] not in OVER_RATE:
        frame = bytes.fromhex(vector["hex"])
        BAD_FRAMES[vector["reason"]].append([frame])


@pytest.mark.parametrize("reason", BAD_FRAMES)
@fault("E1.1", "E1.2", "E1.3", "E1.4", "E1.5")
@fault("E1.6", "E1.7", "E1.9", "E1.12", "E1.13")
@fault("E1.15")
def test_bad_frames_are_counted_and_dropped(verifier, chosen, reason):
    before = verifier.rejected(reason)
    bad = BAD_FRAMES[reason]
    assert bad
    with Stream(verifier, body(PROMPT, 40)) as stream:
        stream.read(2)
        for parts in bad:
            chosen.raw(*parts)
        chosen.answered()
        stream.read().checked()
    until(lambda: verifier.rejected(reason) == before + len(bad), f"{reason} is counted")
    assert len(verifier.events("drafter_gone")) < len(verifier.events("drafter_attached"))


@pytest.mark.parametrize("version", [0, 1, 3, 255])
@fault("E1.4", "E8.98")
def test_other_protocol_version_is_told(peer, version):
    peer.raw(sealed(header(version=version, kind=16) + b"{}"))
    answer = peer.expect(m.Error)
    assert answer.code == "version"
    assert f"version {m.PROTOCOL_VERSION}" in answer.message
    assert f"says {version}" in answer.message


@pytest.mark.parametrize("ids", [(), (-1,), (-(2**31),), (256,), (2**31 - 1,)])
@fault("E1.8", "E1.10", "E1.11")
def test_ids_that_cannot_be(verifier, chosen, ids):
    """Behind ids that the target would say, after every TRUTH.

    They are counted, or nothing, and never used.
    """
    whole = [*PROMPT.encode(), *sim_ids(PROMPT, N + 2)]
    before = verifier.stats()["totals"]["stale_drafts"]

    def counted():
        with Stream(verifier, body(PROMPT, N, draft_n=4)) as stream:
            session = chosen.opened()
            while not isinstance(chosen.on_event(), m.Done):
                length = len(chosen.truth)
                drafts = [*whole[length : length + 2], *ids] if ids else []
                chosen.say(chosen.draft(session, drafts))
            stream.read().checked()
        assert stream.result["report"]["drafted"] == 0
        return verifier.stats()["totals"]["stale_drafts"] > before or not ids

    until(counted, "they are counted")


@fault("E1.14")
def test_oversized_frame_costs_the_sender_its_connection(wire, verifier, chosen):
    attached = len(verifier.events("drafter_attached"))
    received = wire.counters()["bytes_received"]
    with Stream(verifier, body(PROMPT, 4000)) as stream:
        stream.read(3)
        chosen.raw(bytes(MIB))

        def back():
            chosen.join()
            return len(verifier.events("drafter_attached")) > attached

        until(back, "it comes back as another one")
        stream.read(3)
    stream.checked()
    assert wire.counters()["bytes_received"] - received < MIB


@fault("E1.13")
def test_bad_frames_leave_nothing_behind(wire, verifier):
    messages = list(chain.from_iterable(BAD_FRAMES.values()))

    def throw(peers):
        for _ in range(peers):
            with Peer(wire) as peer:
                peer.join()
                for parts in messages:
                    peer.raw(*parts)
                peer.raw(os.urandom(60))
                peer.answered()

    warm(verifier)
    throw(30)
    usage = Usage(verifier.pid)
    throw(70)
    usage.unchanged()
    writes(verifier, PROMPT, 5)
