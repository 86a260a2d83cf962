"""`specmesh bench` and `plan` against running daemons."""

import json

import pytest
from processes import Done, Mesh, Stream, body, command, complete, until

from specmesh.bench.steps import read_costs


def test_bench_run(mesh: Mesh):
    """Five variants of the same texts; nothing where no drafter or nobody is there."""
    verifier = mesh.verifier("step_ms=3")
    options = ("--socket", verifier.socket, "--iterations", 2, "--num-prompts", 2, "--max-tokens", 24, "--json")
    command("bench", "run", *options).refused(69, "no drafter is attached")
    mesh.drafter("draft_ms=0.2,alpha=0.9")

    def ran() -> Done | None:
        """A run whose drafter had a processor."""
        done = command("bench", "run", *options)
        assert (done.code, done.err) == (0, "")
        four = next(one for one in done.json["variants"] if one["variant"] == "draft_n 4")
        return done if (four["acceptance_rate"] or 0) > 0.5 and four["bytes_per_token"] > 8 else None

    done = until(ran, "drafts stand")
    told = {one["variant"]: one for one in done.json["variants"]}
    assert list(told) == ["alone", "draft_n 2", "draft_n 4", "draft_n 8", "adaptive"]
    for one in told.values():
        assert (one["texts"], one["tokens"], one["identical"]) == (4, 4 * 24, 4)
        assert one["tokens_per_second"]["low"] > 0
    assert told["alone"]["bytes_per_token"] == 0 == told["alone"]["mean_draft_n"]
    suite = command("bench", "run", "--suite", "--num-prompts", 1, "--max-tokens", 8, *options[:2], "--json").json
    assert len(suite["categories"]) == 7 + 1
    told = [(one["variant"], one["identical"]) for one in suite["categories"][-1]["sources"]]
    assert told == [("alone", 7), ("drafter", 7)]
    steps = command("bench", "steps", "--socket", verifier.socket, "--json")
    file = mesh.folder / "steps.json"
    file.write_text(steps.out)
    assert read_costs(file).seconds(1) == pytest.approx(steps.json["steps_ms"]["0"]["1"] / 1e3)
    verifier.stop()
    assert command("bench", "run", "--socket", verifier.socket).code == 69


def test_load_and_plan(mesh: Mesh):
    """Clients at once: more of them than it has places for wait, or are refused and ask again, and all get their texts.
    The same verifier's step costs serve for a plan."""
    verifier = mesh.verifier("step_ms=2,max_sessions=3", "--max-queue", 1)
    mesh.drafter("draft_ms=0.3,alpha=0.9")
    options = ("--max-tokens", 24, "--json")

    def ran() -> Done | None:
        done = command("bench", "load", "--sessions", "1,6", "--socket", verifier.socket, *options)
        assert (done.code, done.err) == (0, "")
        return done if (done.json["levels"][1]["acceptance_rate"] or 0) > 0.3 else None

    done = until(ran, "drafts stand")
    one, six = done.json["levels"]
    assert [(level["sessions"], level["texts"], level["tokens"]) for level in (one, six)] == [(1, 1, 24), (6, 6, 144)]
    assert 0 < six["fairness"] <= 1
    plan = command("plan", "--socket", verifier.socket, "--users", "2", "--tokens", 16, "--json")
    assert plan.code == 0
    assert plan.json["step_ms"] > 1


def test_a_drafter_that_becomes_right_is_asked_again(mesh: Mesh):
    """Drafting is off while drafts are mostly wrong and steps with them dear; it comes back where they begin to be
    right, because the drafter is asked for a few now and then."""
    verifier = mesh.verifier("steps_ms=4/16/16/16/5")
    mesh.drafter("draft_ms=0.3,alphas=0.02/0.98")

    def asked_again() -> bool:
        """A text whose drafter had a processor: one that is late for each draft does not pay, and stays off."""
        with Stream(verifier, body("a text", 6000)) as stream:
            stream.read(while_=lambda: sum(stream.accepted) <= 10)
        return sum(stream.accepted) > 10

    until(asked_again, "it is asked again")


def test_each_step_is_a_debug_event(mesh: Mesh):
    """With `--log-level debug` only: rows, drafts, accepted, draft_n and seconds, and never the text."""
    verifier = mesh.verifier("step_ms=5", "--log-level", "debug")
    mesh.drafter("draft_ms=1,alpha=0.8")
    stream = complete(verifier, body("a text", 100))
    verifier.stop()
    events = [json.loads(line) for line in verifier.text().splitlines() if line.startswith("{")]
    steps = [event for event in events if event["event"] == "step"]
    assert sum(step["accepted"] for step in steps) == stream.result["report"]["accepted"]  # type: ignore[index]
    assert all(step["rows"] > step["drafts"] >= step["accepted"] and step["seconds"] > 0 for step in steps)
