"""Earlier outputs: whose they are, how much memory they take, and which of them leave."""

import random
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specmesh.core.verifier.earlier_outputs import LEAST_IDS, EarlierOutputs

ROOM = 2**17
ALICE = ("key", b"alice")
BOB = ("user", 1000)


def output(seed, count=200):
    rng = random.Random(seed)
    return array("i", [rng.randrange(50_000) for _ in range(count)])


def knows(cache, account, ids, at=20):
    """Return True if an account's outputs go on after the beginning of an output."""
    outputs = cache.of(account)
    while True:
        match = outputs.find(ids[:at], longer_than=0)
        if match is not None:
            return outputs.after(match, 5) == ids[at : at + 5]
        if not outputs.tokens or outputs._index.complete:
            return False


def test_they_are_their_accounts_own():
    cache = EarlierOutputs(ROOM)
    cache.add(ALICE, output(1))
    assert knows(cache, ALICE, output(1))
    assert not knows(cache, BOB, output(1))


def test_a_key_and_a_user_of_one_name_are_two():
    cache = EarlierOutputs(ROOM)
    cache.add(("key", 1000), output(1))
    assert not knows(cache, BOB, output(1))


def test_what_one_account_learns_no_other_knows():
    cache = EarlierOutputs(ROOM)
    before = cache.of(BOB).acceptance.chain(3, 8)
    for _ in range(50):
        cache.of(ALICE).acceptance.record(3, 1, 0)
    assert cache.of(BOB).acceptance.chain(3, 8) == before


@given(st.lists(st.tuples(st.sampled_from([ALICE, BOB]), st.integers(0, 3000)), max_size=30))
def test_memory_is_bounded(outputs):
    cache = EarlierOutputs(ROOM)
    for seed, (account, count) in enumerate(outputs):
        cache.add(account, output(seed, count))
        assert cache.report().bytes <= ROOM


def test_the_tables_take_no_more_than_is_reported():
    cache = EarlierOutputs(2**22)
    for seed in range(100):
        cache.add(ALICE, output(seed))
        cache.of(ALICE).find([1, 2, 3], longer_than=0)
        tables = cache.of(ALICE)._index._tables
        assert sum(table.nbytes for table in tables) <= cache.report().bytes


def test_the_oldest_leave():
    cache = EarlierOutputs(ROOM)
    for seed in range(40):
        cache.add(ALICE, output(seed))
    assert not knows(cache, ALICE, output(0))
    assert knows(cache, ALICE, output(39))


def test_the_oldest_of_all_accounts_leave():
    cache = EarlierOutputs(ROOM)
    cache.add(BOB, output(0))
    for seed in range(1, 40):
        cache.add(ALICE, output(seed))
    assert not knows(cache, BOB, output(0))


def test_an_output_larger_than_all_memory_keeps_its_end():
    cache = EarlierOutputs(ROOM)
    long = output(1, 20_000)
    cache.add(ALICE, long)
    assert knows(cache, ALICE, long[-100:])
    assert cache.report().tokens < 20_000


@pytest.mark.parametrize("count", [0, LEAST_IDS - 1])
def test_short_outputs_are_not_kept(count):
    cache = EarlierOutputs(ROOM)
    cache.add(ALICE, output(1, count))
    assert cache.report().outputs == 0


def test_report():
    cache = EarlierOutputs(ROOM)
    cache.add(ALICE, output(1, 50))
    cache.add(BOB, output(2, 60))
    report = cache.report()
    assert (report.max_bytes, report.outputs, report.tokens) == (ROOM, 2, 110)
