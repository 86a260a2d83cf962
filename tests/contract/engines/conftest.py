"""What the tests of all engines share."""

import pytest
from harness.engine_contract import N_SEQ


@pytest.fixture(autouse=True)
def _empty_sequences(request: pytest.FixtureRequest) -> None:
    """The engine is shared by the tests of a module, its sequences are not."""
    for name in {"verifier", "drafter"} & set(request.fixturenames):
        for seq in range(N_SEQ):
            request.getfixturevalue(name).trim(seq, 0)
