"""`specmesh doctor`: what is said of addresses, and the drafter's comparison of two models' vocabularies."""

import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import structlog
from click.testing import CliRunner, Result

from specmesh import logs
from specmesh.cli import main
from specmesh.doctor import judge_reach
from specmesh.security import Way

LAN = {"error": None, "kind": Way.LOCAL, "attached": None, "macos": False}


@pytest.mark.parametrize(
    ("changes", "status", "found", "fix"),
    [
        ({}, "ok", "answers", None),
        ({"attached": True}, "ok", "answers", None),
        ({"attached": False}, "warn", "has no verifier", "specmesh stats"),
        ({"attached": False, "macos": True}, "warn", "has no verifier", "Local Network"),
        ({"attached": False, "macos": True, "kind": Way.TAILNET}, "warn", "has no verifier", "specmesh stats"),
        (
            {"error": ConnectionRefusedError(111, "Connection refused")},
            "fail",
            "Connection refused",
            "specmesh verifier --bind",
        ),
        ({"error": TimeoutError("timed out")}, "fail", "timed out", "firewall"),
        ({"error": OSError(113, "no route")}, "fail", "no route", "VPN"),
        ({"error": OSError(65, "no route"), "macos": True}, "fail", "errno 65", "Security > Local Network"),
        ({"error": OSError(65, "no route"), "macos": True, "kind": Way.ROUTED}, "fail", "no route", "VPN"),
        ({"error": ValueError("it is no address")}, "fail", "is no address", "config show drafter"),
    ],
)
@pytest.mark.fault("E4.49")
def test_reach(changes: dict[str, object], status: str, found: str, fix: str | None):
    """Each way that a connection may end, told apart."""
    check = judge_reach("tcp://192.168.1.5:7071", **(LAN | changes))  # type: ignore[arg-type]
    assert check.status == status
    assert found in check.found
    assert (fix is None and check.fix is None) or (fix is not None and fix in str(check.fix))


WORDS = {"words": 58}
Make = Callable[..., Path]


@pytest.fixture
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
@pytest.mark.models
@pytest.mark.usefixtures("_own_logging")
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
