"""Fields of a snapshot, whatever is there."""

from specmesh.client import Fields

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


def test_text_cannot_steer_a_terminal():
    """What does not print is replaced."""
    assert SNAPSHOT.text("text") == "a?[2J?b"
