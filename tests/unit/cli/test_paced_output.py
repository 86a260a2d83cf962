"""Text at an even pace."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specmesh.cli.streaming import PacedOutput

BLOCKS = st.lists(st.tuples(st.text(max_size=30), st.integers(0, 9)), max_size=20)


@settings(derandomize=True, deadline=None, max_examples=50)
@given(BLOCKS)
def test_all_of_the_text_in_order(blocks: list[tuple[str, int]]):
    """In pieces as many as the tokens of their block, whose lengths differ by one at most."""
    pieces: list[str] = []
    with PacedOutput(pieces.append) as output:
        for block in blocks:
            output.add(*block)
    assert "".join(pieces) == "".join(text for text, _ in blocks)
    for text, tokens in blocks:
        lengths = [len(pieces.pop(0)) for _ in range(min(max(tokens, 1), len(text)))]
        assert sum(lengths) == len(text)
        assert not lengths or max(lengths) - min(lengths) <= 1


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_an_interrupted_text_is_shown_as_far_as_it_came(error: type[BaseException]):
    """And the error goes on."""
    pieces: list[str] = []

    def interrupted() -> None:
        with PacedOutput(pieces.append) as output:
            output.add("ab", 1)
            raise error

    with pytest.raises(error):
        interrupted()
    assert pieces == ["ab"]


def test_an_output_that_fails():
    """Who adds text is told."""

    def broken(_: str) -> None:
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError), PacedOutput(broken) as output:
        output.add("ab", 1)
