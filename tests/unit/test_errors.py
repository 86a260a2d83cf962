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


def returned(daemon: Callable[..., Path], error: SpecmeshError) -> SpecmeshError:
    """What a client raises that is answered an error."""
    with pytest.raises(SpecmeshError) as caught:
        Client(daemon({"/x": (400, json.dumps(error_body(error)).encode())})).get("/x")
    return caught.value


@pytest.mark.parametrize("cls", [cls for _, cls in tree() if cls not in OF_FIELDS])
def test_an_error_comes_back_whole(fake_daemon: Callable[..., Path], cls: type[SpecmeshError]):
    """What a daemon answers is raised by its client as it was there, fields included."""
    error = cls(SENTENCE)
    if isinstance(error, errors.RequestError):
        error.param = "its_field"
    back = returned(fake_daemon, error)
    assert (type(back), str(back), vars(back)) == (cls, SENTENCE, vars(error))


MADE = {
    "wrong: mend it": errors.ConfigError("wrong", "mend it"),
    "gone: start it": errors.WentAway("gone", "start it", "tcp://host:1"),
    "no model m is served here: see `specmesh ps`, or /v1/models": errors.NoSuchModel.of("m"),
    "This model's maximum context length is 5 tokens, and your prompt has 9 tokens: shorten it or start the verifier "
    "with a larger --ctx": errors.PromptTooLong.of(9, 5),
}


@pytest.mark.parametrize(("sentence", "error"), MADE.items(), ids=[type(error).__name__ for error in MADE.values()])
def test_an_error_made_of_fields(fake_daemon: Callable[..., Path], sentence: str, error: SpecmeshError):
    """Its sentence is made of them, and comes back without them."""
    back = returned(fake_daemon, error)
    assert (type(back), str(back), str(error)) == (type(error), sentence, sentence)
    assert (back.what, back.remedy, error.remedy) == (sentence, "", sentence.split(": ")[1])
