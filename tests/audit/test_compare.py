"""Where two texts part, how noisy their logits are, and what is a near tie."""

from dataclasses import replace

import pytest

from specmesh.audit.compare import (
    ENOUGH,
    LEAST,
    MOST,
    Parting,
    Text,
    Verdict,
    margin,
    noise,
    noise_of,
    parting,
    verdict,
)


def text(*ids: int, logprobs: tuple[float, ...] | None = None, runner_up: tuple[float, ...] | None = None) -> Text:
    """Where each id's runner-up is the id after it."""
    own = logprobs if logprobs is not None else (-1.0,) * len(ids)
    others = runner_up if runner_up is not None else (-2.0,) * len(ids)
    likeliest = ({token: a, token + 1: b} for token, a, b in zip(ids, own, others, strict=True))
    return Text((1, 2), ids, own, tuple(likeliest))


@pytest.mark.parametrize(
    ("alone", "drafted", "where"),
    [
        (text(5, 6, 7), text(5, 6, 7), None),
        (text(), text(), None),
        (text(5, 6, 7), text(5, 8, 7), Parting(1, 6, 8)),
        (text(5, 6, 7), text(5, 6), Parting(2, 7, None)),
        (text(), text(5), Parting(0, None, 5)),
        (text(5, 6, 5, 6), text(5, 6, 6, 6), Parting(2, 5, 6)),
    ],
)
def test_parting(alone: Text, drafted: Text, where: Parting | None):
    """The first id that differs, or that one of them does not have; what comes later does not count."""
    assert parting(alone, drafted) == where


def test_noise():
    """The largest difference among the ids that both have said after the same ids, over all pairs."""
    one = text(5, 6, 7, logprobs=(-1.0, -2.0, -3.0))
    other = text(5, 6, 8, logprobs=(-1.25, -1.875, -9.0))
    assert noise([(one, other), (one, one)]) == 0.25
    assert noise([(one, text(9, logprobs=(-7.0,)))]) == 0.0
    assert noise([]) == 0.0


def differing(size: int, by: float) -> tuple[Text, Text]:
    """Two texts that part after `size` ids, whose runners-up have differed by so much, and at the end by more."""
    same = (-2.0,) * (size - 1)
    return text(*range(size), 98, runner_up=(-2.0, *same, -2.0)), text(
        *range(size), 97, runner_up=(-2.0 + by, *same, -9.0)
    )


@pytest.mark.parametrize(("size", "expected"), [(ENOUGH, 0.25), (10 * ENOUGH, 0.25), (ENOUGH - 1, 2.0), (1, 2.0)])
def test_noise_of_a_text(size: int, expected: float):
    """Its own, however noisy others are, where it has enough places; else that of all. Not what was said counts alone,
    but what might have been; and never the place where texts part."""
    pair = differing(size, 0.25)
    assert noise([pair]) == 0.0
    assert noise_of([pair], 2.0) == expected
    assert noise_of([pair], 0.0) == 0.25
    assert noise_of([differing(size // 2 + 1, 0.125), differing(size // 2 + 1, 0.25)], 2.0) == expected or size < ENOUGH


def test_tokens_that_one_text_alone_tells_of():
    """They are not compared."""
    one, other = text(5, 6), text(5, 6)
    other = replace(other, likeliest=({5: -1.0, 9: -7.0}, {6: -1.5}))
    assert noise_of([(one, other)], 0.0) == 0.5
    assert noise_of([], 0.0) == 0.0


@pytest.mark.parametrize("true", [1e-5, 0.003, 0.2, 40.0])
def test_margin(true: float):
    """It is found within a factor of two, wherever the search begins below it."""
    found = margin(lambda push: push >= true, min(0.02, true))
    assert found is not None
    assert true <= found < 2 * true


def test_margins_that_are_none():
    """Without noise the search begins at the least that can be told; what no push turns is beyond measure."""
    pushes: list[float] = []
    assert margin(lambda push: bool(pushes.append(push)), 0.0) is None
    assert pushes[0] == LEAST
    assert MOST / 2 <= pushes[-1] < MOST


@pytest.mark.parametrize(
    ("found", "measured", "expected"),
    [(0.19, 0.1, Verdict.TIE), (0.2, 0.1, Verdict.TIE), (0.21, 0.1, Verdict.ERROR), (None, 0.1, Verdict.ERROR)],
)
def test_verdict(found: float | None, measured: float, expected: Verdict):
    """Two tokens change places where each moves by the noise; where there is none nothing may differ."""
    assert verdict(found, measured) is expected
    assert verdict(found, 0.0) is Verdict.ERROR
