"""The tree of errors, and what clients get of it over a daemon's socket."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from specmesh import errors
from specmesh.api.shapes import error_body
from specmesh.client import Client
from specmesh.errors import SpecmeshError

SENTENCE = "the sentence"
OF_FIELDS = {errors.FrameError, errors.InvalidTransition}  # more than a sentence: they end in no answer


def tree(cls: type[SpecmeshError] = SpecmeshError, depth: int = 0) -> Iterator[tuple[int, type[SpecmeshError]]]:
    """A class and those below it, in the order of the module."""
    yield depth, cls
    for below in cls.__subclasses__():
        if below.__module__ == errors.__name__:
            yield from tree(below, depth + 1)


def test_the_tree_is_drawn():
    """Each class once, below its base, with whose fault it is and what."""
    drawn = re.findall(r"^    ( *)(\w+)(?: +(?:ours|who asks|peer|nobody): .+)?$", errors.__doc__, re.MULTILINE)
    assert drawn == [(" " * 4 * depth, cls.__name__) for depth, cls in tree()]


PLAIN = [cls(SENTENCE) for _, cls in tree() if cls not in OF_FIELDS]
MADE: dict[SpecmeshError, dict[str, object]] = {
    errors.ConfigError("wrong", "mend it"): {"what": "wrong", "remedy": "mend it"},
    errors.WentAway("gone", "start it", "tcp://host:1"): {"address": "tcp://host:1"},
    errors.NoSuchModel.of("m"): {"name": "m", "param": "model"},
    errors.EndLost.of(3, 5): {"came": 3, "length": 5},
    errors.PromptTooLong.of(9, 5): {"prompt_tokens": 9, "context": 5, "param": "prompt"},
}


def test_a_sentence_is_made_of_fields():
    for error, fields in MADE.items():
        assert (str(error), vars(error) | fields) == (f"{error.what}: {error.remedy}", vars(error))


@pytest.mark.parametrize("error", [*PLAIN, *MADE], ids=lambda error: type(error).__name__)
def test_an_error_comes_back(fake_daemon: Callable[..., Path], error: SpecmeshError):
    """What a daemon answers is raised by its client as its class, with its sentence and the request's field."""
    same = type(error)(str(error))
    if isinstance(error, errors.RequestError):
        same.param = error.param = error.param or "its_field"
    with pytest.raises(SpecmeshError) as caught:
        Client(fake_daemon({"/x": (400, json.dumps(error_body(error)).encode())})).get("/x")
    assert (type(caught.value), str(caught.value), vars(caught.value)) == (type(error), str(error), vars(same))
