"""The draft tree: candidate continuations of the committed frontier, as drafters sent them.

Every node is found by (position, CRC-32 of the whole prefix up to it), which is what a DRAFT frame carries. A frame
built on a prefix that is not here finds no node: drafts of a rejected chain cannot attach to the next one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

from specmesh.core.prefix import extend_crc
from specmesh.core.proposal import Offer, Proposal
from specmesh.core.side import Side

MAIN, SECOND, OTHER = range(3)
"""Whose branch: the main chain of the session's drafter, the chain of the one that drafts beside it, or any other."""

MOST_BESIDE = 64
"""Nodes that the second drafter may have alone: it takes nobody else's room."""


@dataclass(slots=True)
class _Node:
    token: int
    position: int
    crc: int
    proposal: Proposal | None = None
    children: dict[int, "_Node"] = field(default_factory=dict)
    main: "_Node | None" = None
    told: int = 0  # by which branches, a bit each

    def is_of(self, branch: int) -> bool:
        return bool(self.told >> branch & 1)

    @property
    def beside(self) -> bool:
        """Whether the second drafter alone has told it."""
        return self.told == 1 << SECOND

    def second(self) -> "_Node | None":
        """What the second drafter says next."""
        return next((child for child in self.children.values() if child.is_of(SECOND)), None)


class DraftTree:
    """Drafts beyond the frontier; bounded to `limit` nodes and MOST_BESIDE more, whatever a peer sends."""

    def __init__(self, position: int, crc: int, limit: int = 192) -> None:
        self._limit = limit
        self._root = _Node(-1, position, crc)
        self._nodes = {(position, crc): self._root}
        self._beside = 0

    def __len__(self) -> int:
        return len(self._nodes) - 1

    @property
    def position(self) -> int:
        """Absolute position of the first drafted token: the number of committed ids."""
        return self._root.position

    def insert(
        self,
        base: int,
        crc: int,
        ids: Sequence[int],
        branch: int = MAIN,
        proposals: Sequence[Proposal | None] = (),
    ) -> int | None:
        """Hang `ids` below the node at (base, crc) and return how many are new; None where there is no such node.

        MAIN becomes the main chain at each node it passes, another branch only where there is none. Ids over the limit
        are dropped. `proposals` are what they were sampled from, all or none; of a draft that is here it stays as it
        was first told.
        """
        node = self._nodes.get((base, crc))
        if node is None:
            return None
        added = 0
        for token, proposal in zip_longest(ids, proposals):
            child = node.children.get(token)
            if child is None:
                child = self._grow(node, token, proposal, branch)
                if child is None:
                    break
                added += 1
            elif child.beside and branch != SECOND:
                self._beside -= 1
            child.told |= 1 << branch
            if branch == MAIN or node.main is None:
                node.main = child
            node = child
        return added

    def best_chain(self, limit: int) -> tuple[int, ...]:
        """The main chain from the frontier, at most `limit` ids."""
        chain: list[int] = []
        node = self._root.main
        while node is not None and len(chain) < limit:
            chain.append(node.token)
            node = node.main
        return tuple(chain)

    def offers(self, drafts: Sequence[int]) -> tuple[Offer, ...]:
        """These drafts, a path from the frontier, with what they were sampled from, and the main chain's next where
        there is one. Of a draft that is not here nothing is known."""
        found = list[Offer]()
        node: _Node | None = self._root
        for token in drafts:
            node = node.children.get(token) if node is not None else None
            found.append(Offer(token, node.proposal if node is not None else None))
        if node is not None and node.main is not None:
            found.append(Offer(node.main.token, node.main.proposal))
        return tuple(found)

    def side(self, drafts: Sequence[int], most: int) -> Side | None:
        """The second drafter's chain where it leaves these drafts, a path from the frontier; None where it does not.
        Fork and ids are `most` together at most."""
        node = self._root
        for fork, token in enumerate(drafts):
            child = node.second()
            if child is not None and child.token != token:
                ids = list[int]()
                while child is not None and fork + len(ids) < most:
                    ids.append(child.token)
                    child = child.second()
                return Side(fork, tuple(ids)) if ids else None
            if token not in node.children:
                return None
            node = node.children[token]
        return None

    def others(self, drafts: Sequence[int]) -> int:
        """How many of these drafts, a path from the frontier, come before the first that the second drafter alone has
        told."""
        node: _Node | None = self._root
        for index, token in enumerate(drafts):
            node = node.children.get(token) if node is not None else None
            if node is not None and node.beside:
                return index
        return len(drafts)

    def seconded(self, ids: Sequence[int]) -> tuple[bool, ...]:
        """Whether the second drafter was right about each of these ids, which follow the frontier, as far as it had
        drafts: up to its first wrong one."""
        right, node = list[bool](), self._root
        for token in ids:
            child = node.second()
            if child is None:
                break
            right.append(child.token == token)
            if child.token != token:
                break
            node = child
        return tuple(right)

    @property
    def flushed(self) -> bool:
        """Whether only the second drafter has drafts here."""
        return all(child.beside for child in self._root.children.values())

    def lead(self) -> int:
        """How many drafts the main chain holds."""
        return len(self.best_chain(len(self)))

    def cut(self, length: int) -> None:
        """Drop what the main chain has beyond its first `length` drafts."""
        node = self._root
        for _ in range(length):
            assert node.main is not None, "a chain is cut where it is"
            node = node.main
        dropped, node.main = node.main, None
        if dropped is not None:
            del node.children[dropped.token]
            self._index()

    def reroot(self, ids: Sequence[int], crc: int) -> int:
        """Move the frontier over the newly committed `ids`, whose CRC is then `crc`; return the nodes kept.

        What was drafted ahead and still agrees stays; everything else goes.
        """
        position = self.position + len(ids)
        node: _Node | None = self._root
        for token in ids:
            node = node.children.get(token) if node is not None else None
        self._root = node if node is not None else _Node(-1, position, crc)
        self._index()
        return len(self)

    def _index(self) -> None:
        """Note every node that hangs on the root."""
        self._nodes, self._beside = {}, 0
        stack = [self._root]
        while stack:
            kept = stack.pop()
            self._nodes[kept.position, kept.crc] = kept
            self._beside += kept.beside and kept is not self._root  # the root is text
            stack.extend(kept.children.values())

    def _grow(self, parent: _Node, token: int, proposal: Proposal | None, branch: int) -> _Node | None:
        """A new child; None at the limit, or where another path has this CRC already (a peer can find such a pair)."""
        child = _Node(token, parent.position + 1, extend_crc(parent.crc, token), proposal)
        beside = branch == SECOND
        full = self._beside >= MOST_BESIDE if beside else len(self) - self._beside >= self._limit
        if full or (child.position, child.crc) in self._nodes:
            return None
        self._beside += beside
        parent.children[token] = child
        self._nodes[child.position, child.crc] = child
        return child
