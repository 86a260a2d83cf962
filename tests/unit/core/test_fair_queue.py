"""Turns at what clients share: a tenant with much delays the others by one item each."""

import pytest

from specmesh.core.fair_queue import FairQueue, Tenant, give_way

ALICE, BOB = ("alice",), ("bob",)


def popped(queue: FairQueue[str]) -> list[str]:
    return [queue.pop() for _ in range(len(queue))]


def queue_of(*items: tuple[Tenant, str], room: int = 1000) -> FairQueue[str]:
    queue = FairQueue[str](room)
    for tenant, item in items:
        assert queue.push(tenant, item, 1) is None
    return queue


def test_one_tenants_items_stay_in_order():
    assert popped(queue_of(*((ALICE, name) for name in "abcd"))) == ["a", "b", "c", "d"]


def test_tenants_take_turns():
    items = [(ALICE, f"a{number}") for number in range(4)] + [(BOB, "b0"), (BOB, "b1")]
    assert popped(queue_of(*items)) == ["a0", "b0", "a1", "b1", "a2", "a3"]


def test_who_comes_late_waits_for_one_item_of_each_other():
    queue = queue_of(*((ALICE, f"a{number}") for number in range(100)))
    queue.pop()
    queue.push(BOB, "b", 1)
    assert [queue.pop(), queue.pop()] == ["a1", "b"]


def test_a_key_has_as_many_turns_with_many_connections_as_with_one():
    items = [(("alice", number), f"a{number}") for number in range(5)] + [
        (("bob", 1), f"b{number}") for number in range(5)
    ]
    order = popped(queue_of(*items))
    assert [name[0] for name in order] == ["a", "b"] * 5
    assert order[::2] == ["a0", "a1", "a2", "a3", "a4"]


def test_connections_of_a_key_take_turns():
    items = [(("alice", 1), f"x{number}") for number in range(3)] + [(("alice", 2), "y")]
    assert popped(queue_of(*items)) == ["x0", "y", "x1", "x2"]


def test_those_without_a_tenant_come_in_order():
    assert popped(queue_of(*(((), name) for name in "abc"))) == ["a", "b", "c"]


def test_nothing_comes_of_an_empty_queue():
    with pytest.raises(IndexError):
        FairQueue[str](1).pop()


def test_the_newest_of_the_tenant_with_most_gives_way():
    queue = queue_of((ALICE, "a0"), (ALICE, "a1"), (BOB, "b0"), room=3)
    assert queue.push(BOB, "b1", 1) == "b1"  # which would have as much as Alice
    assert queue.push(("carol",), "c0", 1) == "a1"
    assert popped(queue) == ["a0", "b0", "c0"]


def test_room_is_that_of_costs():
    queue = FairQueue[str](10)
    assert queue.push(ALICE, "long", 50) is None  # one alone always has room
    assert queue.push(BOB, "short", 1) == "long"
    assert queue.push(BOB, "again", 9) is None
    assert queue.push(ALICE, "late", 5) == "again"  # Bob would have most
    assert popped(queue) == ["short", "late"]
    assert queue.push(BOB, "free", 10) is None


@pytest.mark.parametrize(
    ("waiting", "index"),
    [
        ([(ALICE, 1)], 0),
        ([(ALICE, 5), (BOB, 1)], 0),
        ([(ALICE, 5), (BOB, 1), (BOB, 5)], 2),
        ([(ALICE, 2), (BOB, 1), (ALICE, 2), (BOB, 1)], 2),
        ([(("a", 1), 9), (("a", 2), 5), (("b", 1), 10)], 0),
        ([(("a", 1), 3), (("a", 2), 3), (("a", 1), 1)], 2),
        ([((), 4), (ALICE, 5)], 1),
    ],
)
def test_who_gives_way(waiting, index):
    assert give_way(waiting) == index
