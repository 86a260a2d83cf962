"""Connections that take without giving: idle, half-sent, unread. Others are served as if they were not there."""

import json
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime
from http.client import HTTPException
from itertools import pairwise
from pathlib import Path

import pytest
from harness.ports import free_port
from processes import Mesh, Stream, body, complete, few_descriptors, generate, sim_text, until
from served import HEAD, Answer, Served, asking, many

from specmesh.errors import WentAway

PROMPT = "All good things"


@pytest.mark.parametrize(
    ("count", "sent"),
    [(150, b""), (300, HEAD + b"Content-Length: 100\r\n\r\n{")],
    ids=["idle", "half a body"],
)
@pytest.mark.fault("E5.51")
def test_more_connections_than_descriptors(mesh: Mesh, count: int, sent: bytes):
    """The port, the socket and drafters are served while they last; the log says nothing of them."""
    port = free_port()
    verifier = mesh.verifier("", "--http", f"127.0.0.1:{port}", program=few_descriptors(128))
    with many(("127.0.0.1", port), count, sent), many(verifier.socket, 150, sent):
        for at in (port, 0) * 3:
            assert Served(verifier, at).ask("GET", "/health").status == 200
        mesh.drafter()
        assert generate(verifier, PROMPT, "--max-tokens", 20).out == sim_text(PROMPT, 20) + "\n"
    assert not verifier.events("api_trouble")


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.fault("E5.51")
def test_no_descriptor_for_a_connection(mesh: Mesh):
    """What the wire's connections have taken is missing at the API: it tries once a second, says so as often, and
    answers as soon as there is one. libzmq aborts in some places where it has none; not in those that we use."""
    verifier = mesh.verifier(program=few_descriptors(64))
    descriptors = Path(f"/proc/{verifier.pid}/fd")
    with Stream(verifier, body(PROMPT, 800)) as stream, many(("127.0.0.1", mesh.port), 200, seconds=0.02):
        until(lambda: len([*descriptors.iterdir()]) == 64, "the wire has taken all there were")
        with many(verifier.socket, 30):
            until(lambda: len(verifier.events("api_trouble")) >= 3, "it says that it has no descriptor")
        times = [datetime.fromisoformat(str(one["timestamp"])).timestamp() for one in verifier.events("api_trouble")]
        assert all(later - sooner > 0.9 for sooner, later in pairwise(times))
        assert stream.read().text == sim_text(PROMPT, 800)
    assert Served(verifier).ask("GET", "/health").status == 200
    mesh.drafter()
    assert complete(verifier, body(PROMPT, 40, draft_n=4)).text == sim_text(PROMPT, 40)


def test_a_drafter_that_ends(mesh: Mesh):
    """Its clients hear why: 503 where nothing was said yet, also to those that come last, an error event in a stream.
    One that does not read holds it up for no more than two seconds. The log is quiet about all of it."""
    verifier = mesh.verifier("step_ms=20,max_sessions=3,n_ctx=60000")
    drafter = mesh.drafter("", "--drain", 0)
    answers: list[Answer] = []

    def ask(stream: bool) -> None:
        answers.append(Served(drafter).ask("POST", "/v1/completions", body(PROMPT, 50_000, stream=stream)))

    def ask_on(_: int) -> None:
        with suppress(OSError, HTTPException):  # until nobody listens any more, or answers
            while True:
                ask(stream=False)

    unread = asking(body(PROMPT, 50_000, stream=True, rounds=True))
    with many(drafter.socket, 1, unread), ThreadPoolExecutor(16) as clients:
        until(lambda: verifier.live() == 1, "it has begun")
        begun = Stream(drafter, body(PROMPT, 50_000))
        waiting = [clients.submit(ask, stream) for stream in (False, True, False)]
        until(lambda: drafter.stats()["sessions"]["live"] == 3, "those have begun")  # type: ignore[index]
        drafter.signal(signal.SIGTERM)
        late = [clients.submit(ask_on, number) for number in range(8)]
        assert drafter.wait() == 0
        for one in (*waiting, *late):
            one.result()
        with pytest.raises(WentAway, match="stopping"):
            begun.read()
    assert len(answers) > 3
    assert 503 in {answer.status for answer in answers} <= {200, 503}
    for answer in answers:
        assert b"the drafter is stopping" in answer.raw
        assert answer.status == 200 or answer.headers["retry-after"] == "1"
        assert answer.status == 503 or answer.raw.rstrip().splitlines()[-1].startswith(b'data: {"error"')
    levels = {json.loads(line)["level"] for line in drafter.text().splitlines()}
    assert levels == {"info"}
