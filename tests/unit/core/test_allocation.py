"""How many drafts pay in a step that sessions share."""

from itertools import accumulate, product
from operator import mul

from hypothesis import given, settings
from hypothesis import strategies as st

from specmesh.core.draft_length.gate import LEAST_GAIN, DraftBid, allocate_drafts

PROFILE = settings(derandomize=True, deadline=None, max_examples=300)


def bid(*rates, chosen=False):
    return DraftBid(tuple(accumulate(rates, mul)), chosen)


bids = st.lists(st.builds(lambda rates: bid(*rates), st.lists(st.floats(0, 1), max_size=3)), min_size=1, max_size=3)
steps = st.lists(st.floats(0.001, 1), min_size=12, max_size=12)


@PROFILE
@given(bids, steps, st.integers(0, 9))
def test_nothing_else_gives_more_tokens_a_second(bids, steps, room):
    def rate(counts):
        gained = sum(sum(one.stands[:count]) for one, count in zip(bids, counts, strict=True))
        return (len(bids) + gained) / steps[len(bids) + sum(counts) - 1]

    counts = allocate_drafts(bids, room, lambda rows: steps[rows - 1])
    ways = [way for way in product(*(range(len(one.stands) + 1) for one in bids)) if sum(way) <= room]
    assert tuple(counts) in ways
    best, none = max(map(rate, ways)), rate([0] * len(bids))
    assert rate(counts) >= best * (1 - 1e-9) or (not any(counts) and best <= LEAST_GAIN * none)


def test_what_a_client_has_chosen_comes_first():
    assert allocate_drafts([bid(0.1, 0.1, chosen=True), bid(0.9)], 9, lambda rows: float(rows) ** 3) == [2, 0]
    assert allocate_drafts([bid(0.1, 0.1, chosen=True), bid(0.9, chosen=True)], 2, lambda _: 1.0) == [2, 0]
