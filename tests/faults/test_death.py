"""E3: processes die, freeze, come late and come back: the text stays the target's own."""

import signal

import pytest
from processes import Daemon, Mesh, Stream, body, drafted, generating, sim_text, until

fault = pytest.mark.fault
PROMPT = "It was a dark and stormy night"


@pytest.fixture(scope="module")
def verifier(shared: Mesh) -> Daemon:
    return shared.verifier("step_ms=8")


def drafted_for(stream: Stream) -> bool:
    return bool(stream.accepted) and stream.accepted[-1] > 0


@fault("E3.31")
def test_a_killed_drafter_and_the_next_one_in_one_text(verifier: Daemon, beside: Mesh):
    drafter = beside.drafter()
    with Stream(verifier, body(PROMPT, 8000)) as stream:
        stream.read(while_=lambda: not drafted_for(stream))
        drafter.kill()
        until(lambda: not verifier.stats()["peers"], "the verifier notices")
        stream.read(10)
        beside.drafter(ready=False)
        known = len(stream.accepted)
        stream.read(while_=lambda: not any(stream.accepted[known:]))
    assert any(stream.accepted[known:]), "it did not draft in that session"
    assert sim_text(PROMPT, len(stream.ids)) == stream.text


@fault("E3.32")
def test_drafter_frozen_for_long_is_let_go_and_comes_back(verifier: Daemon, beside: Mesh):
    """Silence of some seconds in the middle of a text: the verifier gives the drafter up; thawed, with its queue full
    and its connection gone, it attaches again and drafts on in the same session."""
    drafter = beside.drafter("draft_ms=0.1,alpha=1")
    before = verifier.stats()["reconnects"]
    with Stream(verifier, body(PROMPT, 8000, draft_n=4)) as stream:
        stream.read(while_=lambda: not drafted_for(stream))
        drafter.signal(signal.SIGSTOP)
        stream.read(while_=lambda: bool(verifier.stats()["peers"]))
        drafter.signal(signal.SIGCONT)
        known = len(stream.accepted)
        stream.read(while_=lambda: sum(stream.accepted[known:]) < 30)
    assert stream.finish is None, "it did not come back in time"
    assert stream.text == sim_text(PROMPT, len(stream.ids))
    until(lambda: verifier.stats()["reconnects"] > before, "it is counted")
    assert verifier.stats()["reconnects"] == before + 1


@fault("E3.37")
def test_gone_client_cancels_on_the_verifier(verifier: Daemon, beside: Mesh):
    """A client of each daemon: one is interrupted, one is killed."""
    for daemon, number, code in ((verifier, signal.SIGKILL, -signal.SIGKILL), (beside.drafter(), signal.SIGINT, 130)):
        running = generating(daemon, PROMPT, "--max-tokens", 4000).read(10)
        until(lambda: verifier.live() == 1, "the session is seen")
        running.process.send_signal(number)
        done = running.end()
        assert sim_text(PROMPT, len(done.out)).startswith(done.out.removesuffix("\n"))
        assert (done.code, done.err) == (code, "")
        until(lambda: verifier.live() == 0, "the session is cancelled")


@pytest.mark.parametrize("number", [signal.SIGABRT, signal.SIGSEGV])
@fault("E3.38")
def test_a_crash_in_the_middle_of_a_text(mesh: Mesh, role: str, number: signal.Signals):
    daemons = {"verifier": mesh.verifier("step_ms=8"), "drafter": mesh.drafter()}
    running = generating(daemons["verifier"], PROMPT, "--max-tokens", 200, "--reconnect-timeout", 0).read(20)
    daemons[role].signal(number)
    done = running.end()
    assert daemons[role].wait() == -number
    assert (done.code, done.err.count("\n")) == ((69, 1) if role == "verifier" else (0, 0))
    assert sim_text(PROMPT, 200).startswith(done.out.removesuffix("\n"))
    daemons[role] = {"verifier": mesh.verifier, "drafter": mesh.drafter}[role](ready=False)
    mesh.attached(daemons["drafter"].ready())
    for daemon in daemons.values():
        assert drafted(daemon, body(PROMPT, 60, draft_n=4)).text == sim_text(PROMPT, 60)
