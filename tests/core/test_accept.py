"""The accept rule against a brute-force oracle."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specmesh.core.accept import Verdict, accept, accept_tree
from specmesh.core.side import Side

PROFILE = settings(derandomize=True, deadline=None, max_examples=300)
END = 0


def one_by_one(drafts, target, room):
    """What the target says alone, as far as the drafts carry it: (committed, accepted, tested)."""
    said = []
    while True:
        said.append(target[len(said)])
        agree = said == list(drafts[: len(said)])
        if not agree or said[-1] == END or len(said) == room:
            break
    accepted = sum(1 for n in range(1, len(drafts) + 1) if said[:n] == list(drafts[:n]))
    return tuple(said), accepted, min(len(said), len(drafts))


def judged(drafts, target, room):
    """accept() with a target that says `target`, and the rows that were looked at."""
    asked = []
    verdict = accept(drafts, lambda i: asked.append(i) or target[i], end_ids={END}, room=room)
    return verdict, asked


def test_every_small_case():
    """For all drafts and targets over three tokens the verdict is that of the target running alone."""
    for length in range(4):
        for drafts in itertools.product(range(3), repeat=length):
            for target in itertools.product(range(3), repeat=length + 1):
                for room in (1, 2, 9):
                    verdict, asked = judged(drafts, target, room)
                    committed, accepted, tested = one_by_one(drafts, target, room)
                    assert verdict == Verdict(committed, accepted, tested, committed[-1] == END)
                    assert asked == list(range(len(committed)))


@PROFILE
@given(st.lists(st.integers(0, 4), max_size=12), st.lists(st.integers(0, 4), min_size=13, max_size=13), st.data())
def test_committed_ids_are_the_targets(drafts, target, data):
    """Whatever is drafted, the committed ids are the target's own, in order, at least one and at most `room`."""
    room = data.draw(st.integers(1, 14))
    verdict, _ = judged(drafts, target, room)
    assert list(verdict.committed) == target[: len(verdict.committed)]
    assert 1 <= len(verdict.committed) <= min(room, len(drafts) + 1)
    assert verdict.accepted <= verdict.tested <= len(drafts)
    assert list(verdict.committed[: verdict.accepted]) == drafts[: verdict.accepted]


@pytest.mark.parametrize(
    ("drafts", "target", "room", "verdict"),
    [
        ((), (5,), 9, Verdict((5,), 0, 0, False)),
        ((5, 6), (5, 6, 7), 9, Verdict((5, 6, 7), 2, 2, False)),
        ((5, 6), (5, 8, 7), 9, Verdict((5, 8), 1, 2, False)),
        ((5, END, 6), (5, END, 6, 7), 9, Verdict((5, END), 2, 2, True)),
        ((5, 6), (END, 6, 7), 9, Verdict((END,), 0, 1, True)),
        ((5, 6), (5, 6, 7), 2, Verdict((5, 6), 2, 2, False)),
    ],
    ids=["no draft", "bonus", "correction", "accepted end", "end as correction", "no room for the bonus"],
)
def test_cases_by_name(drafts, target, room, verdict):
    """The named outcomes of a round."""
    assert judged(drafts, target, room)[0] == verdict


small = st.integers(0, 2)


@PROFILE
@given(st.data(), st.lists(small, min_size=9, max_size=9), st.integers(1, 9), st.integers(0, 2))
def test_a_second_chain_changes_how_far_a_step_comes_and_nothing_else(data, target, room, stop):
    """For any two chains, and a target whose choice depends on the whole path: the same ids as by one chain and then
    alone, at least as many, and each chain's rows asked only where the text goes along it."""
    drafts = data.draw(st.lists(small, min_size=1, max_size=4))
    fork = data.draw(st.integers(0, len(drafts) - 1))
    first = data.draw(small.filter(lambda token: token != drafts[fork]))
    side = Side(fork, (first, *data.draw(st.lists(small, max_size=3))))
    asked = []

    def says(path):
        asked.append(tuple(path))
        return (target[len(path)] + sum(path)) % 3

    def walked(chain, beside):
        heard = []
        verdict = accept_tree(
            chain,
            beside,
            lambda i: says(chain[:i]),
            lambda i: says((*chain[: side.fork], *side.ids[: 1 + i])),
            end_ids={END},
            room=room,
            stops=lambda token: heard.append(token) or len(heard) == 2 == stop + token,
        )
        assert heard == [token for token in verdict.committed if token != END]
        return verdict

    alone = []
    while len(alone) < 9:
        alone.append(says(alone))
    both, one = walked(drafts, side), walked(drafts, None)
    assert list(both.committed) == alone[: len(both.committed)]
    assert both.committed[: len(one.committed)] == one.committed
    asked.clear()
    assert walked(drafts, side) == both
    assert asked == [both.committed[:n] for n in range(len(both.committed))]
    along = (*drafts[:fork], *side.ids) if both.aside else tuple(drafts)
    assert both.committed[: both.accepted] == along[: both.accepted]
    assert both.accepted <= both.tested <= len(along)
    if both.accepted == len(both.committed) < room and not both.ended:
        assert both.stopped
    elif both.accepted < len(along) and not both.ended and not both.stopped and len(both.committed) < room:
        assert both.committed[both.accepted] != along[both.accepted]
    if both == one:
        assert not both.aside
    else:
        assert both.aside == both.accepted - fork > 0
        assert one.accepted == fork


def test_the_side_chain_ends_as_the_first_does():
    """At an end id, a stop string or the room, also with its first id, which counts as a draft that stood."""
    target = {(): 1, (1,): 5, (1, 5): 6, (1, 5, 6): 8, (1, 5, 6, 8): 7}

    def walk(**ends):
        side = Side(1, (5, 6, 8))
        options = {"end_ids": set(), "room": 9} | ends
        return accept_tree(
            (1, 2), side, lambda i: target[(1, 2)[:i]], lambda i: target[(1, *side.ids[: 1 + i])], **options
        )

    assert walk() == Verdict((1, 5, 6, 8, 7), 4, 4, ended=False, aside=3)
    assert walk(end_ids={6}) == Verdict((1, 5, 6), 3, 3, ended=True, aside=2)
    assert walk(end_ids={5}) == Verdict((1, 5), 2, 2, ended=True, aside=1)
    assert walk(stops=lambda token: token == 5) == Verdict((1, 5), 2, 2, ended=False, stopped=True, aside=1)
    assert walk(room=2) == Verdict((1, 5), 2, 2, ended=False, aside=1)
    assert walk(room=1) == Verdict((1,), 1, 1, ended=False)
