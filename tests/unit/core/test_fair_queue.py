"""Turns of clients: a tenant with many items delays the others by one item each."""

import pytest
from harness.tables import cases

from specmesh.core.fair_queue import FairQueue, give_way

ALICE = ("alice",)
BOB = ("bob",)


def popped(queue):
    return [queue.pop() for _ in range(len(queue))]


def queue_of(items, room=1000):
    """Return a queue with items, each as "TENANT CONNECTION NAME" before a comma."""
    queue = FairQueue(room)
    for item in items.split(", "):
        *tenant, name = item.split()
        assert queue.push(tuple(tenant), name, 1) is None
    return queue


@cases(
    "items, order",
    """
    ["alice a, alice b, alice c", "a b c"]
    ["alice a0, alice a1, alice a2, bob b0, bob b1", "a0 b0 a1 b1 a2"]
    ["alice 1 x0, alice 1 x1, alice 1 x2, alice 2 y", "x0 y x1 x2"]
    ["alice 1 a1, alice 2 a2, alice 3 a3, bob 1 b1, bob 1 b2", "a1 b1 a2 b2 a3"]
    ["a, b, c", "a b c"]
    """,
)
def test_tenants_and_their_connections_take_turns(items, order):
    assert popped(queue_of(items)) == order.split()


def test_a_late_tenant_waits_for_one_item_of_each_other():
    queue = queue_of("alice a0, alice a1, alice a2")
    queue.pop()
    queue.push(BOB, "b", 1)
    assert [queue.pop(), queue.pop()] == ["a1", "b"]


def test_an_empty_queue():
    with pytest.raises(IndexError):
        FairQueue[str](1).pop()


def test_the_newest_item_of_the_tenant_with_most_gives_way():
    queue = queue_of("alice a0, alice a1, bob b0", room=3)
    assert queue.push(BOB, "b1", 1) == "b1"  # Bob would have as much as Alice
    assert queue.push(("carol",), "c0", 1) == "a1"
    assert popped(queue) == ["a0", "b0", "c0"]


def test_room_is_that_of_costs():
    queue = FairQueue[str](10)
    assert queue.push(ALICE, "long", 50) is None  # there is always room for one
    assert queue.push(BOB, "short", 1) == "long"
    assert queue.push(BOB, "again", 9) is None
    assert queue.push(ALICE, "late", 5) == "again"  # Bob would have most
    assert popped(queue) == ["short", "late"]
    assert queue.push(BOB, "free", 10) is None


@cases(
    "waiting, index",
    """
    [[["alice", 1]], 0]
    [[["alice", 5], ["bob", 1]], 0]
    [[["alice", 5], ["bob", 1], ["bob", 5]], 2]
    [[["alice", 2], ["bob", 1], ["alice", 2], ["bob", 1]], 2]
    [[["alice 1", 9], ["alice 2", 5], ["bob 1", 10]], 0]
    [[["alice 1", 3], ["alice 2", 3], ["alice 1", 1]], 2]
    [[["", 4], ["alice", 5]], 1]
    """,
)
def test_the_item_that_gives_way(waiting, index):
    assert give_way([(tuple(tenant.split()), cost) for tenant, cost in waiting]) == index
