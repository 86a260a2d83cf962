"""The index of a text's n-grams, against a model that looks at every place."""

import random
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specmesh.core.verifier.sources.suffix_index import (
    LONGEST,
    NGRAM_SIZES,
    PORTION,
    Match,
    SuffixIndex,
)

few_ids = st.lists(st.integers(0, 3), max_size=200)


def whole(ids):
    """Return an index that has taken in all ids."""
    index = SuffixIndex(ids)
    index.update()
    while not index.complete:
        index.update()
    return index


def agreement(ids, place, tail):
    """Return how many ids before a place agree with the end of a text."""
    length = 0
    while length < min(place, len(tail), LONGEST):
        if ids[place - 1 - length] != tail[-1 - length]:
            break
        length += 1
    return length


def expected(ids, tail):
    """Return the newest place of the largest n-gram that agrees."""
    for size in reversed(NGRAM_SIZES):
        for place in reversed(range(1, len(ids))):
            length = agreement(ids, place, tail)
            if length >= size:
                return Match(place, length)
    return None


def a_text_with_repeats(count, seed=1):
    rng = random.Random(seed)
    ids = array("i")
    while len(ids) < count:
        if len(ids) > 100 and rng.random() < 0.5:
            begin = rng.randrange(len(ids) - 50)
            ids.extend(ids[begin : begin + rng.randrange(4, 50)])
        else:
            ids.extend(rng.randrange(50_000) for _ in range(20))
    return ids[:count]


@given(few_ids, few_ids)
def test_a_match_agrees_as_far_as_it_says(ids, tail):
    """Whatever was lost to another n-gram: drafts come from where the ids are the same."""
    ids = array("i", ids)
    match = whole(ids).find(tail)
    if match is not None:
        assert match.length == agreement(ids, match.place, tail) >= min(NGRAM_SIZES)
        assert match.place < len(ids)


@given(few_ids, few_ids)
def test_nothing_is_found_that_did_not_occur(ids, tail):
    ids = array("i", ids)
    if expected(ids, tail) is None:
        assert whole(ids).find(tail) is None


@pytest.mark.parametrize("begin", [0, 1, 40, 500])
def test_most_places_are_those_of_the_model(begin):
    """A slot has one place, so a few n-grams are lost."""
    ids = a_text_with_repeats(900)
    text = ids[:begin]
    index = SuffixIndex(text)
    right = 0
    looked = 0
    for end in range(begin, 900, 3):
        text.extend(ids[len(text) : end])
        index.update()
        tail = text[-LONGEST:]
        right += index.find(tail) == expected(text, tail)
        looked += 1
    assert right >= 0.97 * looked


@pytest.mark.parametrize("step", [1, 7, 63, 64, 65, 300, 5000])
def test_ids_one_by_one_and_at_once(step):
    """Places are the same, however many ids come between two updates."""
    ids = a_text_with_repeats(9000)
    text = array("i")
    index = SuffixIndex(text)
    while len(text) < len(ids):
        text.extend(ids[len(text) : len(text) + step])
        index.update()
    while not index.complete:
        index.update()
    same = 0
    for end in range(64, 9000, 11):
        tail = ids[end - LONGEST : end]
        same += index.find(tail) == whole_of_repeats().find(tail)
    assert same >= 0.97 * len(range(64, 9000, 11))


_WHOLE = []


def whole_of_repeats():
    if not _WHOLE:
        _WHOLE.append(whole(a_text_with_repeats(9000)))
    return _WHOLE[0]


def test_a_long_prompt_is_taken_in_by_portions():
    """No step waits for more than a portion of 100,000 ids."""
    index = SuffixIndex(a_text_with_repeats(100_000))
    portions = []
    while not index.complete:
        before = index.taken
        index.update()
        portions.append(index.taken - before)
    assert max(portions) <= PORTION
    assert sum(portions) < 100_000
    assert len(portions) == -(-100_000 // PORTION)


def test_the_end_comes_first():
    ids = a_text_with_repeats(100_000)
    index = SuffixIndex(ids)
    index.update()
    end = len(ids) - PORTION // 2
    assert index.find(ids[end - 20 : end]).place >= end


def test_new_ids_come_before_old_ones():
    ids = a_text_with_repeats(50_000)
    index = SuffixIndex(ids)
    index.update()
    ids.extend([5, 6, 7, 8])
    index.update()
    assert index.find([5, 6, 7]).place == 50_003


def test_nothing_is_taken_in_twice_while_a_text_grows():
    """All growth but that of the tables costs one id for each id."""
    ids = a_text_with_repeats(10_000)
    index = whole(ids)
    before = index.taken
    for _ in range(500):
        ids.extend([1, 2])
        index.update()
    assert index.taken == before + 1000


def test_tables_grow_with_the_text():
    """Each time they do all is taken in again, so they have to grow by factors."""
    ids = array("i")
    index = SuffixIndex(ids)
    for token in a_text_with_repeats(20_000):
        ids.append(token)
        index.update()
    assert index.complete
    assert index.taken < 3 * 20_000


class Counted(list):
    """Counts how often an item is asked for."""

    asked = 0

    def __getitem__(self, index):
        self.asked += 1
        return super().__getitem__(index)


def test_a_look_up_is_bounded():
    """It looks at the ids of the largest n-gram, then at LONGEST of each candidate."""
    ids = array("i", [7] * 50_000)
    tail = Counted([7] * LONGEST)
    whole(ids).find(tail)
    assert tail.asked <= max(NGRAM_SIZES) + LONGEST


def test_memory_of_an_id():
    for count in (64, 1000, 5000, 65_536, 100_000):
        assert SuffixIndex.bytes_for(count) <= 96 * count


@pytest.mark.parametrize("count", [0, 1, 2, 3])
def test_short_texts(count):
    ids = array("i", [4] * count)
    assert whole(ids).find(ids) is None


def test_before_the_first_update_nothing_is_found():
    assert SuffixIndex(array("i", [4] * 20)).find([4] * 20) is None
