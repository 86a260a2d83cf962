"""A child process that may crash, hang or take all memory: its caller gets an error and goes on."""

import os
import select
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from threading import Thread
from unittest.mock import Mock

import pytest
from harness import PATIENCE
from harness.tables import cases

from specmesh.engines.sandbox import Child
from specmesh.errors import ChildFailed, ChildLate

PROGRAM = """
import os, sys, time

starts = f"{__file__}.starts"
if os.path.exists(starts):
    with open(starts, "w") as pipe:
        print(os.getpid(), file=pipe)
count = 0
held = None

def answer(request):
    global count, held
    what = request.get("what")
    match request["do"]:
        case "echo":
            return {"echo": what}
        case "count":
            count += 1
            return {"count": count, "pid": os.getpid(), "parent": os.getppid()}
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
            os.write(0, what.encode())
        case "hold":
            held = open(what, "w")
        case "hold_and_sleep":
            held = open(what, "w")
            held.write("begun")
            held.flush()
            time.sleep(60)
    return {}
"""

CLOSED = "its owner has closed it"

VALUES = ["a", "\udc80\n\0", {"deep": [1, None, 2.5]}, "x" * 2**20]


@pytest.fixture
def make(tmp_path, monkeypatch):
    """Start a child that runs the program above."""
    (tmp_path / "under_test.py").write_text(PROGRAM)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    children = []

    def start(seconds=PATIENCE, **options):
        child = Child("under_test", memory=2**28, seconds=seconds, **options)
        children.append(child)
        return child

    yield start
    for child in children:
        child.close()


@pytest.fixture
def pipe(tmp_path):
    """A named pipe and its reading end."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    end = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    yield str(path), end
    os.close(end)


def failure(child, **request):
    with pytest.raises(ChildFailed) as raised:
        child.ask(request)
    return str(raised.value)


def echo(child, what):
    return child.ask({"do": "echo", "what": what})["echo"]


def count(child):
    return child.ask({"do": "count"})


@pytest.fixture
def next_start(tmp_path):
    """Return a function that returns the id of the next process that starts; None for none."""
    path = tmp_path / "under_test.py.starts"
    os.mkfifo(path)
    end = os.open(path, os.O_RDWR)

    def started(seconds=PATIENCE):
        if not select.select([end], [], [], seconds)[0]:
            return None
        return int(os.read(end, 20).split()[0])

    yield started
    os.close(end)


def test_a_prepared_process_answers_the_first_request(make, next_start):
    child = make()
    child.prepare()
    prepared = next_start()
    assert count(child)["pid"] == prepared


def test_a_prepared_process_that_has_died_is_replaced(make, next_start):
    child = make()
    child.prepare()
    prepared = next_start()
    os.kill(prepared, signal.SIGKILL)
    os.waitid(os.P_PID, prepared, os.WEXITED | os.WNOWAIT)
    assert count(child)["pid"] == next_start() != prepared


def test_a_process_is_prepared_once(make, next_start):
    child = make()
    child.prepare()
    child.prepare()
    assert count(child)["pid"] == next_start()
    assert next_start(seconds=0) is None


def test_nothing_is_prepared_after_the_end(make, monkeypatch):
    child = make()
    child.close()
    start = Mock()
    monkeypatch.setattr(subprocess, "Popen", start)
    child.prepare()
    start.assert_not_called()


def test_one_process_answers_many_requests(make):
    child = make()
    assert [count(child)["count"], count(child)["count"]] == [1, 2]
    assert count(child)["pid"] != os.getpid()


@pytest.mark.parametrize("forks", [False, True])
@pytest.mark.parametrize("value", VALUES, ids=type)
def test_any_value_comes_back(make, forks, value):
    assert echo(make(forks=forks), value) == value


@pytest.mark.parametrize(
    ("forks", "do", "reason"),
    [
        (False, "leave", "exit code 3"),
        (True, "leave", "exit code 1: SystemExit: 3"),
        *product((False, True), ["abort"], ["SIGABRT: its last line"]),
        *product((False, True), ["raise"], ["exit code 1: ValueError: a defect"]),
        *product((False, True), ["take"], ["more than 256 MiB of memory"]),
    ],
)
def test_a_failure_has_its_reason(make, forks, do, reason):
    """The next request is answered."""
    if do == "take" and sys.platform == "darwin":
        pytest.skip("macOS does not enforce its limit of memory")
    child = make(forks=forks)
    assert reason in failure(child, do=do)
    assert echo(child, 1) == 1


@pytest.mark.parametrize("what", ["{{{{\n", "x" * 99, "[]\n"])
def test_an_answer_that_is_no_object(make, what):
    child = make()
    assert "cannot be read" in failure(child, do="write", what=what)
    assert echo(child, 1) == 1


def test_nobody_need_read_its_warnings(make):
    child = make()
    count(child)
    for _ in range(3):
        assert child.ask({"do": "warn"}) == {}
    assert count(child)["count"] == 2


@pytest.mark.parametrize("do", ["spin", "sleep"])
def test_it_is_not_waited_for_longer_than_allowed(make, do):
    child = make()
    before = count(child)["pid"]
    child.seconds = 0.1
    assert failure(child, do=do) == "it took more than 0.1 s"
    child.seconds = PATIENCE
    with pytest.raises(ProcessLookupError):
        os.kill(before, 0)
    assert count(child)["count"] == 1


def test_it_knows_no_secrets(make, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "secret")
    monkeypatch.setenv("SPECMESH_KEYS", "secret")
    names = set(make().ask({"do": "variables"})["names"])
    assert {"PATH", "PYTHONPATH"} <= names
    assert not {"HF_TOKEN", "SPECMESH_KEYS"} & names


KILLED = """
import os, sys
from specmesh.engines.sandbox import Child
child = Child("under_test", memory=2**28, seconds=60)
child.ask({"do": "hold", "what": sys.argv[1]})
os.kill(os.getpid(), 9)
"""


@pytest.mark.usefixtures("make")
def test_it_ends_with_its_parent(pipe):
    path, end = pipe
    done = subprocess.run([sys.executable, "-c", KILLED, path], timeout=PATIENCE, check=False)
    assert done.returncode == -9
    assert select.select([end], [], [], PATIENCE)[0], "it still has the pipe open"
    assert os.read(end, 1) == b""


# --- its end


def test_nothing_starts_after_its_end(make):
    child = make()
    count(child)
    child.close()
    assert failure(child, do="count") == CLOSED


def test_requests_that_wait_at_its_end_start_nothing(make, pipe):
    """They wait for one that runs."""
    path, end = pipe
    child = make()
    with ThreadPoolExecutor(5) as asking:
        running = asking.submit(failure, child, do="hold_and_sleep", what=path)
        assert select.select([end], [], [], PATIENCE)[0]
        waiting = [asking.submit(failure, child, do="count") for _ in range(4)]
        child.close()
        assert "SIGKILL" in running.result(PATIENCE)
        assert [asked.result(PATIENCE) for asked in waiting] == [CLOSED] * 4


def test_a_process_that_starts_at_its_end_is_ended(make, monkeypatch):
    child = make()
    start = child._start
    started = []

    def start_and_close():
        started.append(start())
        closing.start()
        while not child._closed:
            pass
        return started[0]

    monkeypatch.setattr(child, "_start", start_and_close)
    closing = Thread(target=child.close)
    assert failure(child, do="count") == CLOSED
    closing.join(PATIENCE)
    assert started[0].returncode == -signal.SIGKILL


# --- copies of the process, one for each request


def test_each_request_has_a_copy_of_one_process(make):
    child = make(forks=True)
    first = count(child)
    second = count(child)
    assert first["count"] == second["count"] == 1
    assert first["parent"] == second["parent"] != os.getpid()


@cases(
    "do, limits",
    """
    ["spin", {"cpu": 0.05}]
    ["spin", {"seconds": 0.1}]
    ["sleep", {"seconds": 0.1}]
    """,
)
def test_a_copy_that_takes_too_long_costs_no_process(make, do, limits):
    child = make(forks=True, **limits)
    before = count(child)["parent"]
    [limit] = limits.values()
    with pytest.raises(ChildLate, match=f"it took more than {limit:g} s"):
        child.ask({"do": do})
    assert count(child)["parent"] == before


def test_copies_end_with_the_process(make, pipe):
    """No copy is left behind that computes for nobody."""
    path, end = pipe
    child = make(forks=True)
    with ThreadPoolExecutor(1) as asking:
        asked = asking.submit(failure, child, do="hold_and_sleep", what=path)
        assert select.select([end], [], [], PATIENCE)[0]
        child.close()
        asked.result(PATIENCE)
    os.set_blocking(end, True)
    while os.read(end, 1):
        pass
