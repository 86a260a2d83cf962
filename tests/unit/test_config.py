"""Settings are checked before anything is started."""

import dataclasses

import pytest

from specmesh.config import ModelSettings
from specmesh.errors import ConfigError

GOOD = ModelSettings("llama", "m.gguf")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": None}, "no model: give --model FILE"),
        ({"model": ""}, "no model: give --model FILE"),
        ({"rpc": ("box",), "gpu_layers": -1}, "--rpc 'box' is not an address"),
        ({"rpc": ("192.0.2.1:1",), "gpu_layers": -1}, "--insecure-rpc"),
        ({"rpc": ("127.0.0.1:1",), "gpu_layers": 0}, "--gpu-layers 0"),
    ],
    ids=str,
)
@pytest.mark.fault("E7.81")
def test_impossible_settings(change: dict[str, object], words: str):
    """A value that no engine can use is a ConfigError that names the option and the value."""
    with pytest.raises(ConfigError) as caught:
        dataclasses.replace(GOOD, **change)
    assert words in str(caught.value)
