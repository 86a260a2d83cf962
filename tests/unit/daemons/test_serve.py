"""What a verifier says of its model file."""

from pathlib import Path

import pytest

from specmesh.config import ModelSettings
from specmesh.daemons.serve import BLOCK, HASHED_BLOCKS, model_hash


@pytest.mark.parametrize("size", [0, 1, BLOCK + 1, 3 * BLOCK * HASHED_BLOCKS])
def test_the_hash_of_a_model_file(tmp_path: Path, size: int):
    """Copies have the same, files of another size or with another beginning or end have not."""
    contents = [bytes(size), bytes(size), bytes(size + 1), b"x" + bytes(size)[1:], bytes(size)[:-1] + b"x"]
    hashes = []
    for number, content in enumerate(contents):
        (path := tmp_path / str(number)).write_bytes(content)
        hashes.append(model_hash(ModelSettings("llama", str(path))))
    assert hashes[0] == hashes[1]
    assert hashes[0] not in hashes[2:]
    assert model_hash(ModelSettings("llama", str(tmp_path))) == ""
