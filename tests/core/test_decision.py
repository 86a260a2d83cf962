"""Decisions as JSON: there and back, and what is refused."""

import dataclasses
import json
import math

import pytest

from specmesh.core.decision import MODES, WAIT, Decision, DrafterChange, PolicyRecord

DECISION = Decision(
    time_s=1.25,
    session=7,
    position=40,
    lead=5,
    draft_n=4,
    asked=6,
    waited_s=0.0125,
    mode="wait",
    acceptance=(0.9, 0.8),
    interval_s=0.002,
    round_trip_s=0.0005,
    restart_s=None,
    expected_s=0.03,
    expected_rate=81.5,
    took_s=0.0312,
    accepted=3,
    committed=4,
)
POLICY = PolicyRecord(time_s=2.0, session=7, leads=[0.0, 0.5, 1.0], drafts=[0, WAIT, 1], rate=90.0)


CHANGE = DrafterChange(time_s=3.0, session=7, drafter=2, why="better", rate=88.5)


@pytest.mark.parametrize("record", [DECISION, POLICY, CHANGE, dataclasses.replace(DECISION, expected_rate=None)])
def test_there_and_back(record):
    """A record's JSON gives the same record; its kind is told."""
    told = json.loads(json.dumps(record.as_json(), allow_nan=False))
    assert told["kind"] == type(record).__name__.lower().removesuffix("record").removesuffix("change")
    assert type(record).from_json(told) == record


def test_as_json_has_every_field():
    """No field is forgotten."""
    for record in (DECISION, POLICY, CHANGE):
        assert set(record.as_json()) == {field.name for field in dataclasses.fields(record)} | {"kind"}


def test_infinite_is_unknown():
    """A rate or time without bound is null: JSON has no infinity."""
    told = dataclasses.replace(DECISION, restart_s=math.inf, expected_rate=math.inf).as_json()
    assert (told["restart_s"], told["expected_rate"]) == (None, None)


def test_a_reason_there_is():
    """A drafter is chosen for one of the reasons that are counted."""
    with pytest.raises(ValueError, match=r"^why is 'luck'"):
        DrafterChange.from_json(CHANGE.as_json() | {"why": "luck"})


def test_unknown_fields_are_left_out():
    """A later version may add fields."""
    assert Decision.from_json(DECISION.as_json() | {"new": 1}) == DECISION


@pytest.mark.parametrize("name", [name for name in DECISION.as_json() if name != "kind"])
@pytest.mark.parametrize("value", ["text", -1, math.nan, True, [None]])
def test_bad_values_are_named(name, value):
    """A value of the wrong kind is refused with the field's name."""
    with pytest.raises(ValueError, match=f"^{name} is "):
        Decision.from_json(DECISION.as_json() | {name: value})


@pytest.mark.parametrize("name", [name for name in DECISION.as_json() if name != "kind"])
def test_missing_fields_are_named(name):
    """A record without one of its fields is refused."""
    told = DECISION.as_json()
    del told[name]
    with pytest.raises(ValueError, match=f"^{name} is missing"):
        Decision.from_json(told)


def test_more_accepted_than_drafted():
    """Counts must fit together."""
    with pytest.raises(ValueError, match="accepted is 5"):
        Decision.from_json(DECISION.as_json() | {"accepted": 5})


@pytest.mark.parametrize(
    "change",
    [
        {"drafts": [0, -2, 1]},
        {"drafts": [0, 1]},
        {"drafts": [0, 0.5, 1]},
        {"leads": [0, 2, 1]},
        {"leads": None},
        {"rate": "x"},
    ],
)
def test_bad_policies(change):
    """A policy whose lists do not fit is refused."""
    with pytest.raises(ValueError, match=r"drafts|leads|rate"):
        PolicyRecord.from_json(POLICY.as_json() | change)


def test_modes():
    """Every mode is read back."""
    for mode in MODES:
        assert Decision.from_json(DECISION.as_json() | {"mode": mode}).mode == mode


def test_drafts_of_two_chains():
    """All that were verified count, and those compared along the text, which may have gone along the second one."""
    first = dataclasses.replace(DECISION, draft_n=4, accepted=2, side=3)
    assert (first.drafted, first.tested) == (7, 3)
    aside = dataclasses.replace(DECISION, draft_n=4, accepted=4, side=3, side_accepted=3)
    assert (aside.drafted, aside.tested) == (7, 4)
    assert Decision.from_json(aside.as_json()) == aside
    assert dataclasses.replace(aside, accepted=3, side_accepted=2).tested == 4
    with pytest.raises(ValueError, match="accepted is 8"):
        Decision.from_json(DECISION.as_json() | {"accepted": 8, "side": 3})
