"""A queue for something that all clients share: tenants take turns at it.

A tenant gets no more turns for many items, or for older ones.

A tenant is named by a path, from the widest to the narrowest: an API key and one of its
connections, a connection alone, a drafter and a request of its clients. Turns are shared at each
part of the path, so a key has as many with a hundred connections as with one.

An example. Key A has the connections x and y with the items x1 x2 x3 and y1, key B has z1. They
leave in the order x1 z1 y1 x2 x3: A and B take turns, and within A's turns x and y do.

If there is no room for another item, one of the tenant that takes most gives way, its newest. So
whoever sends much is refused first, and cannot have others refused.
"""

from collections import Counter, deque
from collections.abc import Hashable, Iterator, Sequence
from operator import attrgetter
from typing import Generic, NamedTuple, TypeVar

Tenant = tuple[Hashable, ...]

T = TypeVar("T")


class _Waiting(NamedTuple, Generic[T]):
    """An item that waits, and the room that it takes."""

    number: int  # in order of arrival
    tenant: Tenant
    item: T
    cost: int


def parts_of(tenant: Tenant) -> list[Tenant]:
    """Return a path's beginnings, the widest first, itself last."""
    return [tenant[:end] for end in range(1, len(tenant) + 1)]


class FairQueue(Generic[T]):
    """Items of tenants. Those of one tenant stay in order. Not safe from several threads."""

    def __init__(self, room: int) -> None:
        """Begin without items. room: most cost of all items, unless there is only one."""
        self._room = room
        self._taken = 0
        self._number = 0
        self._turns = _Turns[T]()

    def __len__(self) -> int:
        return len(self._turns)

    def push(self, tenant: Tenant, item: T, cost: int) -> T | None:
        """Add an item; return one that must give way for want of room, perhaps itself, or None."""
        self._number += 1
        self._taken += cost
        self._turns.push(tenant, _Waiting(self._number, tenant, item, cost))
        # An item larger than the room is served when nothing else waits, or it never would be.
        if self._taken <= self._room or len(self) == 1:
            return None
        waiting = sorted(self._turns, key=attrgetter("number"))
        costs = [(waits.tenant, waits.cost) for waits in waiting]
        crowding = waiting[give_way(costs)]
        self._turns.remove(crowding.tenant, crowding)
        self._taken -= crowding.cost
        return crowding.item

    def pop(self) -> T:
        """Take the item whose turn it is; raise IndexError without any."""
        first = self._turns.pop()
        self._taken -= first.cost
        return first.item


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

    def push(self, path: Tenant, waits: _Waiting[T]) -> None:
        """Add an item below this part of the path; a new tenant's turn is the last."""
        if path:
            inner = self._inner.setdefault(path[0], _Turns())
            inner.push(path[1:], waits)
        else:
            self._own.append(waits)

    def pop(self) -> _Waiting[T]:
        """Take the item whose turn it is; those of a path that ends here come first."""
        if self._own:
            return self._own.popleft()
        if not self._inner:
            raise IndexError("nothing waits")
        name = next(iter(self._inner))
        # A tenant without items leaves the circle, so names that are gone take no memory.
        inner = self._inner.pop(name)
        first = inner.pop()
        if inner:
            self._inner[name] = inner  # its next turn is the last
        return first

    def remove(self, path: Tenant, waits: _Waiting[T]) -> None:
        """Take out an item that gives way, wherever it stands."""
        if not path:
            self._own.remove(waits)
            return
        inner = self._inner[path[0]]
        inner.remove(path[1:], waits)
        if not inner:
            del self._inner[path[0]]


def give_way(waiting: Sequence[tuple[Tenant, int]]) -> int:
    """Return the index of the item that gives way to the others for want of room.

    It is the newest item of the tenant that takes most, at each part of the path. If several take
    most, it is that of the newest item's own tenant, if this is one of them.

    waiting: the tenant and cost of each item, in order of arrival.
    """
    left = list(range(len(waiting)))
    depth = 0
    while any(len(waiting[index][0]) > depth for index in left):
        depth += 1
        costs = Counter[Tenant]()
        for index in left:
            tenant, cost = waiting[index]
            costs[tenant[:depth]] += cost
        newest, _ = waiting[left[-1]]
        # Among equals the newest comer gives way, so that nobody is pushed out by one who took no
        # less.
        crowding = newest[:depth]
        if costs[crowding] < max(costs.values()):
            [(crowding, _)] = costs.most_common(1)
        left = [index for index in left if waiting[index][0][:depth] == crowding]
    return left[-1]
