"""The settings of a simulated model, as `--engine sim --model` takes them."""

import pytest

from specmesh.engines.sim import SimSettings
from specmesh.errors import ConfigError

WRONG = [
    "step_ms=-5",
    "step_ms=inf",
    "steps_ms=3/nan",
    "alpha=2",
    "alphas=0.5/-0.1",
    "n_vocab=255",
    "n_ctx=0",
    "n_batch=0",
    "max_sessions=0",
    "load_s=-1",
    "cells=-1",
]


@pytest.mark.parametrize("text", WRONG)
def test_a_value_that_no_model_has_is_refused_by_name(text):
    """It would end a daemon with a traceback, or be taken for another value without a word."""
    name, _ = text.split("=")
    with pytest.raises(ConfigError, match=f"^{name}=.* is no setting of a simulation: give "):
        SimSettings.parse(text)


@pytest.mark.parametrize("text", ["alpha=0", "alpha=1", "n_vocab=256", "steps_ms=0/1e3"])
def test_the_ends_of_a_range_are_in_it(text):
    SimSettings.parse(text)
