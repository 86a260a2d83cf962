"""`specmesh bench` against running daemons."""

from processes import Mesh, command


def test_bench_run(mesh: Mesh):
    """Five variants of the same texts; alone only where no drafter is there; nothing where nobody is."""
    verifier = mesh.verifier("step_ms=3")
    options = ("--socket", verifier.socket, "--iterations", 2, "--num-prompts", 2, "--max-tokens", 24, "--json")
    alone = command("bench", "run", *options)
    assert (alone.code, [one["variant"] for one in alone.json["variants"]]) == (0, ["alone"])
    assert "no drafter" in alone.err
    mesh.drafter("draft_ms=0.2,alpha=0.9")
    done = command("bench", "run", *options)
    assert (done.code, done.err) == (0, "")
    told = {one["variant"]: one for one in done.json["variants"]}
    assert list(told) == ["alone", "draft_n 2", "draft_n 4", "draft_n 8", "adaptive"]
    for one in told.values():
        assert (one["texts"], one["tokens"], one["identical"], one["without_drafter"]) == (4, 4 * 24, 4, 0)
        assert one["tokens_per_second"]["low"] > 0
    assert told["alone"]["bytes_per_token"] == 0 == told["alone"]["mean_draft_n"]
    assert told["draft_n 4"]["acceptance_rate"] > 0.5
    assert told["draft_n 4"]["draft_ms"] > 0
    assert told["draft_n 4"]["bytes_per_token"] > 8
    assert done.json["assessment"]
    steps = command("bench", "steps", "--socket", verifier.socket, "--json")
    assert steps.json["steps"][0]["rows"] == 1
    verifier.stop()
    assert command("bench", "run", "--socket", verifier.socket).code == 69
