"""E3: processes die, freeze, come late and come back: the text stays the target's own.

E8.99: an engine's step does not end, as on a slow processor: only work that needs the step waits
for it.
"""

import re
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from harness import PATIENCE
from harness.tables import cases
from peer import Peer
from processes import (
    Done,
    Stream,
    body,
    command,
    complete,
    drafted,
    edited,
    generating,
    sim_text,
    until,
)

from soak.run import soak
from soak.truth import Verdict
from specmesh.core.sampling.sampler import SamplingParams
from specmesh.errors import Busy, WentAway

fault = pytest.mark.fault
PROMPT = "It was a dark and stormy night"


@pytest.fixture(scope="module")
def verifier(shared):
    return shared.verifier("step_ms=8")


@fault("E3.31")
def test_a_killed_drafter_and_the_next_one_in_one_text(verifier, beside):
    drafter = beside.drafter()
    with Stream(verifier, body(PROMPT, 8000)) as stream:
        stream.drafted(1)
        drafter.kill()
        verifier.alone()
        stream.read(10)
        beside.drafter(ready=False)
        stream.drafted(1)
    stream.checked()


@fault("E3.32")
def test_drafter_frozen_for_long_is_let_go_and_comes_back(verifier, beside):
    """Its queue is full and its connection gone; it drafts on in the same session."""
    drafter = beside.drafter("draft_ms=0.1,alpha=1")
    before = verifier.stats()["reconnects"]
    with Stream(verifier, body(PROMPT, 8000, draft_n=4)) as stream:
        stream.drafted(1)
        drafter.signal(signal.SIGSTOP)
        stream.read(while_=lambda: bool(verifier.stats()["peers"]))
        drafter.signal(signal.SIGCONT)
        stream.drafted(30)
    assert stream.finish is None
    stream.checked()
    until(lambda: verifier.stats()["reconnects"] == before + 1, "it is counted once")


@fault("E3.37")
def test_gone_client_cancels_on_the_verifier(verifier, beside):
    """A client of each daemon: one is interrupted, one is killed."""
    drafter = beside.drafter()
    for daemon, number, code in ((verifier, signal.SIGKILL, -9), (drafter, signal.SIGINT, 130)):
        running = generating(daemon, PROMPT, max_tokens=4000).read(10)
        until(lambda: verifier.live() == 1, "the session is seen")
        running.process.send_signal(number)
        done = running.end()
        done.begins(PROMPT)
        assert (done.code, done.err) == (code, "")
        verifier.idle()


@pytest.mark.parametrize(
    ("role", "number"), [("verifier", signal.SIGABRT), ("drafter", signal.SIGSEGV)]
)
@fault("E3.38")
def test_a_crash_in_the_middle_of_a_text(mesh, role, number):
    daemons = {"verifier": mesh.verifier(TARGET), "drafter": mesh.drafter()}
    running = generating(daemons["verifier"], PROMPT, max_tokens=200, reconnect_timeout=0).read(20)
    daemons[role].signal(number)
    done = running.end()
    assert daemons[role].wait() == -number
    assert (done.code, done.err.count("\n")) == ((69, 1) if role == "verifier" else (0, 0))
    done.begins(PROMPT)
    daemons[role] = start_again(mesh, role)
    mesh.attached(daemons["drafter"].ready())
    for daemon in daemons.values():
        drafted(daemon, body(PROMPT, 60, draft_n=4)).checked()


TARGET = "step_ms=10"
N = 150
NOTICE = re.compile(r"specmesh: .*went away.*; it is waited for, 30 s at most\n")


def start_again(mesh, role):
    """The daemon of that role once more, at the same socket; not waited for."""
    if role == "verifier":
        return mesh.verifier(TARGET, ready=False)
    return mesh.drafter(ready=False)


def nothing_lives(daemon):
    sessions = daemon.stats()["sessions"]
    counts = ("live", "kept") if daemon.role == "verifier" else ("live", "interrupted")
    return not any(sessions[count] for count in counts)


def nothing_left(*daemons):
    """No session lives or is kept for anybody."""
    for daemon in daemons:
        until(lambda: nothing_lives(daemon), f"nothing is left: {daemon.role}")  # noqa: B023


@cases(
    "client, killed",
    """
    ["drafter", ["verifier"]]
    ["verifier", ["verifier"]]
    ["drafter", ["drafter"]]
    ["drafter", ["verifier", "drafter"]]
    """,
)
@fault("E3.34", "E3.35")
def test_killed_and_started_again(mesh, client, killed):
    """The client of a killed daemon gets the same text, nothing twice, and notice that it waits."""
    pair = {"verifier": mesh.verifier(TARGET), "drafter": mesh.drafter()}
    seeded = SamplingParams(temperature=0.8, seed=7)
    sampling = ("--temperature", 0.8, "--seed", 7)
    running = generating(pair[client], PROMPT, *sampling, max_tokens=N).read(40)
    for role in killed:
        pair[role].kill()
        pair[role] = start_again(mesh, role)
    done = running.end()
    assert (done.code, done.out) == (0, sim_text(PROMPT, N, seeded) + "\n")
    if client in killed:
        assert NOTICE.match(done.err)
    else:
        assert done.err == ""
    nothing_left(*pair.values())


@fault("E3.34")
def test_a_text_of_100_000_ids_goes_on(mesh):
    """All its ids go to the next verifier; its client gets the rest of the text, once."""
    sized = f"{TARGET},n_ctx=131072,n_batch=16384"
    verifier, drafter = mesh.verifier(sized), mesh.drafter()
    request = body([32 + at % 95 for at in range(100_000)], N, reconnect_timeout=PATIENCE)
    with Stream(drafter, request) as stream:
        stream.read(10)
        verifier.kill()
        again = mesh.verifier(sized, ready=False)
        stream.read()
    assert stream.ids == complete(again, request | {"draft_n": 0}).ids
    nothing_left(again, drafter)


@fault("E3.32")
def test_frozen_verifier_is_found_again(mesh):
    """The drafter gives it up after 3.5 s, and goes on with the session once it moves again."""
    verifier, drafter = mesh.verifier(TARGET), mesh.drafter()
    running = generating(drafter, PROMPT, max_tokens=300).read(40)
    verifier.signal(signal.SIGSTOP)
    until(lambda: drafter.stats()["sessions"]["interrupted"] == 1, "it is given up")
    verifier.signal(signal.SIGCONT)
    assert running.end() == Done(0, sim_text(PROMPT, 300) + "\n", "")
    nothing_left(verifier, drafter)


@fault("E3.34")
def test_nobody_comes_back_in_time(mesh):
    """69 with the text so far, and a line with the command that goes on with it.

    A drafter still can, once a verifier is back.
    """
    verifier, drafter = mesh.verifier(TARGET), mesh.drafter()
    running = generating(drafter, PROMPT, max_tokens=N, reconnect_timeout=0.3).read(40)
    verifier.kill()
    done = running.end()
    assert done.code == 69
    assert 40 <= len(done.out) < N
    done.begins(PROMPT)
    assert done.err.count("\n") == 1
    _, hint, name = done.err.rpartition("specmesh generate --resume ")
    assert hint
    again = start_again(mesh, "verifier").ready()
    mesh.attached(drafter.ready())
    whole = command("generate", resume=name.strip(), socket=drafter.socket)
    assert whole == Done(0, sim_text(PROMPT, N) + "\n", "")
    nothing_left(again, drafter)


SLOW = "\x07"
"""An id that a step takes long over: until the test says that it is over."""

SLOWLY = """
import pathlib, time
from specmesh.engines.sim import {engine} as Engine
{work}, begun, over = Engine.{work}, pathlib.Path("{folder}/begun"), pathlib.Path("{folder}/over")
def slowly(engine, parts):
    if any({slow} in part.ids for part in parts) and not over.exists():
        begun.touch()
        while not over.exists(): time.sleep(0.05)  # a step ends when the test says so, not by time
    return {work}(engine, parts)
Engine.{work} = slowly
"""


@pytest.fixture
def clients():
    """Threads of clients; a test that fails does not wait for them."""
    made = ThreadPoolExecutor()
    yield made
    made.shutdown(wait=False)


def slow(mesh, role, *options):
    """A daemon with that engine.

    A verifier with two sessions and one place in its queue, or a drafter, attached.
    """
    engine, work = "SimDrafter", "predict"
    start, model = mesh.drafter, "draft_ms=0.5,alpha=1"
    if role == "verifier":
        engine, work = "SimVerifier", "decode"
        start, model = mesh.verifier, "step_ms=4,max_sessions=2"
        options += ("--max-queue", 1)
    program = edited(SLOWLY.format(engine=engine, work=work, folder=mesh.folder, slow=ord(SLOW)))
    return start(model, *options, program=program)


@fault("E8.99")
def test_what_needs_no_step_does_not_wait_for_it(mesh, clients):
    daemon, drafter = slow(mesh, "verifier"), mesh.drafter("draft_ms=0.5,alpha=1")
    with Stream(daemon, body(PROMPT, 8000)) as leaves:
        leaves.read(3)
        slowed = clients.submit(complete, drafter, body(PROMPT + SLOW, 40, draft_n=4))
        until((mesh.folder / "begun").exists, "the slow step has begun")
        waiting = clients.submit(complete, daemon, body(PROMPT, 40))
        until(lambda: daemon.stats()["sessions"]["queued"] == 1, "the next one waits")
        assert daemon.client.get("/health")["status"] == "ok"
        assert daemon.client.get("/v1/models")["data"]
        with pytest.raises(Busy):
            complete(daemon, body(PROMPT, 5))
        with Peer(SimpleNamespace(port=mesh.port, server=None)) as peer:
            peer.join()
            peer.answered()
    over = daemon.stats()["uptime_s"] + 5.0  # by its own clock longer than silence is borne
    until(lambda: daemon.stats()["uptime_s"] > over, "the step is long")
    assert daemon.client.get("/health")["status"] == "ok"
    assert daemon.has(drafter)
    assert waiting.running()
    (mesh.folder / "over").touch()
    for text in (waiting, slowed):
        text.result(PATIENCE).checked()
    assert daemon.has(drafter)
    daemon.idle()
    ended = daemon.stats()["sessions"]["ended"]
    assert (ended["cancelled"], ended["length"]) == (1, 2)
    assert drafter.stats()["reconnects"] == 0
    assert "Traceback" not in daemon.text() + drafter.text()


@fault("E8.99")
def test_sigterm_in_a_slow_step(mesh, clients, role):
    if role == "drafter":
        mesh.verifier("step_ms=4,max_sessions=4")
    asked = slow(mesh, role, "--drain", 1.0)
    slowed = clients.submit(complete, asked, body(PROMPT + SLOW, 400, draft_n=4))
    until((mesh.folder / "begun").exists, "the slow step has begun")
    began = time.monotonic()
    asked.signal(signal.SIGTERM)
    assert asked.wait() == 0, "it ends though the step does not"
    assert time.monotonic() > began + 1.0
    with pytest.raises(WentAway):
        slowed.result(PATIENCE)


@pytest.mark.e2e
def test_soak():
    """Daemons that are killed and started, frozen, cut off.

    Every text is right, and no session is left.
    """
    [pair] = soak(seconds=5.0, seed=45, count=10, pairs=("shaken",))
    assert pair.failures() == []
    assert pair.verdicts[Verdict.COMPLETE] > 5
    assert pair.faults["verifier kill"] + pair.faults["drafter kill"] > 0
