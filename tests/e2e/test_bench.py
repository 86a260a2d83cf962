"""`specmesh bench`, `plan` and `audit` against running daemons, and `demo`, whose daemons end with it."""

import json
import os
import random
import signal
from pathlib import Path
from typing import Any

import pytest
from processes import (
    Daemon,
    Done,
    Json,
    Mesh,
    Running,
    Stream,
    body,
    cache,
    command,
    complete,
    edited,
    until,
)

from specmesh.bench.audit import audit, lines
from specmesh.bench.steps import read_costs
from specmesh.client import Client
from specmesh.paths import bundled


def test_bench_run(mesh: Mesh):
    """Five variants of the same texts; nothing where no drafter or nobody is there."""
    verifier = mesh.verifier("step_ms=3")
    options = (
        "--socket",
        verifier.socket,
        "--iterations",
        2,
        "--num-prompts",
        2,
        "--max-tokens",
        24,
        "--json",
    )
    command("bench", "run", *options).refused(69, "no drafter is attached")
    mesh.drafter("draft_ms=0.2,alpha=0.9")

    def ran() -> Done | None:
        """A run whose drafter had a processor."""
        done = command("bench", "run", *options)
        assert (done.code, done.err) == (0, "")
        four = next(one for one in done.json["variants"] if one["variant"] == "draft_n 4")
        return (
            done if (four["acceptance_rate"] or 0) > 0.5 and four["bytes_per_token"] > 8 else None
        )

    done = until(ran, "drafts stand")
    told = {one["variant"]: one for one in done.json["variants"]}
    assert list(told) == ["alone", "draft_n 2", "draft_n 4", "draft_n 8", "adaptive"]
    for one in told.values():
        assert (one["texts"], one["tokens"], one["identical"]) == (4, 4 * 24, 4)
        assert one["tokens_per_second"]["low"] > 0
    assert told["alone"]["bytes_per_token"] == 0 == told["alone"]["mean_draft_n"]
    suite = command(
        "bench", "run", "--suite", "--num-prompts", 1, "--max-tokens", 8, *options[:2], "--json"
    ).json
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
    """More clients at once than there are places: all get their texts. The verifier's step costs serve for a plan."""
    verifier = mesh.verifier("step_ms=2,max_sessions=3", "--max-queue", 1)
    mesh.drafter("draft_ms=0.3,alpha=0.9")
    options = ("--max-tokens", 24, "--json")

    def ran() -> Done | None:
        done = command("bench", "load", "--sessions", "1,6", "--socket", verifier.socket, *options)
        assert (done.code, done.err) == (0, "")
        return done if (done.json["levels"][1]["acceptance_rate"] or 0) > 0.3 else None

    done = until(ran, "drafts stand")
    one, six = done.json["levels"]
    assert [(level["sessions"], level["texts"], level["tokens"]) for level in (one, six)] == [
        (1, 1, 24),
        (6, 6, 144),
    ]
    assert 0 < six["fairness"] <= 1
    plan = command("plan", "--socket", verifier.socket, "--users", "2", "--tokens", 16, "--json")
    assert plan.code == 0
    assert plan.json["step_ms"] > 1


def test_a_drafter_that_becomes_right_is_asked_again(mesh: Mesh):
    """Drafting is off while drafts are mostly wrong and dear; it comes back, as a few are asked for now and then."""
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
    assert all(
        step["rows"] > step["drafts"] >= step["accepted"] and step["seconds"] > 0 for step in steps
    )


PROMPT = "import json\nfrom pathlib import Path\n\n\nclass Settings:\n    def __init__(self, path"
SMALL = ("--ctx", 512, "--max-sessions", 3)
N = 40


@pytest.fixture(scope="module")
def verifier(shared: Mesh) -> Daemon:
    found = shared.verifier(Path(bundled("target.gguf")), *SMALL, "--reproducible", engine="llama")
    shared.drafter(Path(bundled("drafter.gguf")), *SMALL, engine="llama")
    return found


@pytest.mark.models
@pytest.mark.parametrize("sampling", [(), ("--temperature", 0.8, "--top-k", 40, "--seed", 3)])
def test_reproducible(verifier: Daemon, sampling: tuple[object, ...]):
    """Drafts stand and fall, and no log-probability differs."""
    options = ("--num-prompts", 3, "--max-tokens", N, "--draft-n", "auto,3", "--json")

    def drafts() -> bool:
        done = command("audit", "--socket", verifier.socket, *options, *sampling)
        told = done.json
        assert (done.code, done.err) == (0, "")
        assert (told["noise"], told["divergences"], told["failed"]) == (0.0, [], False)
        assert [way["identical"] for way in told["ways"]] == [3, 3]
        assert told["model"]["reproducible"]
        return 0 < told["ways"][1]["accepted"] < told["ways"][1]["drafted"]

    until(drafts, "they stand and fall")


WAYS: dict[str, tuple[object, ...]] = {
    "temperature": (0, 0.3, 0.8, 1.2),
    "top_k": (0, 5, 40),
    "top_p": (1, 0.95, 0.5),
    "min_p": (0, 0.05),
    "repeat_penalty": (1, 1.2),
    "repeat_last_n": (64, 8, -1),
    "frequency_penalty": (0, 0.5),
    "presence_penalty": (0, -0.3),
    "logit_bias": ([], [[10, 2.5], [300, -3]]),
    "ignore_eos": (False, True),
}


def in_some_way(number: int) -> Json:
    """The prompt, sampled by parameters that are put together at random."""
    rng = random.Random(number)
    return {name: rng.choice(ways) for name, ways in WAYS.items()} | {
        "prompt": PROMPT,
        "seed": number,
    }


@pytest.mark.models
def test_fifty_ways_to_sample(verifier: Daemon):
    """Text and log-probabilities are those of the verifier alone."""
    bodies = [in_some_way(number) | {"max_tokens": 12} for number in range(50)]

    def drafts() -> bool:
        result = audit(verifier.client, bodies, (3,), verifier.stats(), lambda: None)
        [way] = result["ways"]
        assert not result["failed"], lines(result)
        assert (way["errors"], way["texts"]) == (0, 50)
        assert (result["noise"], result["divergences"]) == (0.0, [])
        return int(way["accepted"]) > 5 * 12

    until(drafts, "they stand")


ERRS = """
from specmesh.core.verifier import session
accept, told = session.accept, []
def errs(drafts, choose, **rest):
    if not drafts or told or rest["room"] > 20:
        return accept(drafts, choose, **rest)
    told.append(choose(0))
    return session.Acceptance((told[0] - 1 if told[0] > 33 else 34,), 0, 1, ended=False)
session.accept = errs
"""
"""One token of all texts is another than the target's: the first of a step with drafts, far into a text."""


def test_one_changed_token(mesh: Mesh):
    """It is seen, named with its place, and the exit code says so; nothing is audited where nobody drafts."""
    verifier = mesh.verifier("step_ms=2", program=edited(ERRS))
    words = (
        "audit",
        "--socket",
        verifier.socket,
        "--num-prompts",
        2,
        "--max-tokens",
        60,
        "--draft-n",
        4,
        "--json",
    )
    command(*words).refused(69, "no drafter is attached")
    mesh.drafter("draft_ms=0.2,alpha=0.9")
    done = command(*words)
    told = done.json
    assert (done.code, told["failed"], told["undrafted"]) == (1, True, [])
    assert [(one["verdict"], one["draft_n"]) for one in told["divergences"]] == [("error", 4)]
    assert told["divergences"][0]["position"] >= 40
    assert [(way["identical"], way["near_ties"], way["errors"]) for way in told["ways"]] == [
        (1, 0, 1)
    ]


def folder_of(mesh: Mesh) -> dict[str, str]:
    return cache(mesh.folder) | {"TMPDIR": str(mesh.folder)}


def test_the_demo_drafts_the_same_text(mesh: Mesh):
    def shown() -> Json | None:
        done = command(
            "demo", "--json", "--hardware", "h100-70b", "--max-tokens", 96, env=folder_of(mesh)
        )
        assert done.code == 0, done.err
        return (
            done.json if done.json["accepted"] else None
        )  # on a busy machine drafts may all be late

    found = until(shown, "drafts stand")
    names = "schema_version hardware stretched step_ms text same_text tokens tokens_per_second_alone tokens_per_second"
    names += (
        " speedup bytes_per_token rounds drafted accepted acceptance_rate mean_acceptance_length"
    )
    assert set(found) == set(names.split())
    assert (found["hardware"], found["stretched"], found["same_text"], found["tokens"]) == (
        "h100-70b",
        True,
        True,
        96,
    )
    assert 0 < found["accepted"] <= found["drafted"]
    assert found["step_ms"] >= 18.9
    assert found["text"]


def test_the_demo_without_a_terminal(mesh: Mesh):
    done = command(
        "demo", "class Stack:", "--hardware", "this", "--max-tokens", 16, env=folder_of(mesh)
    )
    assert (done.code, done.out.partition(":")[0]) == (0, "Nothing is stretched"), done.err
    rows = ("tokens_per_second", "speedup", "acceptance_rate", "bytes_per_token", "same_text")
    assert [row for row in rows if row not in done.out] == []
    assert "\x1b" not in done.out


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_the_demo_leaves_no_daemon_behind(mesh: Mesh, ending: signal.Signals):
    """Interrupted while it generates. Its daemons say that they are stretched."""
    running = Running(
        "demo", "--hardware", "spark-7b", "--max-tokens", 900, "--json", env=folder_of(mesh)
    )
    live: list[Any] = []

    def generating() -> bool:
        assert running.process.poll() is None
        live[:] = [
            Client(path).get("/stats") for path in sorted(mesh.folder.glob("specmesh-*/*.sock"))
        ]
        return len(live) == 3 and all(
            "loading" not in one and one["sessions"]["live"] for one in live
        )

    until(generating, "three daemons with a session each")
    running.process.send_signal(ending)
    done = running.end()
    assert (done.code, done.out) == (130, ""), done.err
    names = [one["model"]["name"] for one in live]
    assert names == [f"{model}, stretched to spark-7b" for model in ("target", "target", "drafter")]
    for one in live:
        with pytest.raises(ProcessLookupError):
            os.kill(one["pid"], 0)
    assert list(mesh.folder.glob("specmesh-*")) == []


def test_only_the_demo_is_stretched(mesh: Mesh):
    """No help shows the option, and no other engine takes it."""
    assert "--stretch" not in command("verifier", "--help").out
    mesh.cannot_start("verifier", "--stretch", "h100-8b").refused(78, "--stretch")
