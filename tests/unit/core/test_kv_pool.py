"""The cells that sequences share: those of a copy and its source count once."""

import pytest

from specmesh.core.kv_contents import KVContents
from specmesh.core.kv_orders import KVCopy, KVCut, KVOffload
from specmesh.core.kv_pool import KVBeginning, KVPool
from specmesh.core.kv_slots import GUEST_IDS, KVSlots

TEXTS = [tuple(range(1000 * number, 1000 * number + 100)) for number in range(4)]


@pytest.fixture
def pool():
    """Return a pool in which the sequence 1 began with 60 of the 100 ids of the sequence 0."""
    pool = KVPool(1000)
    pool.copied(1, 0, 60)
    return pool


def test_shared_cells_count_once(pool):
    assert pool.used({0: 100, 1: 90}) == 130


def test_they_stay_with_the_last_that_has_them(pool):
    pool.emptied(0)
    assert pool.used({0: 0, 1: 90}) == 90


def test_a_source_that_is_cut_gets_other_cells(pool):
    """Those of the copy are no longer its own."""
    pool.cut(0, 50)
    assert pool.used({0: 100, 1: 90}) == 50 + 50 + 40


def test_a_cut_within_its_own_cells(pool):
    pool.cut(1, 70)
    assert pool.used({0: 100, 1: 80}) == 120


def test_a_cut_within_the_shared_ones(pool):
    """What follows gets cells of its own."""
    pool.cut(1, 50)
    assert pool.used({0: 100, 1: 90}) == 100 + 40


def test_an_emptied_sequence_shares_nothing(pool):
    pool.emptied(1)
    assert pool.used({0: 100, 1: 90}) == 190


def test_a_sequence_that_comes_back_shares_nothing(pool):
    pool.left(1, 90)
    pool.taken(1, 90, saved=90)
    assert pool.away == {}
    assert pool.used({0: 100, 1: 90}) == 190


def test_an_emptied_sequence_takes_no_memory_of_the_host(pool):
    pool.left(0, 100)
    pool.emptied(0)
    assert pool.away == {}


def test_a_copy_of_a_copy(pool):
    pool.copied(2, 1, 80)
    assert pool.used({0: 100, 1: 90, 2: 95}) == 100 + 30 + 15


def test_one_that_is_away_fills_none(pool):
    pool.left(0, 100)
    assert pool.used({1: 90}) == 90
    assert pool.away == {0: 100}


def test_a_beginning_counts_as_it_will_be(pool):
    """Nothing is changed by that."""
    for _ in range(2):
        assert pool.used({0: 100}, (KVBeginning(0, 80, 200),)) == 220
    assert pool.used({0: 100}) == 100


def test_an_unknown_sequence_begins_empty(pool):
    assert pool.used({7: 5}) == 5


# --- slots with a pool


def slots(cells, host_ids=0, count=4):
    """Return slots of which none leaves before its cells are wanted."""
    return KVSlots(
        count,
        "copied",
        0,
        offloads=host_ids > 0,
        pool=KVPool(cells, host_ids),
        offload_after=10**6,
    )


def had(kept, ids):
    """Let a session on these ids come and go; its sequence."""
    slot = kept.acquire((*ids, 1), 0, claims={})
    kept.release(slot.seq, KVContents(ids, 0))
    kept.orders()
    return slot.seq


def test_the_least_recently_used_leaves_when_its_cells_are_wanted():
    kept = slots(250)
    first, second = had(kept, TEXTS[0]), had(kept, TEXTS[1])
    slot = kept.acquire((*TEXTS[2], 1), 0, claims={})
    assert kept.orders() == (KVCut(first, 0),)
    assert kept.filled({slot.seq: 101}) == 201
    assert kept.acquire((*TEXTS[1], 1), 0, claims={slot.seq: 101}).seq == second


def test_it_goes_to_the_hosts_memory_while_that_has_room():
    kept = slots(250, 150)
    first, second = had(kept, TEXTS[0]), had(kept, TEXTS[1])
    kept.make_room({}, 100)
    assert kept.orders() == (KVOffload(first, now=True),)
    kept.make_room({}, 200)
    assert kept.orders() == (KVCut(first, 0), KVOffload(second, now=True))


def test_it_goes_for_good_where_an_engine_offloads_nothing():
    kept = KVSlots(4, "copied", 0, offloads=False, pool=KVPool(250, host_ids=1000))
    had(kept, TEXTS[0])
    kept.acquire(tuple(range(5000, 5200)), 0, claims={})
    assert kept.orders() == (KVCut(0, 0),)


def test_a_prompt_with_ids_of_another_session_needs_cells_for_the_others_only():
    kept = slots(150)
    slot = kept.acquire((*TEXTS[0], 1), 0, claims={})
    others = [(slot.seq, KVContents(TEXTS[0], 0))]
    ids = (*TEXTS[0][:80], *TEXTS[1][:40])
    claims = {slot.seq: 101}
    assert kept.fits(ids, 0, others, claims, growth=9)
    assert not kept.fits(ids, 0, others, claims, growth=10)
    second = kept.acquire(ids, 0, others, claims=claims)
    assert kept.orders()[-1] == KVCopy(second.seq, slot.seq, 80)
    assert kept.filled({slot.seq: 101, second.seq: 120}) == 141


def test_a_copy_has_cells_of_its_own_where_an_engine_shares_none():
    kept = KVSlots(4, "copied", 0, pool=KVPool(230), shares=False)
    slot = kept.acquire((*TEXTS[0], 1), 0, claims={})
    others = [(slot.seq, KVContents(TEXTS[0], 0))]
    ids = (*TEXTS[0][:80], *TEXTS[1][:40])
    claims = {slot.seq: 101}
    assert kept.fits(ids, 0, others, claims, growth=9)
    assert not kept.fits(ids, 0, others, claims, growth=10)
    second = kept.acquire(ids, 0, others, claims=claims)
    assert kept.orders()[-1] == KVCopy(second.seq, slot.seq, 80)
    assert kept.filled({slot.seq: 101, second.seq: 120}) == 221


def test_an_idle_sequence_needs_no_cells_of_its_own():
    kept = slots(150)
    had(kept, TEXTS[0])
    assert kept.fits((*TEXTS[1], *range(50)), 0, [], {})


def test_a_sequence_comes_back_from_the_host_with_all_its_ids():
    """So many cells are wanted for a moment, whatever is reused of them."""
    kept = slots(150, 1000)
    had(kept, TEXTS[0])
    kept.make_room({}, 100)
    ids = (*TEXTS[0][:30], 1)
    assert kept.fits(ids, 0, [], {}, growth=50)
    assert not kept.fits(ids, 0, [], {}, growth=51)


def test_a_guest_has_cells_of_its_own():
    """It takes no long sequence from the host's memory into them."""
    long = tuple(range(GUEST_IDS + 100))
    kept = slots(GUEST_IDS + 150, 10_000)
    had(kept, long)
    assert kept.acquire((*long[:50], 1), 0).length == 0


def test_what_an_engine_has_lost_is_not_found():
    kept = slots(500)
    seq = had(kept, TEXTS[0])
    kept.lost([seq])
    assert kept.acquire((*TEXTS[0], 1), 0, claims={}).length == 0
