"""Text at an even pace."""

from hypothesis import given, settings
from hypothesis import strategies as st

from specmesh.cli.generate import PacedOutput

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
