"""Messages are values."""

from dataclasses import FrozenInstanceError, fields
from typing import get_args

import pytest

from specmesh.wire import messages as m

CLASSES = get_args(m.Message)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_messages_are_frozen_values(cls):
    """A message cannot be changed after it was made, and has no place for other fields."""
    values = {field.name: 0 for field in fields(cls)}
    message = cls(**values)
    assert message == cls(**values)
    for field in fields(cls)[:1]:  # BYE has none
        with pytest.raises(FrozenInstanceError):
            setattr(message, field.name, 1)
    assert not hasattr(message, "__dict__")


def test_every_kind_has_one_message():
    """Kinds and messages are the same list."""
    assert {kind.name.replace("_", "") for kind in m.Kind} == {cls.__name__.upper() for cls in CLASSES}


def test_planes_are_told_apart_by_the_number():
    """Kinds below 16 are the token plane, the others the control plane."""
    token = {cls.__name__.upper() for cls in get_args(m.TokenMessage)}
    assert {kind.name.replace("_", "") for kind in m.Kind if kind < 16} == token
