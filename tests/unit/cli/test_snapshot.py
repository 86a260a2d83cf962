"""Fields of a snapshot, whatever is there."""

import pytest

from specmesh.api.snapshot import Fields

SNAPSHOT = Fields(
    {
        "n": 3,
        "text": "a\x1b[2J\nb",
        "none": None,
        "part": {"inner": {"x": 1.5}, "y": "no number", "z": 2},
        "list": [1, "?", 2.5],
        "rows": [{"a": 1}, "no object", {"a": 2}],
    }
)


def test_fields_by_their_path():
    """Numbers, texts, parts and lists where they are."""
    assert (SNAPSHOT.number("n"), SNAPSHOT.number("part", "inner", "x")) == (3.0, 1.5)
    assert SNAPSHOT.part("part", "inner").number("x") == 1.5
    assert SNAPSHOT.text("n") == "3"
    assert [row.number("a") for row in SNAPSHOT.parts("rows")] == [1.0, 2.0]
    assert SNAPSHOT.numbers("list") == [1.0, 0.0, 2.5]
    assert SNAPSHOT.by_name("list") == {"0": 1.0, "2": 2.5}
    assert SNAPSHOT.by_name("part") == {"z": 2.0}


@pytest.mark.parametrize("path", [("missing",), ("missing", "deeper"), ("n", "deeper"), ("none",), ("list", "0")])
def test_what_is_not_there(path):
    """A path that leads nowhere, or through something else, gives nothing and no error."""
    assert SNAPSHOT.number(*path) is None
    assert SNAPSHOT.text(*path) == ""
    assert (SNAPSHOT.numbers(*path), SNAPSHOT.parts(*path), SNAPSHOT.by_name(*path)) == ([], [], {})
    assert SNAPSHOT.part(*path).raw == {}


def test_text_cannot_steer_a_terminal():
    """What does not print is replaced."""
    assert SNAPSHOT.text("text") == "a?[2J?b"
