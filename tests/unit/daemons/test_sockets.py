"""Sockets of both daemons, peers that do not keep up, and the limits of a peer."""

import asyncio
import re
from contextlib import suppress
from functools import partial
from itertools import chain, repeat
from pathlib import Path
from types import SimpleNamespace

import pytest
import zmq
from harness import PATIENCE
from harness.long_opens import frames_of
from harness.ports import free_address

from specmesh.core.request_frames import BODY_BYTES_PER_S, TEXT_IDS_PER_S
from specmesh.core.verifier.peer_limits import (
    BODY_WEIGHT,
    CONTROL_WEIGHT,
    Cost,
    FrameAction,
    PeerAccounts,
    PeerLimits,
    Rate,
)
from specmesh.daemons.link.dealer import Dealer, Route, close_dealer
from specmesh.daemons.link.sockets import Router, bind_router
from specmesh.errors import ConfigError
from specmesh.wire import messages as m
from specmesh.wire.codec import decode, encode

DROP = FrameAction.DROP
TAKE = FrameAction.TAKE
CUT = FrameAction.CUT
MOST_HELLOS = 20
MOST_BYTES = 10**7
RATES = dict.fromkeys(Cost, Rate(200, 1000))
RATES[Cost.HELLOS] = Rate(5, MOST_HELLOS)
RATES[Cost.BYTES] = Rate(10**6, MOST_BYTES)


def wait_for(socket, event=zmq.POLLIN):
    assert socket.poll(int(PATIENCE * 1000), event)


class Ends:
    """A router and one dealer that it has attached."""

    def __init__(self):
        self.context = zmq.Context()
        self.now = 0.0
        self.address = free_address()
        socket = bind_router(self.context, self.address, insecure=False)
        self.router = Router(socket, accounts=PeerAccounts(RATES))
        self.dealer = self.connect()
        self.dealer.send(encode(m.Ping(1)))
        wait_for(socket)
        [(self.identity, _, _)] = self.router.receive(0.0)
        self.router.accounts.attach(self.identity, "")

    def connect(self):
        dealer = Route(self.context, self.address).open()
        wait_for(dealer, zmq.POLLOUT)
        return dealer

    def receive(self):
        return [message for _, message, _ in self.router.receive(self.now)]


@pytest.fixture
def ends():
    opened = Ends()
    yield opened
    opened.context.destroy(linger=0)


def test_a_peer_without_a_key_has_an_empty_one(ends):
    assert ends.router.inlet.known("User-Id") == ""


def test_a_drafter_that_does_not_keep_up(ends):
    """It gets all frames that were taken for it, in order, and none after its queue was full."""
    sent = 0
    while ends.router.send(ends.identity, m.Truth(sent, 0, 0, (0,) * 2000, 4)):
        sent += 1
        assert sent < 100_000
    for session in range(sent):
        wait_for(ends.dealer)
        assert decode(ends.dealer.recv()).session == session
    assert ends.router.send(ends.identity, m.Done(0, "stop", 1)) == 0
    assert ends.router.take_gone() == {ends.identity: "behind"}


def test_a_drafter_that_has_left(ends):
    """It differs from one that does not keep up: another peer may have its descriptor by now."""
    assert ends.router.send(b"nobody", m.Bye()) == 0
    assert ends.router.take_gone() == {b"nobody": "unreachable"}


def test_frames_beyond_a_limit_are_dropped_unread(ends):
    """They are counted, not decoded, and after some of them the wire is left for a moment."""
    introduction = m.Hello(
        drafter="d", engine="m", model="none", vocab_fingerprint="", n_vocab=0, n_ctx=4096
    )
    hello = encode(introduction)
    not_json = hello[:-1] + b"?"
    flood = chain([hello] * MOST_HELLOS, repeat(not_json))
    ends.router.inlet = SimpleNamespace(
        receive=lambda: [ends.identity, next(flood)], check=lambda _: None
    )
    rejected = ends.router.traffic.rejected
    taken = []
    while not rejected["rate"]:
        taken += ends.receive()
        ends.now += 1e-4
    assert len(taken) == MOST_HELLOS
    dropped = rejected["rate"]
    assert ends.receive() == []
    assert (rejected["rate"], rejected["body"]) == (dropped, 0)
    assert not ends.router.take_gone()


def test_a_turn_takes_a_part_of_a_long_text(ends):
    """A text of 100,000 ids that is there at once does not hold the loop up; then it reads on."""
    frame = encode(m.Ids(1, 0, 0, (0,) * m.MAX_TOKENS))
    checks = []
    ends.router.inlet = SimpleNamespace(
        receive=lambda: [ends.identity, frame], check=lambda: checks.append(True)
    )
    ends.router.accounts = PeerAccounts()
    assert len(ends.receive()) == 2
    assert checks


def test_a_peer_beside_a_flood_is_read(ends):
    """Each of its frames is taken, although the other's queue is always full."""
    other = ends.connect()
    for number in range(20):
        for _ in range(200):
            with suppress(zmq.Again):
                ends.dealer.send(encode(m.Ping(1)), zmq.NOBLOCK)
        nack = m.Nack(number, 0, 0)
        other.send(encode(nack))
        received = []
        while nack not in received:
            ends.now += 0.01
            wait_for(ends.router.socket)
            received += ends.receive()
    close_dealer(other)


def test_bytes_of_json_count_more(ends):
    """Control frames are dropped unread; as many bytes of ids would be taken."""
    options = {"max_tokens": 1, "temperature": 0, "seed": 1, "draft_n": 0}
    order = [ends.identity, encode(m.Open(ref=1, prompt="x" * 200_000, options=options))]
    for _ in range(MOST_BYTES // (8 * len(order[1]))):
        assert ends.router.objection(order, 0.0) is None
    assert ends.router.objection(order, 0.0) == "rate"
    draft = encode(m.Draft(1, 0, 0, (1,) * 512))
    assert ends.router.objection([ends.identity, draft], 0.0) is None


NO_ADDRESSES = """
7071
127.0.0.1:7071
tcp://
tcp://:7071
tcp://127.0.0.1
tcp://127.0.0.1:
tcp://127.0.0.1:0
tcp://127.0.0.1:70000
tcp://127.0.0.1:port
tcp://127.0.0.1:-1
udp://127.0.0.1:7071
ipc:///run/x
inproc://x
http://127.0.0.1:7071
"""


@pytest.mark.parametrize("address", ["", *NO_ADDRESSES.split()])
def test_what_is_no_address(address):
    context = zmq.Context.instance()
    with pytest.raises(ConfigError, match=r"--bind.*tcp://127\.0\.0\.1:7071"):
        bind_router(context, address, insecure=True)
    with pytest.raises(ConfigError, match=r"--connect.*tcp://127\.0\.0\.1:7071"):
        Route(context, address).open()


def test_no_heartbeats_of_libzmq(ends):
    """They abort the process when a connection with a full queue breaks."""
    assert ends.router.socket.getsockopt(zmq.HEARTBEAT_IVL) == 0


# --- frames that came while the socket was used


def noticed_after(end, arrive, use):
    """Have frames arrive at an end, use its socket, and wait until they are noticed."""

    async def scenario():
        noticed = asyncio.Event()
        end.inlet.listen(noticed.set)
        await asyncio.sleep(0)
        noticed.clear()
        arrive()
        wait_for(end.socket)  # takes the notice of the descriptor, as a send may
        use()
        await asyncio.wait_for(noticed.wait(), PATIENCE)
        end.inlet.close()

    asyncio.run(scenario())


def test_a_verifier_notices_frames_that_came_before_it_sent(ends):
    router = ends.router
    arrive = partial(ends.dealer.send, encode(m.Ping(1)))
    noticed_after(router, arrive, partial(router.send, ends.identity, m.Ping(2)))


def test_a_drafter_notices_frames_that_came_before_it_sent(ends):
    dealer = Dealer(Route(ends.context, ends.address))
    wait_for(dealer.socket, zmq.POLLOUT)
    dealer.send(m.Ping(1))
    wait_for(ends.router.socket)
    [(identity, _, _)] = ends.router.receive(0.0)
    arrive = partial(ends.router.send, identity, m.Ping(1))
    noticed_after(dealer, arrive, partial(dealer.send, m.Ping(2)))
    dealer.close(linger=0)


# --- at the drafter


def test_a_verifier_that_does_not_keep_up(ends):
    """Drafts are dropped; an unsent CLOSE cuts the connection, for its session must end."""
    dealer = Dealer(Route(ends.context, ends.address))
    wait_for(dealer.socket, zmq.POLLOUT)
    sent = 0
    while dealer.send(m.Draft(1, 0, 0, (0,) * 4000)):
        sent += 1
    assert dealer.traffic.frames_sent == sent > 0
    assert not dealer.cut
    while dealer.send(m.Close(7)):
        assert not dealer.cut
    assert dealer.cut
    dealer.close(linger=0)


@pytest.mark.parametrize("room", [3, 4])
def test_no_room_for_another_connection(room):
    """Each try is refused in the system's words; a connection and its monitor take 3 sockets."""
    context = zmq.Context()
    context.set(zmq.MAX_SOCKETS, room)
    dealer = Dealer(Route(context, free_address()))
    for _ in range(2):
        dealer.reconnect()
        assert dealer.cut
        assert str(dealer.refusal).endswith("Too many open files")
    context.destroy(linger=0)


# --- limits of a peer

FEW = dict.fromkeys(Cost, Rate(10, 20))
FEW[Cost.BYTES] = Rate(10**6, 10**6)
FEW[Cost.IDS] = Rate(10, 40, earned=30)


def send(limits, count, cost=None, begin=0.0, interval=0.0):
    """Return the actions for so many frames of 36 bytes."""
    return [limits.frame(36, cost, 1, begin + interval * number) for number in range(count)]


@pytest.mark.parametrize("rounds", [3, 30, 300, 2000])
def test_an_honest_drafter_never_meets_limits(rounds):
    """A draft per millisecond for a minute, in chains of 49 at most for each TRUTH."""
    limits = PeerLimits()
    drafts = 0.0
    for turn in range(60 * rounds):
        drafts += 1000 / rounds
        limits.earn()
        assert limits.frame(24, Cost.IDS, 0, turn / rounds) is TAKE
        for _ in range(min(int(drafts), 49)):
            assert limits.frame(24, Cost.IDS, 1, turn / rounds) is TAKE
        drafts %= 1


def test_a_burst_is_slowed_and_forgiven():
    limits = PeerLimits(FEW)
    for again in range(5):
        assert send(limits, 70, begin=again * 4.0) == [TAKE] * 20 + [DROP] * 50


def resumed(limits, texts, interval):
    """Return what becomes of the frames of the longest texts, one after the other."""
    actions = []
    for number in range(texts):
        for _ in range(TEXT_IDS_PER_S // m.MAX_TOKENS):
            size = 24 + 4 * m.MAX_TOKENS
            actions.append(limits.frame(size, Cost.TEXT_IDS, m.MAX_TOKENS, number * interval))
    return actions


def test_longest_texts_are_resumed_one_a_second():
    assert set(resumed(PeerLimits(), 60, 1.0)) == {TAKE}


def test_a_flood_of_long_texts_is_slowed_and_cut():
    actions = resumed(PeerLimits(), 100, 0.1)
    assert CUT in actions
    assert actions.count(TAKE) * m.MAX_TOKENS < 30 * TEXT_IDS_PER_S


def bodies(limits, texts, interval):
    """Return the sizes of frames of so many bodies in a row, and what becomes of each."""
    frames = frames_of(m.Open(ref=1, prompt=2 * 2**20 * "x", options={}))
    actions = []
    for number in range(texts):
        for frame in frames:
            size = len(encode(frame)) * (
                BODY_WEIGHT if isinstance(frame, m.Body) else CONTROL_WEIGHT
            )
            actions.append((size, limits.frame(size, None, 1, number * interval)))
    return actions


def test_bodies_as_long_as_http_takes_pass_at_the_pace_of_a_drafter():
    actions = bodies(PeerLimits(), 30, 2 * 2**20 / BODY_BYTES_PER_S)
    assert {action for _, action in actions} == {TAKE}


def test_a_flood_of_bodies_is_slowed_and_cut():
    """No more is read than the limits of BYTES let pass in ten seconds."""
    actions = bodies(PeerLimits(), 100, 0.1)
    assert CUT in {action for _, action in actions}
    taken = sum(size for size, action in actions if action is TAKE)
    assert taken <= 36 * 2**20


def test_the_longest_body_passes_at_once():
    """Its letters are those that JSON escapes."""
    text = '"' * (m.MAX_OPEN_BODY // 2 - 100)
    frames = frames_of(m.Open(ref=1, prompt=text, options={}))
    sizes = [BODY_WEIGHT * len(encode(frame)) for frame in frames]
    assert sum(sizes) > BODY_WEIGHT * m.MAX_OPEN_BODY
    limits = PeerLimits()
    assert {limits.frame(size, None, 1, 0.0) for size in sizes} == {TAKE}


@pytest.mark.fault("E2.28")
@pytest.mark.parametrize("cost", [None, Cost.IDS, Cost.NACKS, Cost.HELLOS, Cost.VOCABS, Cost.PINGS])
def test_a_flood_is_bounded_and_then_cut(cost):
    """Each cost has a bound of its own: other frames are taken all the same."""
    rates = FEW if cost is None else FEW | {Cost.FRAMES: Rate(10**6, 10**6)}
    limits = PeerLimits(rates)
    actions = send(limits, 6000, cost, interval=0.001)
    first = actions.index(DROP)
    assert actions.index(CUT) == pytest.approx(first + 3 * 1000, abs=2)
    burst = FEW[cost or Cost.FRAMES].burst
    assert actions.count(TAKE) <= burst + 6 * 10 + 1
    assert cost is None or send(limits, 1, begin=6.0) == [TAKE]


@pytest.mark.fault("E2.28")
def test_invalid_frames():
    """A few are dropped; a peer that sends many is cut off."""
    slow = PeerLimits(FEW)
    assert {slow.bad(number / 10) for number in range(200)} == {DROP}
    fast = PeerLimits(FEW)
    assert [fast.bad(0.0) for _ in range(21)] == [DROP] * 20 + [CUT]


def test_keys_have_accounts_of_their_own():
    """There are at most so many."""
    accounts = PeerAccounts(FEW)
    flood = accounts.limits(b"flood", "")
    assert DROP in send(flood, 30)
    assert send(accounts.limits(b"flood", "good"), 1) == [TAKE]
    assert accounts.limits(b"flood", "") is flood
    for number in range(10_000):
        accounts.limits(b"%d" % number)
    assert accounts.limits(b"flood", "") is not flood


def limits_after(pause):
    """Return the limits of a peer after a flood, and after the idle ones were forgotten."""
    accounts = PeerAccounts(FEW)
    limits = accounts.limits(b"flood", "")
    send(limits, 30)
    accounts.forget_idle(pause)
    return limits, accounts.limits(b"flood", "")


def test_a_peer_that_used_its_limits_up_is_not_forgotten():
    before, after = limits_after(1.0)
    assert after is before


def test_a_peer_that_may_send_as_much_as_a_new_one_is_forgotten():
    before, after = limits_after(3600.0)
    assert after is not before


PROTOCOL = Path(__file__).parents[3] / "wire" / "PROTOCOL.md"
LIMIT = re.compile(
    r"^\| [^|]+ \| (\d+)( MiB)? \| (\d+)(?: MiB)? \| ?(\d*) ?\| ?(\d*) ?\|$", re.MULTILINE
)


def documented_limits():
    """Return the rate of each cost as PROTOCOL has it."""
    section = PROTOCOL.read_text(encoding="utf-8").partition("### 7.5")[2].partition("## 8.")[0]
    for rate, unit, burst, earned, per_draft in LIMIT.findall(section):
        size = 2**20 if unit else 1
        yield Rate(int(rate) * size, int(burst) * size, int(earned or 0), int(per_draft or 0))


def takes_exactly(limits, cost, amount, now):
    """Return True if this amount is taken, and no more. Each frame costs one frame as well."""
    rest = amount - 1 if cost is Cost.FRAMES else amount
    return (limits.frame(0, cost, rest, now), limits.frame(0, cost, 1, now)) == (TAKE, DROP)


@pytest.mark.parametrize(("cost", "rate"), [*zip(Cost, documented_limits(), strict=True)])
def test_the_protocol_tells_the_limits(cost, rate):
    """The burst is taken at once, then a second's rate, then the amount that each TRUTH earns."""
    limits = PeerLimits()
    assert takes_exactly(limits, cost, rate.burst, 0.0)
    assert takes_exactly(limits, cost, rate.per_second, 1.0)
    for drafts in (0, 2):
        limits.earn(drafts)
        assert takes_exactly(limits, cost, rate.earned + drafts * rate.per_draft, 1.0)
