"""A process of ours that may crash, hang or take all memory: what its caller sees, and that it goes on."""

import os
import select
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from harness import PATIENCE

from specmesh.engines.sandbox import Child
from specmesh.errors import ChildFailed, ChildLate

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
        case "both":
            global count
            count = globals().get("count", 0) + 1
            return {"count": count, "parent": os.getppid()}
        case "variables":
            return {"names": sorted(os.environ)}
        case "write":
            os.write(0, request["what"].encode())
        case "hold_and_sleep":
            with open(request["what"], "w") as pipe:
                pipe.write("begun")
                pipe.flush()
                time.sleep(60)
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

    def start(**how: Any) -> Child:
        made.append(Child("under_test", memory=2**28, **({"seconds": PATIENCE} | how)))
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


# --- copies of the process, one for each request


def test_each_request_has_a_copy_of_one_process(make: Callable[..., Child]):
    child = make(forks=True)
    first, second = child.ask({"do": "both"}), child.ask({"do": "both"})
    assert (first["count"], second["count"]) == (1, 1)
    assert first["parent"] == second["parent"] != os.getpid()
    for what in ("a", "\udc80\n\0", {"deep": [1, None, 2.5]}, "x" * 2**20):
        assert child.ask({"do": "echo", "what": what})["said"] == what


@pytest.mark.parametrize(
    ("do", "limits"),
    [("spin", {"cpu": 0.05}), ("spin", {"seconds": 0.1}), ("sleep", {"seconds": 0.1})],
)
def test_a_copy_that_takes_too_long_costs_no_process(
    make: Callable[..., Child], do: str, limits: dict[str, float]
):
    child = make(forks=True, **limits)
    before = child.ask({"do": "both"})["parent"]
    with pytest.raises(ChildLate, match=f"it took more than {min(limits.values()):g} s"):
        child.ask({"do": do})
    assert child.ask({"do": "both"})["parent"] == before


@pytest.mark.parametrize(
    ("do", "why"),
    [
        ("abort", "SIGABRT: its last line"),
        ("raise", "exit code 1: ValueError: a defect"),
        ("leave", "exit code 1: SystemExit: 3"),
        pytest.param("take", "more than 256 MiB of memory", marks=needs_limits),
    ],
)
def test_what_fails_in_a_copy_is_told(make: Callable[..., Child], do: str, why: str):
    child = make(forks=True)
    assert why in failure(child, do=do)
    assert child.ask({"do": "echo", "what": 1})["said"] == 1


def test_copies_end_with_the_process(make: Callable[..., Child], tmp_path: Path):
    """A copy is not left behind that computes for nobody."""
    os.mkfifo(pipe := tmp_path / "pipe")
    child = make(forks=True)
    end = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    with ThreadPoolExecutor(1) as asking:
        asked = asking.submit(failure, child, do="hold_and_sleep", what=str(pipe))
        assert select.select([end], [], [], PATIENCE)[0]
        child.close()
        asked.result(PATIENCE)
    os.set_blocking(end, True)
    while os.read(end, 1):  # its end comes when nobody holds the other one any more
        pass
    os.close(end)
