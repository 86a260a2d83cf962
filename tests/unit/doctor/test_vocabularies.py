"""`specmesh doctor`: the drafter's comparison, offline, of GGUF files and Hugging Face directories."""

import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import structlog
from click.testing import CliRunner, Result

from specmesh import logs
from specmesh.cli import main

pytest.importorskip("llama_cpp")
pytestmark = pytest.mark.models

WORDS = {"words": 58}
Make = Callable[..., Path]


@pytest.fixture(autouse=True)
def _own_logging(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Silence that ends with the test: `logs.configure` is for a process of its own."""
    quiet = structlog.make_filtering_bound_logger(logging.CRITICAL)
    monkeypatch.setattr(logs, "configure", lambda *_: structlog.configure(wrapper_class=quiet))
    yield
    structlog.reset_defaults()


def doctor(*args: object) -> Result:
    return CliRunner().invoke(main, ["doctor", *map(str, args)])


@pytest.mark.parametrize(
    ("options", "verdict", "code"),
    [
        ({}, "same", 0),
        ({"pad": 64}, "same", 0),
        ({"permute": 3}, "permuted", 0),
        ({"foreign": 1}, "partial", 0),
        ({"foreign": 3, "permute": 3}, "partial", 0),
        ({"foreign": 58}, "different", 1),
    ],
)
def test_gguf_files(make_gguf: Make, options: dict[str, int], verdict: str, code: int):
    """Each verdict, its exit code, and one JSON object that says the same as the lines."""
    model, against = make_gguf("doctor-a", **WORDS), make_gguf("doctor-b", **WORDS, **options)
    done = doctor("--model", model, "--against", against)
    assert done.exit_code == code, done.output
    assert f"verdict   {verdict}: " in done.stdout
    told = json.loads(doctor("--model", model, "--against", against, "--json").stdout)
    assert (told["verdict"], told["usable"], told["model"]) == (verdict, code == 0, str(model))
    assert told["meaning"] in done.stdout
    assert told["encoders"]["alike"] == told["encoders"]["compared"]
    assert bool(told["differences"]) == (verdict != "same")
