"""Prompts that take their time: the loops go on meanwhile."""

import threading
from collections.abc import Sequence

import pytest
from harness.loops import PATIENCE, PROMPT, Bench, Flaky, ask_for, request

from specmesh.core.requests import Request
from specmesh.core.sampling.sampler import SamplingParams
from specmesh.core.session_params import ChatMessage, SessionParams
from specmesh.daemons.verifier import daemon as verifier_module
from specmesh.engines.sim import SimSettings
from specmesh.errors import Busy
from specmesh.wire import messages as m


class SlowReader(Flaky):
    """A target that takes its time over texts with the word slow."""

    def __init__(self, settings: SimSettings) -> None:
        super().__init__(settings)
        self.reading, self.go_on = threading.Event(), threading.Event()

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        if "slow" in text:
            self.reading.set()
            assert self.go_on.wait(PATIENCE)
        return super().encode(text)

    def chat_text(
        self, messages: Sequence[ChatMessage], variables: dict[str, object], *, continued: bool = False
    ) -> str:
        return "".join(message.content for message in messages)


@pytest.mark.parametrize("chat", [False, True], ids=["text", "chat"])
@pytest.mark.parametrize("socket_of", ["verifier", "drafter"])
def test_a_slow_prompt_holds_up_nobody(bench: Bench, socket_of: str, chat: bool):
    """While a prompt is encoded others are opened and served, at both sockets; then it has its turn."""
    engine = SlowReader(SimSettings())
    verifier, drafter = bench.pair(engine)
    said = (ChatMessage("user", "slow"),) if chat else ()
    slow = (verifier if socket_of == "verifier" else drafter).ask(
        Request("slow" * (not chat), None, SessionParams(SamplingParams(), 20, 4), messages=said)
    )
    assert engine.reading.wait(PATIENCE)
    for side in (verifier, drafter):
        client = side.ask(request(40))
        client.whole(40)
    engine.go_on.set()
    slow.whole(20, tuple(b"slow"))


def test_order_of_sessions_with_slow_prompts(bench: Bench):
    """An OPEN that is ready overtakes one that is not; in each session OPENED, SYNC and TRUTH keep their order."""
    engine = SlowReader(SimSettings())
    bench.verifier(engine)
    peer = bench.dealer()
    peer.say(ask_for(1, "slow"), ask_for(2, ids=PROMPT), m.Close(0))
    sessions = (m.Opened, m.Sync, m.Truth, m.Done)
    for ref in (2, 1):
        opened, sync, truth_ = (peer.expect(*sessions) for _ in range(3))
        assert (type(opened), type(sync), type(truth_)) == sessions[:3]
        assert opened.ref == ref
        assert opened.session == sync.session == truth_.session
        while not isinstance(done := peer.expect(*sessions), m.Done):
            assert done.session == opened.session
        engine.go_on.set()


def test_more_slow_prompts_than_sessions(bench: Bench):
    """Prompts being encoded count among a drafter's requests; one too many is Busy, and others are served."""
    engine = SlowReader(SimSettings(n_seq=2))
    bench.verifier(engine, max_queue=2)
    peer, other = bench.dealer(), bench.dealer()
    peer.say(*(ask_for(ref, "slow") for ref in (1, 2, 3, 4)))
    error = peer.expect(m.Error)
    assert (error.code, error.ref) == ("busy", 4)
    other.say(ask_for(5, ids=PROMPT))
    assert other.expect(m.Opened).ref == 5
    other.expect(m.Done)
    engine.go_on.set()
    assert [peer.expect(m.Opened).ref for _ in range(3)] == [1, 2, 3]


def test_stopping_under_a_slow_prompt(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(verifier_module, "CLOSING", 0.0)
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
