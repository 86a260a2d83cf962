"""The draft tree against a naive model: a set of paths."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specmesh.core.prefix import Prefix, extend_crc
from specmesh.core.proposal import Offer, Proposal
from specmesh.core.side import Side
from specmesh.core.tree import MAIN, MOST_BESIDE, OTHER, SECOND, DraftTree

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
        self.told = {}

    def insert(self, start, ids, branch, limit):
        if start not in self.paths:
            return None
        added, at = 0, start
        for token in ids:
            below = (*at, token)
            if below not in self.paths:
                if branch != SECOND and len(self.paths) - len(self.beside()) > limit:
                    break
                self.paths.add(below)
                added += 1
            self.told.setdefault(below, set()).add(branch)
            if branch == 0 or at not in self.main:
                self.main[at] = below
            at = below
        return added

    def beside(self):
        return [path for path in self.paths if path and self.told[path] == {SECOND}]

    def seconds(self, at):
        return [path[-1] for path, told in self.told.items() if path[:-1] == at and SECOND in told]

    def seconded(self, ids):
        right = []
        while all(right) and len(right) < len(ids) and (said := self.seconds(tuple(ids[: len(right)]))):
            right.append(said[0] == ids[len(right)])
        return tuple(right)

    def best_chain(self, limit):
        at = ()
        while at in self.main and len(at) < limit:
            at = self.main[at]
        return at

    def reroot(self, ids):
        ids, n = tuple(ids), len(ids)
        self.committed += ids
        self.paths = {path[n:] for path in self.paths if path[:n] == ids} | {()}
        self.told = {path[n:]: told for path, told in self.told.items() if path[:n] == ids and len(path) > n}
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
        assert len(tree) == len(model.paths) - 1 <= limit + len(model.beside())
        assert tree.position == len(model.committed)
        assert tree.lead() == len(model.best_chain(99))
        for length in (0, 1, 99):
            assert tree.best_chain(length) == model.best_chain(length)
        check_second(tree, model, data.draw(path), data.draw(st.integers(1, 6)))


def check_second(tree, model, ids, most):
    """What the second drafter said, beside the main chain and of any ids."""
    assert tree.flushed == all(told == {SECOND} for path, told in model.told.items() if len(path) == 1)
    chain = model.best_chain(4)
    beside = model.beside()
    assert tree.others(chain) == next((n for n in range(len(chain)) if chain[: n + 1] in beside), len(chain))
    assert tree.seconded(ids) == model.seconded(ids)
    side = tree.side(chain, most)
    if side is not None:
        assert side.fork < len(chain)
        assert 0 < len(side.ids) <= most - side.fork
        assert side.ids[0] != chain[side.fork]
        path = (*chain[: side.fork], *side.ids)
        assert all(SECOND in model.told[path[: n + 1]] for n in range(side.fork, len(path)))
    elif most > len(chain):
        assert all(model.seconds(chain[:n])[:1] in ([], [chain[n]]) for n in range(len(chain)))


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
        tree.insert(0, 0, range(start * 100, start * 100 + 100), OTHER)
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


def test_two_chains():
    """The second drafter's chain lies beside the first one's from where they part, and is the main chain once the text
    has gone along it, or where the first has nothing."""
    tree = DraftTree(0, 0)
    tree.insert(0, 0, [1, 4, 5, 6], SECOND)
    assert tree.best_chain(9) == (1, 4, 5, 6)
    assert tree.flushed
    assert tree.others([1, 4]) == 0
    tree.insert(0, 0, [1, 2, 3], MAIN)
    assert not tree.flushed
    assert tree.best_chain(9) == (1, 2, 3)
    assert tree.others([1, 2, 3]) == 3
    assert tree.side([1, 2, 3], 9) == Side(1, (4, 5, 6))
    assert tree.side([1, 2, 3], 3) == Side(1, (4, 5))
    assert tree.side([1, 2, 3], 1) is None
    assert tree.side([1], 9) is None
    assert tree.seconded([1, 2]) == (True, False)
    assert tree.seconded([1, 4, 5, 6, 7]) == (True, True, True, True)
    tree.reroot([1, 4], crc_of([1, 4]))
    assert tree.best_chain(9) == (5, 6)
    assert tree.flushed
    assert tree.side([5, 6], 9) is None


def test_a_second_drafter_takes_nobodys_room():
    """However much it sends, all of the first one's drafts find their place, and it gets so many nodes."""
    tree = DraftTree(0, 0, limit=20)
    for start in range(100):
        tree.insert(0, 0, range(start * 100, start * 100 + 100), SECOND)
    assert len(tree) == MOST_BESIDE
    assert tree.insert(0, 0, range(5000, 5020), MAIN) == 20
    assert tree.insert(0, 0, range(6000, 6020), OTHER) == 0
    assert len(tree) == MOST_BESIDE + 20
    tree.reroot([5000], crc_of([5000]))
    assert tree.insert(1, crc_of([5000]), range(70), SECOND) == MOST_BESIDE
