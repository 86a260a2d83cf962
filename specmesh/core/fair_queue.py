"""What waits for something that all clients share: tenants take turns at it, whoever came first and
with however much.

A tenant is named by a path, from the widest to the narrowest: an API key and one of its
connections, a connection alone, a drafter and a request of its clients. Turns are shared at each
part of the path, so a key has as many with a hundred connections as with one.
"""

from collections import Counter, deque
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

Tenant = tuple[Hashable, ...]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Waiting(Generic[T]):
    number: int  # in order of arrival
    tenant: Tenant
    item: T
    cost: int


def parts_of(tenant: Tenant) -> list[Tenant]:
    """Return a path's beginnings, the widest first, itself last."""
    return [tenant[:end] for end in range(1, len(tenant) + 1)]


class FairQueue(Generic[T]):
    """Items of tenants, at most `room` of their costs together, but for one that is there alone.
    Items of one tenant stay in order. Not safe from several threads."""

    def __init__(self, room: int) -> None:
        self._room, self._taken, self._number = room, 0, 0
        self._turns = _Turns[T]()

    def __len__(self) -> int:
        return len(self._turns)

    def push(self, tenant: Tenant, item: T, cost: int) -> T | None:
        """Add an item. Return the one that must give way to it for want of room, which may be
        itself; else None."""
        self._number += 1
        self._taken += cost
        self._turns.push(tenant, _Waiting(self._number, tenant, item, cost))
        if self._taken <= self._room or len(self) == 1:
            return None
        waiting = sorted(self._turns, key=lambda one: one.number)
        crowding = waiting[give_way([(one.tenant, one.cost) for one in waiting])]
        self._turns.remove(crowding.tenant, crowding)
        self._taken -= crowding.cost
        return crowding.item

    def pop(self) -> T:
        """Take the item whose turn it is; raise IndexError where there is none."""
        one = self._turns.pop()
        self._taken -= one.cost
        return one.item


class _Turns(Generic[T]):
    """The tenants of one part of the path, in the order of their next turns."""

    def __init__(self) -> None:
        self._own = deque[_Waiting[T]]()  # of a path that ends here
        self._inner = dict[Hashable, "_Turns[T]"]()

    def __len__(self) -> int:
        return len(self._own) + sum(map(len, self._inner.values()))

    def __bool__(self) -> bool:
        return bool(self._own or self._inner)

    def __iter__(self) -> Iterator[_Waiting[T]]:
        yield from self._own
        for inner in self._inner.values():
            yield from inner

    def push(self, path: Tenant, one: _Waiting[T]) -> None:
        if path:
            self._inner.setdefault(path[0], _Turns()).push(path[1:], one)
        else:
            self._own.append(one)

    def pop(self) -> _Waiting[T]:
        if self._own:
            return self._own.popleft()
        if not self._inner:
            raise IndexError("nothing waits")
        name = next(iter(self._inner))
        inner = self._inner.pop(name)
        one = inner.pop()
        if inner:
            self._inner[name] = inner  # its next turn is the last
        return one

    def remove(self, path: Tenant, one: _Waiting[T]) -> None:
        if not path:
            self._own.remove(one)
            return
        inner = self._inner[path[0]]
        inner.remove(path[1:], one)
        if not inner:
            del self._inner[path[0]]


def give_way(waiting: Sequence[tuple[Tenant, int]]) -> int:
    """Return the index of the one that gives way where not all that wait have room, in order of
    arrival, each with its cost: the newest of the tenant that takes most, at each part of the path.
    Of equals the newest's own tenant."""
    left, depth = list(range(len(waiting))), 0
    while any(len(waiting[index][0]) > depth for index in left):
        costs = Counter[Tenant]()
        for index in left:
            tenant, cost = waiting[index]
            costs[tenant[: depth + 1]] += cost
        newest = waiting[left[-1]][0][: depth + 1]
        most = max(costs.values())
        crowding = newest if costs[newest] == most else costs.most_common(1)[0][0]
        depth += 1
        left = [index for index in left if waiting[index][0][:depth] == crowding]
    return left[-1]
