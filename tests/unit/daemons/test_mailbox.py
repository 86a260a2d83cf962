"""What wakes a daemon's loop, and what ends its process where it makes no progress."""

import asyncio
import itertools
import select
from queue import SimpleQueue
from typing import Any

import pytest
from harness import PATIENCE

from specmesh.daemons.runtime.loops import DaemonLoop, Mailbox
from specmesh.daemons.runtime.process import STUCK, Notifier, watchdog
from specmesh.errors import Busy


def woken(mailbox: Mailbox[str]) -> bool:
    return bool(select.select([mailbox], [], [], 0)[0])


def test_only_what_is_urgent_wakes_a_dozing_loop():
    mailbox: Mailbox[str] = Mailbox()
    mailbox.put("tokens", urgent=False)
    assert woken(mailbox)
    assert mailbox.take() == ["tokens"]
    mailbox.dozing = True
    mailbox.put("more", urgent=False)
    assert not woken(mailbox)
    mailbox.put("the end")
    assert woken(mailbox)
    assert mailbox.take() == ["more", "the end"]
    assert not woken(mailbox)
    mailbox.close()


def test_a_loop_dozes_while_items_come_fast():
    """It takes what wakes it no more soon all the same, and is woken again once nothing came for a doze."""
    taken: list[int] = []
    methods: dict[str, Any] = {name: lambda *_: None for name in DaemonLoop.__abstractmethods__}
    methods |= {"_take": lambda _, item, now: taken.append(item), "_drained": lambda *_: True}
    daemon = type("Daemon", (DaemonLoop,), methods)(0.0, Busy("it stops"))
    numbers = itertools.count()

    async def put_until(reached: Any, *, fast: bool = False) -> None:
        while not reached():
            if fast:
                daemon.mailbox.put(next(numbers), urgent=False)
            await asyncio.sleep(0)

    async def use() -> None:
        serving = asyncio.create_task(daemon.serve())
        for _ in range(2):
            await put_until(lambda: daemon.mailbox.dozing, fast=True)
            daemon.mailbox.put(last := next(numbers), urgent=False)
            await put_until(lambda: last in taken)
            await put_until(lambda: not daemon.mailbox.dozing)
        daemon.stop()
        await serving

    asyncio.run(asyncio.wait_for(use(), PATIENCE))
    assert taken == list(range(next(numbers)))
    daemon.mailbox.close()


@pytest.mark.fault("E6.63")
@pytest.mark.fault("E8.91")
def test_a_stuck_process_ends_itself():
    """Without a manager that watches: after so many checks in a row without progress, and not before."""
    ended: SimpleQueue[int] = SimpleQueue()
    told = iter([1, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3])
    left = [0]

    def progress() -> int:
        left[0] += 1
        return next(told)

    with watchdog(progress, Notifier({}), interval=0.001, checks=3, end=ended.put):
        assert ended.get(timeout=PATIENCE) == STUCK
        assert left[0] == 8
