"""What a frame costs its sender."""

import pytest

from specmesh.daemons.link.peer_gate import _ids_in
from specmesh.wire import messages as m
from specmesh.wire.codec import encode


@pytest.mark.parametrize(
    ("message", "ids"),
    [
        (m.Draft(1, 0, 0, (1, 2, 3)), 3),
        (m.Shadow(1, 0, 0, (1,)), 1),
        (m.DraftProbs(1, 0, 0, (1, 2), (100, 3), (7,) * 103, (9,) * 103), 2),
        (m.Draft(1, 0, 0, ()), 0),
    ],
    ids=["draft", "shadow", "draft with laws", "empty"],
)
def test_ids_of_a_frame(message: m.Message, ids: int):
    """Drafted ids count, whatever is told with them; the rest of a frame is counted in bytes."""
    assert _ids_in(encode(message)) == ids
