"""Many at once.

Requests before the sessions, peers that flood, drafters that stand still, long prompts.
"""

from functools import partial

import pytest
from harness.loops import PATIENCE, PROMPT, Flaky, SlowReader, ask_for, request, until

from specmesh.core.liveness import Link
from specmesh.core.requests import Failed, Request, Started
from specmesh.core.sampling.sampler import SamplingParams
from specmesh.core.session_params import SessionParams
from specmesh.core.text.chat_message import ChatMessage
from specmesh.core.verifier.peer_limits import Cost, PeerAccounts, Rate
from specmesh.errors import Busy
from specmesh.wire import messages as m


@pytest.mark.fault("E5.55")
def test_requests_wait_in_order(bench):
    """Of a thousand at once those that find room are served in order; the others get 75."""
    verifier = bench.verifier(Flaky(max_sessions=1, step_ms=10), max_queue=5)
    clients = [verifier.ask(request(20)) for _ in range(1000)]
    served = []
    sessions = []
    for number, client in enumerate(clients):
        match client.next():
            case Started(session):
                served.append(number)
                sessions.append(session)
            case Failed(error):
                assert error.exit_code == 75
                assert "--max-queue" in str(error)
    assert served[:6] == list(range(6))
    assert sessions == sorted(sessions)
    assert len(served) < 100
    for number in served:
        clients[number].whole(20)


def test_an_own_request_is_not_kept_out_by_a_drafter(bench):
    """A peer that asks for everything leaves a quarter of the sessions, and half of the queue."""
    verifier = bench.verifier(Flaky(max_sessions=4, step_ms=1), max_queue=16)
    peer = bench.dealer()
    for ref in range(1, 41):
        peer.say(ask_for(ref, ids=PROMPT, max_tokens=8000))
    refs = {peer.expect(m.Error).ref for _ in range(40 - 3 - 8)}
    assert refs == set(range(12, 41))
    verifier.ask(request(40)).whole(40)


def test_requests_that_come_too_fast(bench):
    rates = dict.fromkeys(Cost, Rate(10**6, 10**6))
    rates[Cost.OPENS] = Rate(0.1, 50)  # a busy machine reads slowly
    bench.verifier(Flaky(max_sessions=1), accounts=PeerAccounts(rates))
    peer = bench.dealer()
    count = 150
    for ref in range(1, count + 1):
        peer.say(ask_for(ref, ids=(999,)))
    too_fast = 0
    for _ in range(count):
        error = peer.expect(m.Error)
        too_fast += "too fast" in error.message
    assert too_fast >= 90


class Accounts(PeerAccounts):
    """Limits that are full again at once. number: how many peers have some."""

    def __init__(self):
        super().__init__(dict.fromkeys(Cost, Rate(10**9, 10**6)))

    @property
    def number(self):
        return len(self._limits)


def test_the_limits_of_drafters_that_left_are_forgotten(bench):
    accounts = Accounts()
    verifier = bench.verifier(accounts=accounts)
    for _ in range(3):
        peer = bench.dealer()
        until(lambda: verifier.stats()["peers"], "it is attached")
        peer.say(m.Bye())
        until(lambda: not verifier.stats()["peers"], "it has left")
    assert accounts.number == 0


def test_who_reads_nothing_gets_no_more(bench):
    """A drafter that asks for much and answers no PING, which would show its reading, is let go."""
    verifier = bench.verifier(link=partial(Link, max_unread=10_000))
    peer = bench.dealer()
    for _ in range(10):
        peer.say(m.Vocab(0))
        peer.expect(m.Vocab)
        peer.expect(m.Ping)
    assert verifier.stats()["peers"], "what it has answered is read"
    peer.say(*[m.Vocab(0)] * 10)
    until(lambda: not verifier.stats()["peers"], "it is let go")


# --- prompts that take their time: the loops go on meanwhile


def is_slow(text):
    return text == "slow"


SLOW = SessionParams(SamplingParams(), 20, draft_n=4)
SLOW_TEXT = Request("slow", None, SLOW)
SLOW_CHAT = Request("", None, SLOW, messages=(ChatMessage("user", "slow"),))


@pytest.mark.parametrize("asked", [SLOW_TEXT, SLOW_CHAT], ids=["text", "chat"])
def test_a_slow_prompt_holds_up_nobody(bench, role, asked):
    """While a prompt is encoded others are served, at both sockets; then it has its turn."""
    engine = SlowReader(is_slow)
    verifier, drafter = bench.pair(engine)
    side = drafter if role == "drafter" else verifier
    slow = side.ask(asked)
    assert engine.reading.wait(PATIENCE)
    for other in (verifier, drafter):
        other.ask(request(40)).whole(40)
    engine.go_on.set()
    slow.whole(20, tuple(b"slow"))


def test_order_of_sessions_with_slow_prompts(bench):
    """An OPEN that is ready overtakes one that is not.

    In each session OPENED, SYNC and TRUTH keep their order.
    """
    engine = SlowReader(is_slow)
    bench.verifier(engine)
    peer = bench.dealer()
    peer.say(ask_for(1, "slow"), ask_for(2, ids=PROMPT), m.Close(0))
    sessions = (m.Opened, m.Sync, m.Truth, m.Done)
    for ref in (2, 1):
        opened = peer.expect(*sessions)
        assert opened.ref == ref
        kinds = [type(opened)]
        while kinds[-1] is not m.Done:
            frame = peer.expect(*sessions)
            assert frame.session == opened.session
            kinds.append(type(frame))
        assert tuple(kinds[:3]) == sessions[:3]
        engine.go_on.set()


def test_more_slow_prompts_than_sessions(bench):
    """Prompts being encoded count among a drafter's requests.

    One too many is Busy, and others are served.
    """
    engine = SlowReader(is_slow, max_sessions=2)
    bench.verifier(engine, max_queue=2)
    peer = bench.dealer()
    other = bench.dealer()
    for ref in (1, 2, 3, 4):
        peer.say(ask_for(ref, "slow"))
    error = peer.expect(m.Error)
    assert (error.code, error.ref) == ("busy", 4)
    other.say(ask_for(5, ids=PROMPT))
    assert other.expect(m.Opened).ref == 5
    other.expect(m.Done)
    engine.go_on.set()
    for ref in (1, 2, 3):
        assert peer.expect(m.Opened).ref == ref


def test_stopping_under_a_slow_prompt(bench):
    engine = SlowReader(is_slow)
    verifier = bench.verifier(engine, closing=0.0)
    peer = bench.dealer()
    peer.say(ask_for(1, "slow"))
    assert engine.reading.wait(PATIENCE)
    client = verifier.ask(Request("slow", None, SessionParams(SamplingParams(), 5)))
    verifier.stop()
    refusal = client.error()
    assert isinstance(refusal, Busy)
    assert peer.expect(m.Error) == m.Error("busy", str(refusal), 1)
    engine.go_on.set()
