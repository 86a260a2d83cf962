"""A process of ours that may crash, hang or take all memory: what its caller sees, and that it goes on."""

import os
import select
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness import PATIENCE

from specmesh.engines.sandbox import Child
from specmesh.errors import ChildFailed

PROGRAM = """
import os, sys, time

def answer(request):
    match request["do"]:
        case "echo":
            return {"said": request["what"], "pid": os.getpid()}
        case "spin":
            while True:
                pass
        case "sleep":
            time.sleep(60)
        case "abort":
            os.write(2, b"one\\nits last line\\n\\n")
            os.abort()
        case "raise":
            raise ValueError("a defect")
        case "leave":
            sys.exit(3)
        case "take":
            return {"length": len(b"x" * 2**30)}
        case "warn":
            os.write(2, b"a warning\\n" * 10_000)
        case "variables":
            return {"names": sorted(os.environ)}
        case "write":
            os.write(0, request["what"].encode())
        case "hold":
            global held
            held = open(request["what"], "w")
    return {}
"""

needs_limits = pytest.mark.skipif(
    sys.platform == "darwin", reason="macOS does not enforce its limit of memory"
)


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Child]]:
    (tmp_path / "under_test.py").write_text(PROGRAM)
    monkeypatch.setenv(
        "PYTHONPATH",
        os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]),
    )
    made: list[Child] = []

    def start() -> Child:
        made.append(Child("under_test", memory=2**28, seconds=PATIENCE))
        return made[-1]

    yield start
    for child in made:
        child.close()


def failure(child: Child, **request: object) -> str:
    with pytest.raises(ChildFailed) as caught:
        child.ask(request)
    return str(caught.value)


def pid(child: Child) -> int:
    return int(str(child.ask({"do": "echo", "what": None})["pid"]))


def test_one_process_answers_many_requests(make: Callable[..., Child]):
    child = make()
    first = pid(child)
    for what in ("a", "\udc80\n\0", {"deep": [1, None, 2.5]}, "x" * 2**20):
        assert child.ask({"do": "echo", "what": what}) == {"said": what, "pid": first}
    assert first != os.getpid()


@pytest.mark.parametrize(
    ("request_", "why"),
    [
        ({"do": "abort"}, "SIGABRT: its last line"),
        ({"do": "raise"}, "exit code 1: ValueError: a defect"),
        ({"do": "leave"}, "exit code 3"),
        pytest.param({"do": "take"}, "more than 256 MiB of memory", marks=needs_limits),
        ({"do": "write", "what": "{{{{\n"}, "cannot be read"),
        ({"do": "write", "what": "x" * 99}, "cannot be read"),
        ({"do": "write", "what": "[]\n"}, "cannot be read"),
    ],
    ids=lambda value: value["do"] if isinstance(value, dict) else "",
)
def test_what_fails_is_told_and_the_next_is_answered(
    make: Callable[..., Child], request_: dict[str, object], why: str
):
    child = make()
    assert why in failure(child, **request_)
    assert child.ask({"do": "echo", "what": 1})["said"] == 1


def test_nobody_need_read_its_warnings(make: Callable[..., Child]):
    child = make()
    first = pid(child)
    for _ in range(3):
        assert child.ask({"do": "warn"}) == {}
    assert pid(child) == first


@pytest.mark.parametrize("do", ["spin", "sleep"])
def test_it_is_not_waited_for_longer_than_allowed(make: Callable[..., Child], do: str):
    child = make()
    before = pid(child)
    child.seconds = 0.1
    assert failure(child, do=do) == "it took more than 0.1 s"
    child.seconds = PATIENCE
    with pytest.raises(ProcessLookupError):
        os.kill(before, 0)
    assert pid(child) != before


def test_it_knows_no_secrets(make: Callable[..., Child], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HF_TOKEN", "secret")
    monkeypatch.setenv("SPECMESH_KEYS", "secret")
    names = make().ask({"do": "variables"})["names"]
    assert isinstance(names, list)
    assert {"PATH", "PYTHONPATH"} <= set(names)
    assert not {"HF_TOKEN", "SPECMESH_KEYS"} & set(names)


def test_it_ends_with_its_parent(make: Callable[..., Child], tmp_path: Path):
    os.mkfifo(pipe := tmp_path / "pipe")
    program = (
        "import os, sys; from specmesh.engines.sandbox import *; child = Child('under_test', memory=2**28, seconds=60);"
        "child.ask({'do': 'hold', 'what': sys.argv[1]}); os.kill(os.getpid(), 9)"
    )
    make()
    end = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    assert (
        subprocess.run(
            [sys.executable, "-c", program, str(pipe)], timeout=PATIENCE, check=False
        ).returncode
        == -9
    )
    assert select.select([end], [], [], PATIENCE)[0], "it still has the pipe open"
    assert os.read(end, 1) == b""
    os.close(end)
