"""`--suffix-cache`: earlier outputs draft for later requests of the same owner, for no others.

The text of the simulated target repeats nothing, but it is the same for the same prompt. So
whatever an earlier output is drafted from it is drafted as a whole.
"""

from dataclasses import replace

import pytest
from harness.loops import Bench, Flaky, request, truth
from named_texts import kept, named

from specmesh.wire import messages as m

ALICE = ("key", b"alice")
BOB = ("key", b"bob")
USER = ("user", 1000)
COUNT = 80
WANTED = request(COUNT, None)


def drafted(running, account=None, wanted=WANTED):
    """Return the drafts and the accepted drafts that a request has of the suffix source."""
    end = running.ask(wanted, account=account).whole(COUNT)
    counts = end.report["by_source"].get("suffix", {"drafted": 0, "accepted": 0})
    return counts["drafted"], counts["accepted"]


@pytest.fixture
def verifier(bench):
    return bench.verifier(Flaky(), suffix_cache=4)


@pytest.fixture(scope="module")
def unaided():
    """Counts of the first request of a verifier: by its own text alone."""
    made = Bench()
    counts = drafted(made.verifier(Flaky()))
    made.close()
    return counts


@pytest.mark.parametrize("account", [ALICE, USER])
def test_an_owner_has_drafts_of_its_earlier_outputs(verifier, account, unaided):
    assert drafted(verifier, account) == unaided
    _, accepted = drafted(verifier, account)
    assert accepted > COUNT / 2


@pytest.mark.parametrize("other", [BOB, USER, ("user", b"alice"), None])
def test_another_owner_has_the_same_counts_as_without(verifier, other, unaided):
    for _ in range(2):
        drafted(verifier, ALICE)
    assert drafted(verifier, other) == unaided


def test_requests_without_an_owner_leave_nothing(verifier, unaided):
    for _ in range(3):
        assert drafted(verifier) == unaided
    assert verifier.stats()["suffix_cache"]["outputs"] == 0


def test_two_clients_of_a_drafter_leave_nothing_to_each_other(bench):
    """They come by OPEN, which names no owner."""
    verifier, drafter = bench.pair(Flaky(), suffix_cache=4)
    wanted = request(COUNT, 2)
    for _ in range(3):
        assert drafted(drafter, wanted=wanted) == (0, 0)
    assert verifier.stats()["suffix_cache"]["outputs"] == 0


def test_a_drafters_client_has_nothing_of_an_owner(bench):
    verifier, drafter = bench.pair(Flaky(), suffix_cache=4)
    for _ in range(2):
        drafted(verifier, ALICE)
    assert drafted(drafter, wanted=request(COUNT, 2)) == (0, 0)


def test_without_the_option_nothing_is_kept(bench, unaided):
    verifier = bench.verifier(Flaky())
    for _ in range(2):
        assert drafted(verifier, ALICE) == unaided
    assert "suffix_cache" not in verifier.stats()


def test_a_request_that_wants_no_cache_neither_has_nor_leaves_any(verifier, unaided):
    alone = replace(WANTED, params=replace(WANTED.params, cache_prompt=False))
    for _ in range(2):
        assert drafted(verifier, ALICE, alone) == unaided
    drafted(verifier, ALICE)
    assert drafted(verifier, ALICE, alone) == unaided


def test_a_text_that_another_owner_takes_over_is_nobodys(bench):
    """It was opened by a drafter's client here, and Alice asks for it by its name."""
    verifier = bench.verifier(Flaky(step_ms=5), suffix_cache=4)
    dealer = bench.dealer()
    dealer.say(named(1, max_tokens=COUNT))
    dealer.expect(m.Opened)
    dealer.say(m.Bye())
    kept(verifier)
    by_name = replace(WANTED, prompt_ids=None, named_only=True, id="cmpl-" + 32 * "a")
    verifier.ask(by_name, account=ALICE).end()
    assert verifier.stats()["suffix_cache"]["outputs"] == 0


def test_stats(verifier):
    drafted(verifier, ALICE)
    section = verifier.stats()["suffix_cache"]
    assert section["max_bytes"] == 4 * 2**20
    assert section["tokens"] == len(truth(COUNT))
    assert 0 < section["bytes"] < 2**16
