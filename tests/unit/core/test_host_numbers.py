"""Getting to a verifier, in virtual time. The numbers behind its name: one look-up at a time,
every number tried, the last good answer kept. When it is greeted."""

from itertools import pairwise

import pytest

from specmesh.core.host_numbers import HostNumbers
from specmesh.core.liveness import Greeting

TICK = 0.1


def tried(host, seconds, *, there=False, start=0.0):
    """The numbers that are tried in so many seconds, in order, each once as it is turned to."""
    numbers = []
    for tick in range(round(seconds / TICK)):
        if host.moves(start + tick * TICK, there=there):
            numbers.append(host.number)
    return numbers


@pytest.mark.parametrize("literal", ["127.0.0.1", "192.0.2.7", "::1", "fe80::1%eth0"])
def test_a_number_is_never_looked_up(literal):
    host = HostNumbers(literal)
    assert host.number == literal
    assert not any(host.due(now, there=False) for now in range(100))
    assert tried(host, 60) == []


def test_this_host_is_tried_by_both_its_numbers():
    host = HostNumbers("localhost")
    assert host.number == "127.0.0.1"
    assert not host.due(9.0, there=False)
    assert tried(host, 7.5) == ["::1", "127.0.0.1"]


def test_one_look_up_at_a_time():
    """However long it takes, the next comes after it; and none while the verifier is there."""
    host = HostNumbers("big.test")
    assert host.due(0.0, there=False)
    assert not any(host.due(now, there=False) for now in range(1000))
    host.failed("no such name", 1000.0)
    assert not host.due(1001.9, there=False)
    assert not host.due(2000.0, there=True)
    assert host.due(2000.0 + TICK, there=False), "at once when it is lost"


def test_the_same_numbers_in_another_order_change_nothing():
    """Resolvers shuffle; each number has its turn."""
    host = HostNumbers("big.test")
    now = 0.0
    seen = set()
    for _ in range(4):
        others = sorted({"10.0.0.1", "10.0.0.2"} - {host.number})
        before = [host.number] if host.number else []
        host.answered((*before, *others, "10.0.0.3"), now)  # the third always comes last
        seen.update(tried(host, 3.1, start=now))
        now += 3.1
    assert seen == {"10.0.0.1", "10.0.0.2", "10.0.0.3"}


def test_a_number_that_has_served_gets_its_time_again():
    """After a loss the same number comes first, since most verifiers come back at it."""
    host = HostNumbers("big.test")
    host.answered(("10.0.0.1", "10.0.0.2"), 0.0)
    assert host.moves(0.0, there=False)
    assert tried(host, 100, there=True) == []
    assert tried(host, 2.9, start=100.0) == []
    assert tried(host, 0.2, start=103.0) == ["10.0.0.2"]


@pytest.mark.parametrize("share", [0.5, 1.0])
def test_a_verifier_of_another_version_is_greeted_seldom(share):
    """Each HELLO to it is a bad frame, of which it takes one a second from all drafters of a
    key."""
    greeting, times = Greeting(0.0), []
    for tick in range(3000):
        now = tick * TICK
        if greeting.due(now, share):
            times.append(now)
            greeting.sent()
            greeting.refused(now + 0.01, share)
    assert all(later - one >= share * 15 for one, later in pairwise(times))
    assert len(times) > 16
    greeting.begins(now)
    assert greeting.due(now, share), "another way to it is tried at once"
