"""What JSON has at a path."""

import pytest

from specmesh.core.fields import at, ids_at, list_at, number_at, object_at, objects_at
from specmesh.errors import RemoteProtocolError

JSON = {"model": {"name": "m", "ms": 1.5, "ids": [1, 2]}, "peers": [{"name": "a"}, None, 3], "count": 2, "none": None}


@pytest.mark.parametrize(
    ("read", "path", "found"),
    [
        (at, "model.name", "m"),
        (at, "model.name.first", None),
        (at, "others.name", None),
        (number_at, "model.ms", 1.5),
        (object_at, "model", JSON["model"]),
        (object_at, "none", {}),
        (list_at, "peers", JSON["peers"]),
        (list_at, "model", []),
        (objects_at, "peers", [{"name": "a"}]),
        (ids_at, "model.ids", [1, 2]),
        (ids_at, "peers", []),
    ],
)
def test_what_is_not_of_the_kind_counts_as_nothing(read, path, found):
    assert read(JSON, path) == found


@pytest.mark.parametrize("path", ["model.name", "none", "others.ms"])
def test_a_number_that_is_missed_is_no_zero(path):
    with pytest.raises(RemoteProtocolError, match=path):
        number_at(JSON, path)
    assert number_at(JSON, path, 7) == 7


def test_a_daemon_of_another_version_may_answer_a_text():
    assert at("starting", "error.message") is None
