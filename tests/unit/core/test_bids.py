"""How many drafts pay in a step that sessions share."""

from itertools import accumulate, product
from operator import mul

from hypothesis import assume, given
from hypothesis import strategies as st

from specmesh.core.draft_length.bids import DraftBid, allocate_drafts


def bid(*rates, chosen=False):
    return DraftBid(tuple(accumulate(rates, mul)), chosen)


one_bid = st.lists(st.floats(0, 1), max_size=3).map(lambda rates: bid(*rates))
bids = st.lists(one_bid, min_size=1, max_size=3)
steps = st.lists(st.floats(0.001, 1), min_size=12, max_size=12)
examples = given(bids, steps, st.integers(0, 9))


def allocated(bids, steps, room):
    return tuple(allocate_drafts(bids, room, lambda rows: steps[rows - 1]))


def rate(bids, steps, counts):
    """Return the tokens a second with these numbers of drafts."""
    tokens = len(bids)
    for bidder, count in zip(bids, counts, strict=True):
        tokens += sum(bidder.acceptance[:count])
    rows = len(bids) + sum(counts)
    return tokens / steps[rows - 1]


def ways(bids, room):
    """Return all allocations that have room."""
    offered = [range(len(bidder.acceptance) + 1) for bidder in bids]
    return [counts for counts in product(*offered) if sum(counts) <= room]


@examples
def test_an_allocation_fits(bids, steps, room):
    assert allocated(bids, steps, room) in ways(bids, room)


@examples
def test_no_allocation_has_more_tokens_a_second(bids, steps, room):
    """Drafts that promise less than 1 % more are left out."""
    best = max(rate(bids, steps, counts) for counts in ways(bids, room))
    found = rate(bids, steps, allocated(bids, steps, room))
    none = rate(bids, steps, [0] * len(bids))
    if best >= 1.015 * none or found != none:
        assert found >= best * (1 - 1e-9)


@examples
def test_drafts_that_are_taken_pay(bids, steps, room):
    counts = allocated(bids, steps, room)
    assume(any(counts))
    least = 1.01 * rate(bids, steps, [0] * len(bids))
    assert rate(bids, steps, counts) > least * (1 - 1e-9)


def test_drafts_that_a_client_has_chosen_come_first():
    bids = [bid(0.1, 0.1, chosen=True), bid(0.9)]
    assert allocate_drafts(bids, 9, lambda rows: rows**3) == [2, 0]


def test_of_two_clients_that_chose_the_first_has_the_room():
    bids = [bid(0.1, 0.1, chosen=True), bid(0.9, chosen=True)]
    assert allocate_drafts(bids, 2, lambda _: 1.0) == [2, 0]
