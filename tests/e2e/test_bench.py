"""`specmesh bench`, `plan`, `audit` against running daemons, and `demo`, which ends its daemons."""

import json
import os
import signal
from pathlib import Path
from urllib.request import urlopen

import pytest
from meshes import running
from processes import PATIENCE, Running, body, cache, command, complete, edited, until
from terminals import OnTerminal

from specmesh.bench.step_times import read_costs
from specmesh.client import Client
from specmesh.paths import bundled


def bench(verifier, kind, **options):
    done = command("bench", kind, socket=verifier.socket, json=True, **options)
    assert (done.code, done.err) == (0, "")
    return done.json


@pytest.fixture(scope="module")
def drafted_for():
    """A verifier with a drafter, for tests that leave them as they are."""
    with running() as mesh:
        verifier = mesh.verifier("step_ms=3")
        mesh.drafter("draft_ms=0.2,alpha=0.9")
        yield verifier


def test_bench_run(drafted_for):
    """All variants have the same texts."""
    options = {"iterations": 2, "num_prompts": 2, "max_tokens": 24, "draft_n": "4"}

    def ran():
        """Return the variants of a run whose drafter had a processor."""
        variants = bench(drafted_for, "run", **options)["variants"]
        return variants if (variants[-1]["acceptance_rate"] or 0) > 0.5 else None

    variants = until(ran, "drafts stand")
    names = [variant["variant"] for variant in variants]
    assert names == ["alone", "remote", "suffix", "all sources", "draft_n 4"]
    for variant in variants:
        assert (variant["texts"], variant["tokens"], variant["identical"]) == (4, 4 * 24, 4)
        assert variant["tokens_per_second"]["low"] > 0
    alone, remote, suffix, _, four = variants
    assert alone["bytes_per_token"] == suffix["bytes_per_token"] == alone["mean_draft_n"] == 0
    assert remote["by_source"]["remote"]["drafted"] == remote["drafted"]
    assert suffix["by_source"]["remote"]["drafted"] == 0
    assert four["bytes_per_token"] > 8


def run_alone(verifier):
    """Return the variants of a run without a drafter, by name; a line says that there is none."""
    options = {"num_prompts": 1, "iterations": 1, "max_tokens": 8, "json": True}
    done = command("bench", "run", socket=verifier.socket, **options)
    assert done.code == 0
    assert done.err == "No drafter is attached: the verifier's own sources draft.\n"
    return {variant["variant"]: variant for variant in done.json["variants"]}


def test_bench_run_without_a_drafter(mesh):
    """A verifier has a source of its own, which is compared."""
    variants = run_alone(mesh.verifier("step_ms=1"))
    assert [*variants] == ["alone", "all sources"]
    for variant in variants.values():
        assert (variant["tokens"], variant["identical"]) == (8, 1)
        assert "remote" not in variant["by_source"]


def test_bench_suite(drafted_for):
    suite = bench(drafted_for, "run", suite=True, num_prompts=1, max_tokens=8)
    assert len(suite["categories"]) == 7 + 1
    sources = suite["categories"][-1]["sources"]
    found = {source["variant"]: source["identical"] for source in sources}
    assert found == {"alone": 7, "remote": 7, "suffix": 7, "all sources": 7}


def test_bench_run_names_a_draft_model_beside_the_target(mesh):
    variants = run_alone(mesh.verifier("step_ms=5", "--draft-model", "draft_ms=0.1,alpha=0.9"))
    assert [*variants] == ["alone", "suffix", "local", "all sources"]
    assert "local" not in variants["suffix"]["by_source"] or not variants["suffix"]["drafted"]
    local = variants["local"]
    assert local["by_source"].get("local", {"drafted": 0})["drafted"] == local["drafted"]


def test_bench_steps(drafted_for, tmp_path):
    complete(drafted_for, body("a text", 8))
    steps = bench(drafted_for, "steps")
    file = tmp_path / "steps.json"
    file.write_text(json.dumps(steps))
    assert read_costs(file).seconds(1) == pytest.approx(steps["steps_ms"]["0"]["1"] / 1e3)


def test_load_and_plan(mesh):
    """More clients than there are places get their texts; the step costs serve for a plan."""
    verifier = mesh.verifier("step_ms=10,max_sessions=3", "--max-queue", 1)
    mesh.drafter("draft_ms=0.3,alpha=0.9")

    def ran():
        levels = bench(verifier, "load", sessions="1,6", max_tokens=24)["levels"]
        return levels if (levels[1]["acceptance_rate"] or 0) > 0.3 else None

    levels = until(ran, "drafts stand")
    for level, count in zip(levels, (1, 6), strict=True):
        assert (level["sessions"], level["texts"], level["tokens"]) == (count, count, 24 * count)
    assert 0 < levels[1]["fairness"] <= 1
    plan = command("plan", socket=verifier.socket, users="2", tokens=16, json=True)
    assert plan.code == 0
    assert plan.json["step_ms"] > 5


def test_each_step_is_a_debug_event(mesh):
    """It has rows, drafts, accepted, draft_n and seconds, and never the text."""
    verifier = mesh.verifier("step_ms=5", "--log-level", "debug")
    mesh.drafter("draft_ms=1,alpha=0.8")
    report = complete(verifier, body("a text", 100)).result["report"]
    verifier.stop()
    steps = verifier.events("step")
    assert sum(step["accepted"] for step in steps) == report["accepted"]
    for step in steps:
        assert step["rows"] > step["drafts"] >= step["accepted"]
        assert step["seconds"] > 0


PROMPT = "import json\nfrom pathlib import Path\n\n\nclass Settings:\n    def __init__(self, path"
SMALL = ("--ctx", 512, "--max-sessions", 3)
N = 40


@pytest.fixture(scope="module")
def verifier(shared):
    found = shared.verifier(Path(bundled("target.gguf")), *SMALL, "--reproducible", engine="llama")
    shared.drafter(Path(bundled("drafter.gguf")), *SMALL, engine="llama")
    return found


@pytest.mark.models
@pytest.mark.parametrize(
    "sampling", [{}, {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "seed": 3}], ids=str
)
def test_reproducible(verifier, sampling):
    """Drafts stand and fall, and no log-probability differs."""
    options = sampling | {"num_prompts": 3, "max_tokens": N, "draft_n": "auto,3"}

    def drafts():
        done = command("audit", socket=verifier.socket, json=True, **options)
        found = done.json
        assert (done.code, done.err) == (0, "")
        assert (found["noise"], found["divergences"], found["failed"]) == (0.0, [], False)
        assert found["model"]["reproducible"]
        adaptive, fixed = found["ways"]
        assert (adaptive["identical"], fixed["identical"]) == (3, 3)
        return 0 < fixed["accepted"] < fixed["drafted"]

    until(drafts, "they stand and fall")


ERRS = """
from specmesh.core.verifier import session
accept, changed = session.accept, []
def errs(drafts, choose, **rest):
    if not drafts or changed or rest["room"] > 20:
        return accept(drafts, choose, **rest)
    changed.append(choose(0))
    return session.Acceptance((changed[0] - 1 if changed[0] > 33 else 34,), 0, 1, ended=False)
session.accept = errs
"""
"""Changes one token of all texts, the first of a step with drafts, far into a text."""


def test_one_changed_token(mesh):
    """It is found and named with its place, and the exit code reports it."""
    verifier = mesh.verifier("step_ms=2", program=edited(ERRS))
    options = {"socket": verifier.socket, "num_prompts": 2, "max_tokens": 60, "draft_n": 4}
    mesh.drafter("draft_ms=0.2,alpha=0.9")
    done = command("audit", **options, json=True)
    found = done.json
    assert (done.code, found["failed"], found["undrafted"]) == (1, True, [])
    [divergence] = found["divergences"]
    assert (divergence["verdict"], divergence["draft_n"]) == ("error", 4)
    assert divergence["position"] >= 40
    [way] = found["ways"]
    assert (way["identical"], way["near_ties"], way["errors"]) == (1, 0, 1)


@pytest.fixture
def home(mesh):
    """Variables of a command that keeps its files in the mesh's folder."""
    return cache(mesh.folder) | {"TMPDIR": str(mesh.folder)}


FIELDS = """schema_version hardware source stretched step_ms text same_text tokens
tokens_per_second_alone tokens_per_second speedup bytes_per_token rounds drafted
accepted acceptance_rate by_source mean_acceptance_length"""


def test_the_demo_drafts_the_same_text(home):
    def shown():
        done = command("demo", json=True, hardware="h100-70b", max_tokens=96, env=home)
        assert done.code == 0, done.err
        return done.json if done.json["accepted"] else None  # on a busy machine all may be late

    found = until(shown, "drafts stand")
    assert set(found) == set(FIELDS.split())
    assert (found["hardware"], found["stretched"]) == ("h100-70b", True)
    assert found["source"] == "remote"
    assert (found["same_text"], found["tokens"]) == (True, 96)
    assert found["step_ms"] >= 18.9


@pytest.mark.parametrize("source", ["local", "suffix", "prediction", "none"])
def test_the_demo_drafts_without_a_drafter(home, source):
    """Drafts are those of the named source, and of text that repeats itself."""
    done = command("demo", json=True, source=source, max_tokens=64, env=home)
    assert done.code == 0, done.err
    assert (done.json["source"], done.json["same_text"]) == (source, True)
    named = {source} - {"none"}
    assert named <= set(done.json["by_source"]) <= named | {"suffix"}
    assert (source == "none") == (done.json["drafted"] == 0)


def test_the_demo_without_a_terminal(home):
    done = command("demo", "class Stack:", hardware="this", max_tokens=16, env=home)
    assert done.code == 0, done.err
    assert done.out.startswith("Nothing is stretched:")
    for row in ("tokens_per_second", "speedup", "acceptance_rate", "bytes_per_token", "same_text"):
        assert row in done.out
    assert "\x1b" not in done.out


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_the_demo_leaves_no_daemon_behind(mesh, home, ending):
    """It is interrupted while it generates; its daemons' names show that they are stretched."""
    words = ("--hardware", "spark-7b", "--max-tokens", 900)
    running = Running("demo", "--json", *words, env=home)
    sockets = "specmesh-*/*.sock"

    def generating():
        """Return the statistics of those with a session."""
        assert running.process.poll() is None
        found = [Client(path).get("/stats") for path in mesh.folder.glob(sockets)]
        return [stats for stats in found if stats.get("sessions", {}).get("live")]

    until(lambda: len(generating()) == 3, "three daemons with a session each")
    daemons = generating()
    running.process.send_signal(ending)
    done = running.end()
    assert (done.code, done.out) == (130, ""), done.err
    for stats in daemons:
        assert stats["model"]["name"].endswith("stretched to spark-7b")
        with pytest.raises(ProcessLookupError):
            os.kill(stats["pid"], 0)
    assert list(mesh.folder.glob("specmesh-*")) == []


def test_the_demo_keeps_its_pair_with_a_page(mesh, home):
    """It can be chatted with until the demo is interrupted, which is its usual end."""
    words = ("--page", "--hardware", "this", "--max-tokens", 4)
    running = Running("demo", *words, env=home)
    running.line("Chat with the pair, in a browser")
    origin = running.line("The pair runs on").split()[4].removesuffix("/")
    with Client(f"{origin}/v1") as pair:
        answer = pair.chat([{"role": "user", "content": "class A:"}], max_tokens=4)
        pid = pair.stats()["pid"]
    with urlopen(f"{origin}/", timeout=PATIENCE) as page:  # noqa: S310  (our own)
        assert b"<title>specmesh</title>" in page.read()
    running.process.send_signal(signal.SIGINT)
    assert running.end().code == 0
    assert len(answer.token_ids) == 4
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert list(mesh.folder.glob("specmesh-*")) == []


def test_the_demo_ends_with_its_pair(mesh, home):
    """Its daemon that ends is named, also once the texts have been compared."""
    words = ("--page", "--hardware", "this", "--max-tokens", 4)
    running = Running("demo", *words, env=home)
    running.line("The pair runs on")
    [drafter] = mesh.folder.glob("specmesh-*/drafter.sock")
    with Client(drafter) as client:
        os.kill(client.stats()["pid"], signal.SIGKILL)
    running.end().refused(1, "a daemon of the demo does not run")


@pytest.mark.parametrize("look", [{}, {"NO_COLOR": "1"}], ids=str)
def test_the_demo_on_a_terminal_keeps_its_pair(home, look):
    """It draws nothing where the user asks for plain lines."""
    words = ("--hardware", "this", "--max-tokens", 4)
    with OnTerminal("demo", *words, env=home | look) as running:
        running.until("The pair runs on")
        running.process.send_signal(signal.SIGTERM)
        assert running.end() == 0
    assert ("\x1b" in running.seen, "alone: 4 tokens" in running.seen) == (not look, not look)


def test_only_the_demo_is_stretched(mesh):
    """No other engine takes the option."""
    mesh.cannot_start("verifier", "--stretch", "h100-8b").refused(78, "--stretch")
