"""The sockets: where they may listen, what they take, who is let go, and what becomes of a verifier that does not read;
the limits that honest traffic passes and a flood does not, which is cut off where it goes on."""

import re
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain, repeat
from pathlib import Path
from types import SimpleNamespace

import pytest
import zmq
from harness import PATIENCE
from harness.ports import free_address

from specmesh.core.verifier.peer_limits import Cost, FrameAction, PeerAccounts, PeerLimits, Rate
from specmesh.daemons.link.dealer import Dealer, Route, close_dealer
from specmesh.daemons.link.sockets import Router, bind_router
from specmesh.errors import ConfigError
from specmesh.wire import messages as m
from specmesh.wire.codec import decode, encode

HELLOS, BYTES = 20, 10**7  # at once
RATES = {cost: Rate(200, 1000) for cost in Cost} | {
    Cost.HELLOS: Rate(5, HELLOS),
    Cost.BYTES: Rate(10**6, BYTES),
}


class Ends:
    """A router and one dealer that it has attached."""

    def __init__(self) -> None:
        self.context = zmq.Context[zmq.Socket[bytes]]()
        self.now = 0.0
        self.address = free_address()
        self.router = Router(
            bind_router(self.context, self.address, insecure=False), accounts=PeerAccounts(RATES)
        )
        self.dealer = self.another()
        assert self.dealer.poll(int(PATIENCE * 1000), zmq.POLLOUT)
        self.dealer.send(encode(m.Ping(1)))
        assert self.router.socket.poll(int(PATIENCE * 1000))
        [(self.identity, _, _)] = list(self.router.receive(0.0))
        assert self.router.inlet.known("User-Id") == "", "nobody was asked about its key"
        self.router.accounts.attach(self.identity, "")

    def another(self) -> "zmq.Socket[bytes]":
        return Route(self.context, self.address).open()

    def turn(self) -> list[m.Message | None]:
        assert self.router.socket.poll(int(PATIENCE * 1000))
        return [message for _, message, _ in self.router.receive(self.now)]

    def close(self) -> None:
        self.context.destroy(linger=0)


@pytest.fixture
def ends() -> Iterator[Ends]:
    yield (made := Ends())
    made.close()


def test_a_drafter_that_does_not_keep_up(ends: Ends):
    """It gets all that was taken for it, in order; once its queue is full it is let go, and gets nothing more, as what
    came between would be lost."""
    sent = 0
    while ends.router.send(ends.identity, m.Truth(sent, 0, 0, (0,) * 2000, 4)):
        sent += 1
        assert sent < 100_000
    for session in range(sent):
        assert ends.dealer.poll(int(PATIENCE * 1000))
        assert decode(ends.dealer.recv()).session == session
    assert ends.router.send(ends.identity, m.Done(0, "stop", 1)) == 0
    assert ends.router.take_gone() == {ends.identity: "behind"}


def test_a_drafter_that_has_left(ends: Ends):
    """It is told from one that does not keep up: its descriptor may be another's by now."""
    assert (ends.router.send(b"nobody", m.Bye()), ends.router.take_gone()) == (
        0,
        {b"nobody": "unreachable"},
    )


PING, HELLO = (
    encode(m.Ping(1)),
    encode(
        m.Hello(drafter="d", engine="m", model="none", vocab_fingerprint="", n_vocab=0, n_ctx=4096)
    ),
)


def test_what_is_too_much_is_dropped_unread(ends: Ends):
    """It is counted, not decoded, and some of it in a turn; then the wire is left alone for a moment."""
    flood = chain([HELLO] * HELLOS, repeat(HELLO[:-1] + b"?"))  # no JSON, which nobody notices
    ends.router.inlet = SimpleNamespace(receive=lambda: [ends.identity, next(flood)])
    rejected, taken = ends.router.traffic.rejected, 0
    for _ in range(3):
        before = rejected["rate"]
        while rejected["rate"] == before:
            taken += len(list(ends.router.receive(ends.now)))
            ends.now += 1e-4  # so little that no more is allowed by then
        dropped = rejected["rate"]
        assert (list(ends.router.receive(ends.now)), rejected["rate"]) == ([], dropped)
    assert (taken, rejected["body"]) == (HELLOS, 0)
    assert not ends.router.take_gone()


def test_another_peer_is_heard_beside_a_flood(ends: Ends):
    """Each of its frames is taken, although the other's queue is always full."""
    other = ends.another()
    assert other.poll(int(PATIENCE * 1000), zmq.POLLOUT)
    for number in range(20):
        for _ in range(200):
            with suppress(zmq.Again):
                ends.dealer.send(PING, zmq.NOBLOCK)
        other.send(encode(m.Nack(number, 0, 0)))
        heard: list[m.Message | None] = []
        while not heard:
            ends.now += 0.01
            heard = [message for message in ends.turn() if not isinstance(message, m.Ping)]
        assert heard == [m.Nack(number, 0, 0)]
    close_dealer(other)


def test_bytes_of_json_count_more(ends: Ends):
    """Large control frames, which take long to read, are dropped unread while as many bytes of ids would be taken."""
    order = encode(
        m.Open(
            ref=1,
            prompt="x" * 200_000,
            options={"max_tokens": 1, "temperature": 0, "seed": 1, "draft_n": 0},
        )
    )
    fit = BYTES // (8 * len(order))  # as PROTOCOL.md says
    assert [ends.router.objection([ends.identity, order], 0.0) for _ in range(fit + 1)] == [
        None
    ] * fit + ["rate"]
    assert ends.router.objection([ends.identity, encode(m.Draft(1, 0, 0, (1,) * 512))], 0.0) is None


NO_ADDRESSES = (
    "7071 127.0.0.1:7071 tcp:// tcp://:7071 tcp://127.0.0.1 tcp://127.0.0.1: tcp://127.0.0.1:0 tcp://127.0.0.1:70000 "
    "tcp://127.0.0.1:port tcp://127.0.0.1:-1 udp://127.0.0.1:7071 ipc:///run/x inproc://x http://127.0.0.1:7071"
)


@pytest.mark.parametrize("address", ["", *NO_ADDRESSES.split()])
@pytest.mark.parametrize("open_", ["bind", "connect"])
def test_what_is_no_address(address: str, open_: str):
    context = zmq.Context[zmq.Socket[bytes]].instance()
    with pytest.raises(ConfigError, match=f"--{open_}.*tcp://127.0.0.1:7071"):
        bind_router(context, address, insecure=True) if open_ == "bind" else Route(
            context, address
        ).open()


def test_no_heartbeats_of_libzmq():
    """They abort the process where a connection breaks while its queue is full."""
    socket = bind_router(zmq.Context.instance(), free_address(), insecure=True)
    assert socket.getsockopt(zmq.HEARTBEAT_IVL) == 0
    socket.close(0)


# --- at the drafter


def test_a_verifier_that_does_not_keep_up(ends: Ends):
    """A draft is dropped: the next one is as good. Without a CLOSE a session would go on for nobody, so the connection
    counts as cut."""
    dealer, sent = Dealer(Route(ends.context, ends.address)), 0
    assert dealer.socket.poll(int(PATIENCE * 1000), zmq.POLLOUT)
    while dealer.send(m.Draft(1, 0, 0, (0,) * 4000)):
        sent += 1
    assert dealer.traffic.frames_sent == sent > 0, "what is dropped is not counted as sent"
    assert not dealer.cut
    while dealer.send(m.Close(7)):  # into what the network has taken meanwhile
        assert not dealer.cut
    assert dealer.cut
    dealer.close(linger=0)


@pytest.mark.parametrize("room", [3, 4])
def test_no_room_for_another_connection(room: int):
    """It is refused in the system's words, as often as it is tried. room: for itself, or not even that."""
    context = zmq.Context[zmq.Socket[bytes]]()
    context.set(zmq.MAX_SOCKETS, room)  # 3 as one connection has, with its monitor
    dealer = Dealer(Route(context, free_address()))
    for _ in range(2):
        dealer.reconnect()
        assert (dealer.cut, str(dealer.refusal)[-19:]) == (True, "Too many open files")
    context.destroy(linger=0)


# --- limits of a peer

FRAME = 36
FEW = {cost: Rate(10, 20) for cost in Cost} | {
    Cost.BYTES: Rate(10**6, 10**6),
    Cost.IDS: Rate(10, 40, earned=30),
}


def test_an_honest_drafter_never_meets_limits():
    """A chain of 32 and a step's 17 for each TRUTH, a draft a millisecond, for a minute: all is taken, however fast the
    rounds are."""
    for rounds in (3, 30, 300, 2000):
        one, left = PeerLimits(), 0.0
        for turn in range(60 * rounds):
            now, left = turn / rounds, left + 1000 / rounds
            one.earn()
            assert one.frame(24, Cost.IDS, 0, now) is FrameAction.TAKE
            for _ in range(min(int(left), 49)):
                assert one.frame(24, Cost.IDS, 1, now) is FrameAction.TAKE
            left -= int(left)


def test_a_burst_is_slowed_and_forgiven():
    one = PeerLimits(FEW)
    for again in range(5):
        told = [one.frame(FRAME, None, 1, again * 4.0) for _ in range(70)]
        assert told == [FrameAction.TAKE] * 20 + [FrameAction.DROP] * 50


@pytest.mark.fault("E2.28")
def test_a_flood_is_bounded_and_then_cut():
    one = PeerLimits(FEW)
    told = [one.frame(FRAME, None, 1, n / 1000) for n in range(6000)]
    assert told.count(FrameAction.TAKE) <= 20 + 6 * 10 + 1
    first = told.index(FrameAction.DROP)
    assert told.index(FrameAction.CUT) == pytest.approx(first + 3 * 1000, abs=2)


@pytest.mark.parametrize("cost", [Cost.IDS, Cost.NACKS, Cost.HELLOS, Cost.VOCABS, Cost.PINGS])
def test_each_cost_has_a_bound_of_its_own(cost: Cost):
    one = PeerLimits(FEW | {Cost.FRAMES: Rate(10**6, 10**6)})
    told = [one.frame(FRAME, cost, 1, n / 90) for n in range(900)]
    assert told.count(FrameAction.TAKE) <= FEW[cost].burst + 10 * 10 + 1
    assert FrameAction.CUT in told
    assert one.frame(FRAME, None, 1, 10.0) is FrameAction.TAKE


@pytest.mark.fault("E2.28")
def test_frames_that_are_none():
    one, other = PeerLimits(FEW), PeerLimits(FEW)
    assert {one.bad(n / 10) for n in range(200)} == {FrameAction.DROP}
    assert [other.bad(0.0) for _ in range(21)] == [FrameAction.DROP] * 20 + [FrameAction.CUT]


def test_accounts_are_apart_and_bounded():
    accounts = PeerAccounts()
    while accounts.limits(b"flood", "").frame(1, None, 1, 0.0) is FrameAction.TAKE:
        pass
    assert accounts.limits(b"flood", "good").frame(1, None, 1, 0.0) is FrameAction.TAKE
    first = accounts.limits(b"first")
    for number in range(10_000):
        assert accounts.limits(b"%d" % number) is accounts.limits(b"%d" % number)
    assert accounts.limits(b"first") is not first


def test_the_protocol_tells_the_limits():
    """At once, in a second, and what a TRUTH earns, which is no more than at once."""
    text = (Path(__file__).parents[3] / "wire" / "PROTOCOL.md").read_text(encoding="utf-8")
    section = text.partition("### 7.5")[2].partition("## 8.")[0]
    rows = re.findall(
        r"^\| [^|]+ \| (\d+)( MiB)? \| (\d+)(?: MiB)? \| ?(\d*) ?\| ?(\d*) ?\|$",
        section,
        re.MULTILINE,
    )
    for cost, (rate, unit, burst, *more) in zip(Cost, rows, strict=True):
        one, size, (earned, per_draft) = (
            PeerLimits(),
            2**20 if unit else 1,
            (int(number or 0) for number in more),
        )
        at_once, per_second = (0.0, 9, int(burst) * size), (1.0, None, int(rate) * size)
        for now, drafts, most in (
            at_once,
            per_second,
            (1.0, 0, earned),
            (1.0, 2, earned + 2 * per_draft),
        ):
            if drafts is not None:
                one.earn(drafts)
            told = [one.frame(0, cost, amount, now) for amount in (most - (cost is Cost.FRAMES), 1)]
            assert told == [FrameAction.TAKE, FrameAction.DROP], cost
