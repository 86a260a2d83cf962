"""Drafters that know their verifiers by name: the resolver is slow, fails, or has a new answer."""

import socket
import threading

import pytest
from harness import until
from harness.loops import request, welcomed
from harness.ports import free_port
from harness.tables import cases
from named_texts import back

from specmesh.daemons.link.names import NameLookups, look_up

fault = pytest.mark.fault


class Names:
    """A resolver for chosen names; `asked` counts by name. Others it looks up as before."""

    def __init__(self):
        self.known = {}
        self.asked = {}
        self.running = self.most = 0
        self._real = socket.getaddrinfo

    def know(self, *numbers):
        """Know big.test by these numbers."""
        self.known["big.test"] = lambda: numbers

    def __call__(self, host, port, *more, **options):
        if host not in self.known:
            return [*self._real(host, port, *more, **options)]  # type: ignore[call-overload]
        self.asked[host] = self.asked.get(host, 0) + 1
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            numbers = self.known[host]()
        finally:
            self.running -= 1
        if not numbers:
            raise socket.gaierror(socket.EAI_NONAME, "nobody knows it")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (one, port or 0)) for one in numbers]


@pytest.fixture
def names(monkeypatch):
    made = Names()
    monkeypatch.setattr(socket, "getaddrinfo", made)
    return made


def at(bench, host):
    return f"tcp://{host}:{bench.address.rpartition(':')[2]}"


def named(bench, *hosts):
    """A drafter without keys for these hosts, all at this bench's port."""
    return bench.drafter(addresses=[at(bench, host) for host in hosts], insecure=True)


@fault("E4.50")
def test_a_name_that_hangs_holds_up_nobody_else(bench, names):
    """Neither another verifier's link nor the end; and it is looked up once, not again and
    again."""
    never = threading.Event()

    def hangs():
        never.wait()
        return ()

    names.known["asleep.test"] = hangs
    verifier = bench.verifier()
    drafter = named(bench, "127.0.0.1", "asleep.test")
    until(lambda: verifier.stats()["peers"], "the verifier has its drafter")
    verifier.ask(request(200)).whole(200)
    drafter.ask(request(50)).whole(50)
    assert drafter.stats()["totals"]["draft_tokens"] > 0
    assert names.asked == {"asleep.test": 1}
    bench.end(drafter)
    never.set()


@fault("E4.50")
def test_a_name_of_several_numbers(bench, names):
    """Nobody is at the first ones: all are tried."""
    names.know("127.0.0.3", "127.0.0.2", "127.0.0.1")
    bench.verifier()
    drafter = named(bench, "big.test")
    drafter.joins()
    drafter.ask(request()).whole(20)


@fault("E4.50")
def test_a_name_that_comes_to_mean_another_machine(bench, names):
    """It is looked up anew when the link is lost, and its verifier is found at its new place."""
    names.know("127.0.0.1")
    first = bench.verifier()
    drafter = named(bench, "big.test")
    drafter.joins()
    asked = names.asked["big.test"]
    bench.end(first)
    bench.address = at(bench, "127.0.0.2")
    bench.verifier()
    names.know("127.0.0.2")
    until(lambda: drafter.stats()["reconnects"] == 1, "it is found again")
    drafter.ask(request()).whole(20)
    assert names.asked["big.test"] > asked


@fault("E4.50")
def test_a_resolver_that_goes_away(bench, names):
    """The last good answer is kept; without one, the trouble is that the name is not known."""
    names.know()
    drafter = named(bench, "big.test")
    until(lambda: "big.test" in names.asked, "it is looked up")
    until(lambda: "nobody knows it" in drafter.trouble, "the name is not known")
    names.know("127.0.0.1")
    router = bench.router()
    router.welcomes()
    drafter.joins()
    names.know()
    back(router)
    until(lambda: drafter.stats()["reconnects"] == 1, "it is found again")


def test_two_verifiers_behind_one_name(bench, names):
    """It is looked up once for both at a time."""
    names.know("127.0.0.1")
    other = free_port()
    addresses = [at(bench, "big.test"), f"tcp://big.test:{other}"]
    bench.verifier()
    drafter = bench.drafter(addresses=addresses, insecure=True)
    drafter.joins()
    until(lambda: names.asked["big.test"] > 2, "the other one's name is looked up on")
    assert names.most == 1


def test_a_link_that_stands_is_not_looked_up(bench, names):
    """Nor is it moved to the name's new address: the verifier ends it by going away."""
    names.know("127.0.0.1")
    router, drafter = welcomed(bench, addresses=[at(bench, "big.test")], insecure=True)
    asked = names.asked["big.test"]
    names.know("127.0.0.9")
    for number in range(4):
        router.ping(number)
    assert names.asked["big.test"] == asked
    assert not drafter.trouble


def test_no_thread_for_a_look_up(monkeypatch):
    """It is as if nothing was found: the next time there may be one."""

    def refused(_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    found = []
    lookups = NameLookups(found.append)
    for _ in range(2):
        lookups.begin("big.test")
    assert [getattr(one, "trouble", "") for one in found] == ["can't start new thread"] * 2


@cases(
    "address, number",
    """
    [["192.0.2.7", 0], "192.0.2.7"]
    [["2001:db8::7", 0, 0, 0], "2001:db8::7"]
    [["fe80::7", 0, 0, 4], "fe80::7%4"]
    """,
)
def test_numbers_keep_their_zone(monkeypatch, address, number):
    """A link-local number is one machine on each link."""
    found = [(socket.AF_INET6, socket.SOCK_STREAM, 6, "", tuple(address))] * 2
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    assert look_up("big.test").numbers == (number,)
