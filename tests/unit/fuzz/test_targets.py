"""The targets hold against any bytes, and have teeth: each notices that what it watches over is broken."""

import importlib
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuzz import codec, drafter_session, verifier_session
from fuzz.tape import Tape
from fuzz.targets import corpus
from specmesh.core import draft_buffer as held_drafts
from specmesh.core import session as core_verifier
from specmesh.core.accept import Acceptance
from specmesh.core.draft_session import DrafterSession
from specmesh.core.prefix import Prefix
from specmesh.core.sampling.acceptance_strategies import Probabilistic
from specmesh.wire import codec as wire_codec

PROFILE = settings(derandomize=True, deadline=None, max_examples=200)


@PROFILE
@given(st.binary(max_size=300))
def test_codec(data):
    """Any bytes are a message or a FrameError, with the right checksum too."""
    codec.run(data)
    codec.run(b"SM\x02" + data)


@PROFILE
@given(st.binary(max_size=400))
def test_verifier_session(data):
    """Any script of frames, steps and time: the text is the target's own."""
    verifier_session.run(data)


@PROFILE
@given(st.binary(max_size=400))
def test_drafter_session(data):
    """Any script of frames, guesses and time: what an honest verifier says is what is learned."""
    drafter_session.run(data)


def test_a_tape_never_ends():
    """Bytes in order, then zeros."""
    tape = Tape(b"\x05\x01\x02\xff")
    assert (tape.choice("abcd"), tape.number(2), tape.left) == ("b", 0x0201, True)
    assert (tape.take(3), tape.left, tape.byte(), tape.take(2)) == (b"\xff", False, 0, b"")


# --- teeth


def notices(target: str) -> bool:
    """Whether some input of the corpus breaks the target."""
    play = importlib.import_module(f"fuzz.{target}").run
    for path in corpus(target):
        try:
            play(path.read_bytes())
        except (AssertionError, LookupError, RecursionError, ValueError):
            return True
    return False


def believing(drafts, choose, **_):
    """An accept rule that takes a peer's word for it."""
    if drafts:
        return Acceptance(drafts[:1], 1, 1, ended=False)
    return Acceptance((choose(0),), 0, 0, ended=False)


def untrimmed(self, event, now, stepped=core_verifier.VerifierSession._stepped):
    return [effect for effect in stepped(self, event, now) if type(effect).__name__ != "Trim"]


def trusting(self, rows):
    """A rule that takes drafts for samples of the target's own law."""
    return lambda i: rows.offers[i].token if i < len(rows.offers) else self._own(rows, i)


def exchanged(self, sent=DrafterSession._send):
    """The laws of drafts that go out together, in another order."""
    return [replace(effect, proposals=effect.proposals[::-1]) for effect in sent(self)]


def endless(self, round_trip):
    return 10**9


BREAKS = [
    pytest.param("verifier_session", (core_verifier, "accept", believing), id="drafts are believed"),
    pytest.param("verifier_session", (core_verifier.VerifierSession, "_stepped", untrimmed), id="nothing is trimmed"),
    pytest.param("verifier_session", (held_drafts, "MOST_HELD", 10**9), id="drafts without bound"),
    pytest.param("verifier_session", (Probabilistic, "choices", trusting), id="samples are believed"),
    pytest.param("drafter_session", (DrafterSession, "_send", exchanged), id="laws of other drafts"),
    pytest.param("drafter_session", (Prefix, "holds", lambda *_: True), id="any prefix is taken for ours"),
    pytest.param("drafter_session", (DrafterSession, "_credit", endless), id="drafts beyond the credit"),
    pytest.param("codec", (wire_codec, "MAX_DEPTH", 10**9), id="reports of any depth"),
    pytest.param("codec", (wire_codec, "_decode_ids", lambda _, count: (count,)), id="ids are not looked at"),
]


@pytest.mark.parametrize(("target", "broken"), BREAKS)
def test_teeth(target, broken, monkeypatch):
    """With this broken the corpus alone finds it."""
    assert not notices(target)
    monkeypatch.setattr(*broken)
    assert notices(target)
