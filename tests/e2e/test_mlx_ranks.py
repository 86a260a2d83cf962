"""`specmesh verifier --engine mlx --distributed`: two ranks have the ids of one."""

import json
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest
from harness.ports import free_port
from processes import body, complete, drafted, until

from specmesh.errors import SpecmeshError

pytestmark = pytest.mark.models

SMALL = ("--ctx", 128, "--max-sessions", 2)
N = 40
PROMPT = "class Stack:\n    def push(self"
SAMPLED = {"temperature": 0.8, "seed": 7}


@pytest.fixture
def ranks(mesh, make_hf, monkeypatch):
    """Start two ranks on this machine, as mlx.launch does; return them, rank 0 first."""
    hosts = mesh.folder / "hosts.json"
    addresses = [[f"127.0.0.1:{free_port()}"] for _ in range(2)]
    hosts.write_text(json.dumps(addresses), encoding="utf-8")
    monkeypatch.setenv("MLX_HOSTFILE", str(hosts))
    model = ("--engine", "mlx", "--model", make_hf("ranks"), "--distributed", *SMALL)
    found = {}
    for rank in (1, 0):  # drafters are for the last one
        monkeypatch.setenv("MLX_RANK", str(rank))
        options = (*model, "--bind", mesh.address)
        found[rank] = mesh.start("verifier", *options, name=f"rank{rank}")
    return found[0].ready(), found[1]


@pytest.fixture
def alone(mesh, make_hf):
    """The ids of one process, without drafts."""
    verifier = mesh.verifier(make_hf("ranks"), *SMALL, engine="mlx", name="alone")
    found = [complete(verifier, body(PROMPT, N, draft_n=0, **how)).ids for how in ({}, SAMPLED)]
    verifier.stop()
    return found


def test_two_ranks_have_the_ids_of_one(mesh, make_hf, alone, ranks):
    """Greedy and sampled, without drafts and with those of a twin, from the cache and anew."""
    first, follower = ranks
    for how, expected in zip(({}, SAMPLED), alone, strict=True):
        assert complete(first, body(PROMPT, N, draft_n=0, **how)).ids == expected
    mesh.drafter(make_hf("ranks"), *SMALL, engine="mlx")
    for how, expected in zip(({}, SAMPLED), alone, strict=True):
        assert drafted(first, body(PROMPT, N, draft_n=3, **how)).ids == expected
        again = body(PROMPT, N, draft_n=3, cache_prompt=True, **how)
        assert [complete(first, again).ids for _ in range(2)] == [expected] * 2
    assert "2 ranks" in first.stats()["model"]["backend"]
    assert first.stop() == 0
    assert follower.wait() == 0


def test_rank_0_dies(ranks):
    first, follower = ranks
    complete(first, body(PROMPT, 4))
    first.kill()
    follower.wait()
    assert "Traceback" not in follower.text()


def ends(first):
    """Check that rank 0 says what it has lost, and ends."""
    assert first.wait() == 0
    assert "Traceback" not in first.text()
    # MLX's own messages may begin the same line.
    assert first.text().count('"event": "rank_lost"') == 1


def test_another_rank_dies_between_steps(ranks):
    first, follower = ranks
    complete(first, body(PROMPT, 4))
    first.let_go = True
    follower.kill()
    ends(first)


def test_another_rank_dies_within_a_step(ranks):
    """Rank 0 waits for its part; the request fails."""
    first, follower = ranks
    complete(first, body(PROMPT, 4))
    first.let_go = True
    follower.signal(signal.SIGSTOP)
    with ThreadPoolExecutor(1) as clients:
        asked = clients.submit(complete, first, body(PROMPT, 4))
        until(first.live, "the request is begun")
        follower.signal(signal.SIGKILL)
        assert isinstance(asked.exception(), SpecmeshError)
    ends(first)
