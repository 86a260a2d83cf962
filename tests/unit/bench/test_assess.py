"""What is said of a benchmark: whether drafting pays, and what limits it."""

import dataclasses

import pytest
from samples import FIXED_4, drafted, text

from specmesh.bench.report import assess, factors
from specmesh.bench.run import ADAPTIVE, Sample, aggregate


def words(*samples: Sample, costs: dict[int, float] | None = None) -> str:
    return "\n".join(assess(aggregate(list(samples)), costs or {}))


def test_drafting_pays():
    """Faster in every iteration: it pays. Slower: it does not. In between, or only one: not clear."""
    alone = [text(iteration=0), text(iteration=1)]
    assert "Drafting pays: draft_n 4 is 2.00x" in words(*alone, drafted(), drafted(iteration=1))
    slow = {"decode_s": 0.8}
    assert "does not pay" in words(*alone, drafted(**slow), drafted(iteration=1, **slow))
    assert "not clear" in words(*alone, drafted(decode_s=0.42), drafted(iteration=1))
    assert "not clear: draft_n 4 is 2.00x the verifier alone (one iteration)" in words(text(), drafted())


def test_the_best_fixed_setting_and_adaptive():
    """Adaptive is compared with the best fixed setting, or with the verifier alone where that is faster."""
    two = drafted("draft_n 2", decode_s=0.25)
    told = words(text(), two, drafted(), drafted(ADAPTIVE.name, decode_s=0.25))
    assert "draft_n 4 is best" in told
    assert "adaptive reaches 80% of the best fixed setting" in told
    assert "as good as the best fixed" in words(text(), drafted(), drafted(ADAPTIVE.name, decode_s=0.201))
    slow = drafted(decode_s=0.8)
    assert "as good as the verifier alone" in words(text(), slow, text(ADAPTIVE.name, drafter="mac"))
    assert "reaches 50% of the verifier alone" in words(text(), slow, drafted(ADAPTIVE.name, decode_s=0.8))


def test_no_drafter():
    """Only alone: the words say so, and what to do."""
    assert "Only the verifier alone was run" in words(text())


def test_drafter_that_went_away():
    """Texts that ended without a drafter are told first; where all did, nothing is concluded from noise."""
    told = words(text(), drafted(), drafted(drafter=None, prompt=1))
    assert told.startswith("1 of 2 texts ended without a drafter")
    assert "draft_n 4 is best" in told
    told = words(text(), text(FIXED_4.name, decode_s=0.39), text(ADAPTIVE.name, decode_s=0.38))
    assert told.startswith("2 of 2 texts")
    assert told.endswith("whether drafting pays is open.")


@pytest.mark.parametrize(
    ("change", "limit"),
    [
        (
            {"accepted": 5, "rounds": 35, "drafted": 140, "decode_s": 0.36, "verify_ms": 350.0, "wait_ms": 0.0},
            "acceptance",
        ),
        ({"accepted": 38, "decode_s": 0.3, "verify_ms": 290.0, "wait_ms": 0.0}, "step costs"),
        ({"accepted": 38, "decode_s": 0.35, "verify_ms": 110.0, "wait_ms": 230.0}, "draft speed"),
        ({"accepted": 38, "decode_s": 0.35, "verify_ms": 110.0, "wait_ms": 230.0, "network_ms": 50.0}, "the network"),
        ({"accepted": 38, "decode_s": 0.35, "verify_ms": 110.0, "wait_ms": 10.0}, "handling"),
    ],
)
def test_what_limits(change: dict[str, object], limit: str):
    """The largest of the possible gains is named."""
    assert f"What limits draft_n 4 is {limit}" in words(text(), drafted(**change))


def test_factors():
    """A factor says what perfection in one thing would bring."""
    alone, fixed = aggregate([text(), drafted()])
    assert factors(fixed, alone) == pytest.approx(
        {"acceptance": 5 / 4, "step costs": 200 / 180, "draft speed": 200 / 130, "handling": 200 / 190}
    )
    assert factors(dataclasses.replace(fixed, rounds=0), alone) == {}


def test_a_setting_that_is_off_says_nothing_of_limits():
    """Where adaptive has switched drafting off, a fixed setting shows what is wrong."""
    told = words(text(), drafted(decode_s=0.8), text(ADAPTIVE.name, drafter="mac"))
    assert "What limits draft_n 4" in told
    assert "cannot be told" in words(text(), text(ADAPTIVE.name, drafter="mac"))


@pytest.mark.parametrize(("wide", "kind"), [(11.0, "flat"), (15.0, "moderate"), (25.0, "steep")])
def test_step_costs_in_words(wide: float, kind: str):
    """The widest step up to 9 rows is compared with one row."""
    told = words(text(), drafted(), costs={1: 10.0, 2: 10.0, 9: wide, 17: 99.0})
    assert f"Step costs are {kind}" in told
    assert f"9 rows cost {wide / 10:.2f} of one" in told
    assert "17 rows cost" in words(text(), drafted(), costs={1: 10.0, 17: 20.0})


def test_texts_in_words():
    """Whether the drafting runs said the same."""
    assert "All 1 texts" in words(text(), drafted())
    assert "0 of 1 texts" in words(text(), drafted(ids=(9,)))
