"""The draft tree against a naive model: a set of paths."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specmesh.core.prefix import Prefix, extend_crc
from specmesh.core.proposal import Offer, Proposal
from specmesh.core.tree import DraftTree

PROFILE = settings(derandomize=True, deadline=None, max_examples=200)
token = st.integers(1, 3)
path = st.lists(token, max_size=5)
COMMITTED = [9, 8, 7]


def crc_of(tokens):
    """CRC-32 of a whole prefix."""
    return Prefix(tokens).crc


class Model:
    """Every path in the tree as a tuple of ids from the frontier, and the main child of each."""

    def __init__(self, committed):
        self.committed, self.paths, self.main = list(committed), {()}, {}

    def insert(self, start, ids, branch, limit):
        if start not in self.paths:
            return None
        added, at = 0, start
        for token in ids:
            below = (*at, token)
            if below not in self.paths:
                if len(self.paths) > limit:
                    break
                self.paths.add(below)
                added += 1
            if branch == 0 or at not in self.main:
                self.main[at] = below
            at = below
        return added

    def best_chain(self, limit):
        at = ()
        while at in self.main and len(at) < limit:
            at = self.main[at]
        return at

    def reroot(self, ids):
        ids, n = tuple(ids), len(ids)
        self.committed += ids
        self.paths = {path[n:] for path in self.paths if path[:n] == ids} | {()}
        self.main = {a[n:]: b[n:] for a, b in self.main.items() if a[:n] == ids and len(a) >= n}


@PROFILE
@given(st.data())
def test_tree_is_the_set_of_its_paths(data):
    """Any inserts and reroots: the tree holds exactly the model's paths, within its limit."""
    limit = data.draw(st.sampled_from([4, 12, 256]))
    tree, model = DraftTree(len(COMMITTED), crc_of(COMMITTED), limit), Model(COMMITTED)
    for _ in range(data.draw(st.integers(1, 12))):
        if data.draw(st.integers(0, 3)):
            start = tuple(data.draw(st.sampled_from(sorted(model.paths)) | path))
            ids, branch = data.draw(path), data.draw(st.integers(0, 2))
            base, crc = len(model.committed) + len(start), crc_of([*model.committed, *start])
            assert tree.insert(base, crc, ids, branch) == model.insert(start, ids, branch, limit)
        else:
            ids = data.draw(st.lists(token, min_size=1, max_size=3))
            model.reroot(ids)
            assert tree.reroot(ids, crc_of(model.committed)) == len(model.paths) - 1
        assert len(tree) == len(model.paths) - 1 <= limit
        assert tree.position == len(model.committed)
        assert tree.lead() == len(model.best_chain(99))
        for length in (0, 1, 99):
            assert tree.best_chain(length) == model.best_chain(length)


def test_wrong_prefix_finds_no_place():
    """A path built on another prefix, or at another position, is not taken in."""
    tree = DraftTree(3, crc_of(COMMITTED))
    assert tree.insert(3, crc_of([9, 8, 6]), [1]) is None
    assert tree.insert(2, crc_of(COMMITTED[:2]), [1]) is None
    assert tree.insert(4, crc_of(COMMITTED), [1]) is None
    assert len(tree) == 0


def test_bounded_against_a_flood():
    """Ten thousand ids leave at most `limit` nodes, and what was there first stays."""
    tree = DraftTree(0, 0, limit=50)
    tree.insert(0, 0, [1, 2, 3])
    for start in range(100):
        tree.insert(0, 0, range(start * 100, start * 100 + 100), branch=1)
    assert len(tree) == 50
    assert tree.best_chain(9) == (1, 2, 3)


def test_equal_crcs_do_not_escape_the_limit():
    """Two paths of equal length and CRC, which a peer can compute, do not hide nodes from the count."""
    first, second = extend_crc(0, 1), extend_crc(0, 2)
    twin = 5 ^ first ^ second
    twin -= (twin & 2**31) << 1
    assert extend_crc(first, 5) == extend_crc(second, twin)
    tree = DraftTree(0, 0)
    tree.insert(0, 0, [1, 5, 6])
    tree.insert(0, 0, [2, twin, 6, 7], branch=1)
    assert len(tree) == 4
    assert tree.reroot([1], first) == 2


def test_branch_joins_beside_the_main_chain():
    """A branch does not change the main chain; after a correction to it, it is the main chain."""
    tree = DraftTree(0, 0)
    tree.insert(0, 0, [1, 2, 3])
    tree.insert(1, crc_of([1]), [4, 5], branch=1)
    assert tree.best_chain(9) == (1, 2, 3)
    tree.reroot([1, 4], crc_of([1, 4]))
    assert tree.best_chain(9) == (5,)


@pytest.mark.parametrize("ids", [[1, 2, 3], [1, 2, 3, 4, 5], [2], [1, 3]], ids=str)
def test_reroot_keeps_only_what_agrees(ids):
    """What lies beyond the committed ids stays; a committed id that was not drafted empties the tree."""
    tree = DraftTree(0, 0)
    tree.insert(0, 0, [1, 2, 3, 4])
    drafted = [1, 2, 3, 4]
    left = drafted[len(ids) :] if drafted[: len(ids)] == ids else []
    assert tree.reroot(ids, crc_of(ids)) == len(left)
    assert tree.best_chain(9) == tuple(left)
    assert tree.insert(len(ids), crc_of(ids), [7]) == 1


def test_offers_are_what_drafts_were_sampled_from():
    """A path with its laws, and the main chain's next; a law told once is not changed by what is told again."""
    first, second, other = Proposal((1,), (1,)), Proposal((2, 3), (1, 1)), Proposal((1, 9), (1, 1))
    tree = DraftTree(0, 0)
    tree.insert(0, 0, [1, 2], proposals=(first, second))
    tree.insert(0, 0, [1, 2, 3], proposals=(other, None, None))
    assert tree.offers([1]) == (Offer(1, first), Offer(2, second))
    assert tree.offers([1, 2, 3]) == (Offer(1, first), Offer(2, second), Offer(3))
    tree.reroot([1], crc_of([1]))
    assert tree.offers([]) == (Offer(2, second),)
    tree.reroot([9], crc_of([1, 9]))
    assert tree.offers([]) == ()
