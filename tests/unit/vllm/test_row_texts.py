"""Rows and the texts that they are."""

from array import array

import numpy as np
import pytest

from specmesh.vllm.row_texts import TAIL_IDS, BatchRows, RowText, RowTexts


class Session:
    """A session that has not ended."""


@pytest.fixture
def texts():
    return RowTexts()


def batch(*rows):
    """Return a batch of these rows, each of a text and its new ids."""
    ids = np.zeros((len(rows), 256), np.int32)
    for index, row in enumerate(rows):
        ids[index, : len(row)] = row
    return BatchRows([len(row) for row in rows], [()] * len(rows), ids)


def follow(texts, *rows):
    """Let the texts be those of these rows."""
    for index, row in enumerate(rows):
        ids = array("i", row)
        text = RowText(number=index, session=Session(), ids=ids, length=len(row), row=index)
        texts.by_row[index] = text
    return list(texts.by_row.values())


def shown(texts, *rows):
    """Show rows, each of a text and its new ids; return the texts that are gone."""
    return texts.matched(batch(*rows))


def test_each_text_stays_in_its_row(texts):
    first, second = follow(texts, [1, 2], [3, 4])
    assert shown(texts, [1, 2, 9], [3, 4, 5, 6]) == []
    assert texts.by_row == {0: first, 1: second}


def test_a_text_moves_when_another_ends(texts):
    first, second, third = follow(texts, [1, 2], [3, 4], [5, 6])
    assert shown(texts, [5, 6, 7], [3, 4]) == [first]
    assert texts.by_row == {0: third, 1: second}


def test_twins_are_two_texts(texts):
    first, second = follow(texts, [1, 2], [1, 2])
    assert shown(texts, [1, 2, 3], [1, 2, 4]) == []
    assert texts.by_row == {0: first, 1: second}
    assert shown(texts, [1, 2, 4]) == [second]


def test_a_shorter_row_is_another_text(texts):
    [first] = follow(texts, [1, 2, 3])
    assert shown(texts, [1, 2]) == [first]
    assert texts.by_row == {}


def test_a_moved_text_is_compared_as_a_whole(texts):
    """Prompts of one template differ before their last ids."""
    same = list(range(50, 50 + TAIL_IDS))
    _, second = follow(texts, [9, 9], [1, *same])
    gone = shown(texts, [2, *same, 5])
    assert second in gone
    assert texts.by_row == {}


def test_of_two_texts_the_longer_one_is_shown(texts):
    first, _, longer = follow(texts, [7], [1, 2], [1, 2, 3])
    shown(texts, [1, 2, 3, 4])
    assert texts.by_row == {0: longer}
    assert first not in texts.by_row.values()
