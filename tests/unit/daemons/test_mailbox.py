"""A queue that a poll loop can wait for."""

import select
import threading
from collections.abc import Iterator

import pytest

from specmesh.daemons.runtime.mailbox import Mailbox


@pytest.fixture
def mailbox() -> Iterator[Mailbox[int]]:
    made: Mailbox[int] = Mailbox()
    yield made
    made.close()


def readable(mailbox: Mailbox[int]) -> bool:
    return bool(select.select([mailbox.fileno()], [], [], 0)[0])


def test_items_come_in_order_and_once(mailbox: Mailbox[int]):
    """drain gives all items in order, then none; the descriptor is readable from an item until `quiet`."""
    assert not readable(mailbox)
    for item in range(3):
        mailbox.put(item)
    assert readable(mailbox)
    assert mailbox.drain() == [0, 1, 2]
    assert mailbox.drain() == []
    assert readable(mailbox)
    mailbox.quiet()
    assert not readable(mailbox)


def test_full_pipe_loses_nothing(mailbox: Mailbox[int]):
    """More items than a pipe holds bytes: put never blocks, every item arrives, and the loop ends up asleep."""
    for item in range(100_000):
        mailbox.put(item)
    got = []
    while readable(mailbox):
        mailbox.quiet()
        got += mailbox.drain()
    assert got == list(range(100_000))


def test_items_from_threads_wake_the_loop(mailbox: Mailbox[int]):
    """Each thread's items arrive in its order while the loop sleeps on the descriptor alone."""
    threads = [
        threading.Thread(target=lambda start=start: [mailbox.put(start + n) for n in range(500)])
        for start in (0, 1000, 2000)
    ]
    for thread in threads:
        thread.start()
    got: list[int] = []
    while len(got) < 1500:
        assert select.select([mailbox.fileno()], [], [], 10)[0], "asleep although items are there"
        mailbox.quiet()
        got += mailbox.drain()
    for thread in threads:
        thread.join()
    for start in (0, 1000, 2000):
        assert [item for item in got if start <= item < start + 1000] == list(range(start, start + 500))
