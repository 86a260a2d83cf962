"""`specmesh bench load` and `specmesh plan` against running daemons."""

from harness.ports import free_port
from processes import Mesh, command


def test_load_and_plan(mesh: Mesh):
    """Clients at once at a daemon's socket and at its port, as at any other server; more of them than it has places for
    wait, or are refused and ask again, and all get their texts. The same verifier's step costs serve for a plan."""
    port = free_port()
    verifier = mesh.verifier("step_ms=2,n_seq=3", "--max-queue", 1, "--http", f"127.0.0.1:{port}")
    mesh.drafter("draft_ms=0.3,alpha=0.9")
    options = ("--max-tokens", 24, "--json")
    done = command("bench", "load", "--sessions", "1,6", "--socket", verifier.socket, *options)
    assert (done.code, done.err) == (0, "")
    one, six = done.json["levels"]
    assert [(level["sessions"], level["texts"], level["tokens"]) for level in (one, six)] == [(1, 1, 24), (6, 6, 144)]
    assert six["identical"] == six["compared"] == 1
    assert six["acceptance_rate"] > 0.3
    assert 0 < six["fairness"] <= 1
    assert done.json["max_sessions"] == 3
    url = f"http://127.0.0.1:{port}"
    there = command("bench", "load", "--sessions", "2", "--url", url, "--draft-n", 0, *options)
    [level] = there.json["levels"]
    assert (there.code, level["tokens"], level["acceptance_rate"]) == (0, 48, None)
    plan = command("plan", "--socket", verifier.socket, "--users", "2", "--tokens", 16, "--json")
    assert plan.code == 0
    assert plan.json["step_ms"] > 1
