"""Drafters of another vocabulary, with the verifier's own text, and drafters of two verifiers."""

from itertools import product

import pytest
from harness.ports import free_port
from harness.tables import cases
from processes import (
    Stream,
    body,
    by_drafters,
    command,
    complete,
    drafted,
    generate,
    runtime,
    until,
    writes,
)

fault = pytest.mark.fault
SMALL = ("--ctx", 256, "--max-sessions", 4)
PROMPTS = ["def fibonacci(n):\n    ", "hello the theory", "Grüße 😀 "]
N = 60
SAMPLED = {"temperature": 0.8, "seed": 3, "top_p": 0.95}
TARGET = {"seed": 1, "words": 58}
"""Every token but the end has text, so a twin can say all that the target says."""


@pytest.fixture(scope="module")
def target(make_gguf):
    return make_gguf("target-words", **TARGET)


@pytest.fixture(scope="module")
def verifier(target, shared):
    return shared.verifier(target, *SMALL, "--reproducible", engine="llama")


def check_texts(verifier, daemons):
    """Check that greedy and sampled texts are those without drafts, at every socket.

    Return how many drafts of greedy texts there were, and how many stood. There are as many texts
    as are needed: a busy machine's drafter is late for most.
    """
    drafts, accepted = 0, 0

    def enough():
        nonlocal drafts, accepted
        for prompt, sampling in product(PROMPTS, ({}, SAMPLED)):
            plain = complete(verifier, body(prompt, N, draft_n=0, **sampling))
            for daemon in daemons:
                stream = complete(daemon, body(prompt, N, draft_n=3, **sampling))
                assert (stream.ids, stream.text) == (plain.ids, plain.text)
                if not sampling:
                    tried, right = by_drafters(stream.result["report"])
                    drafts += tried
                    accepted += right
        return drafts > N

    until(enough, "drafts are verified")
    return drafts, accepted


@pytest.mark.models
def test_permuted_twin(verifier, make_gguf, beside):
    """The target's weights under other ids are translated, and accepted as often as its own."""
    permuted = make_gguf("permuted", **TARGET, permute=5)
    twin = beside.drafter(permuted, *SMALL, engine="llama")
    drafted, accepted = check_texts(verifier, [verifier, twin])
    assert accepted / drafted > 0.95
    assert "under other ids" in twin.event("vocabulary_permuted")["meaning"]
    assert twin.verifier()["vocabulary"] == {"verdict": "permuted", "overlap": 1.0}


@pytest.mark.models
@cases("whose, permute", '["drafter", 0] ["verifier", 6]')
def test_foreign_tokens(make_gguf, target, mesh, permute, whose):
    """One in a hundred tokens is foreign; the drafter drafts the rest, and logs the share."""
    foreign = make_gguf(f"foreign-{permute}", **TARGET, foreign=3, permute=permute)
    models = (target, foreign) if whose == "drafter" else (foreign, target)
    verifier = mesh.verifier(models[0], *SMALL, "--reproducible", engine="llama")
    daemon = mesh.drafter(models[1], *SMALL, engine="llama")
    drafted, accepted = check_texts(verifier, [verifier, daemon])
    # random weights: after a foreign token in the text their drafts are any
    assert accepted / drafted > 0.3
    event = daemon.event("vocabulary_partial")
    assert event["level"] == "warning"
    assert "99.05 % of the tokens have a counterpart" in event["meaning"]


@pytest.mark.models
@fault("E7.78")
def test_wholly_different(verifier, make_gguf, beside):
    """Nothing is drafted, with the reason in both daemons' stats; clients of both are served."""
    stranger = make_gguf("stranger", words=58, foreign=58)
    daemon = beside.drafter(stranger, *SMALL, engine="llama")
    [row] = rows(daemon)
    assert row["vocabulary"]["verdict"] == "different"
    why = row["no_drafts"]
    words = ("stranger", "target-words", "81.81 %", "90 % are needed", "same family")
    assert [word for word in words if word not in why] == []
    assert daemon.event("vocabulary_different")["level"] == "error"
    until(lambda: verifier.stats()["peers"][0]["no_drafts"] == "vocabulary", "the verifier knows")
    shown = command("ps", json=True, env=runtime(beside.folder)).json["daemons"]
    reasons = {row["role"]: row["no_drafts"] for row in shown if row["state"] == "running"}
    assert reasons == {"verifier": "vocabulary", "drafter": why}
    for asked, named in ((verifier, "vocabulary"), (daemon, "same family")):
        report = generate(asked, PROMPTS[0], max_tokens=20, draft_n=4, json=True).json
        assert by_drafters(report) == (0, 0)
        assert report["no_drafts"] == "vocabulary"
        assert report["generated_tokens"] == 20
        assert named in command("stats", socket=asked.socket).out


@pytest.mark.models
@fault("E7.78")
def test_a_verifier_changes_its_model_and_back(make_gguf, target, mesh):
    """The drafter's process stays; it drafts again once the first model is back, and fetches no
    vocabulary twice."""
    stranger = make_gguf("stranger", words=58, foreign=58)
    drafter = mesh.drafter(target, *SMALL, engine="llama", ready=False)
    turns = [(target, True), (stranger, False)] * 2
    for number, (model, suits) in enumerate(turns):
        verifier = mesh.verifier(model, *SMALL, engine="llama", name=f"{number}")
        mesh.attached(drafter)
        request = body(PROMPTS[0], N, draft_n=3)
        if suits:
            drafted(drafter, request)
            assert rows(drafter)[0]["no_drafts"] is None
        else:
            until(lambda v=verifier: v.stats()["peers"][0]["no_drafts"], "the verifier knows")
            assert complete(drafter, request).result["report"]["no_drafts"] == "vocabulary"
        verifier.stop()
    assert len(drafter.events("vocabulary_fetched")) == 1
    assert drafter.process.poll() is None


@fault("E7.80")
def test_a_text_beyond_the_drafters_context(mesh):
    """Whole, and by its own words without drafts: in its report, in stats and in both logs."""
    verifier = mesh.verifier("step_ms=2,n_ctx=4096")
    drafter = mesh.drafter("draft_ms=0.5,n_ctx=256", "--window", "full")
    for daemon in (verifier, drafter):
        report = writes(daemon, "z" * 300, 30, draft_n=4).result["report"]
        assert by_drafters(report) == (0, 0)
        assert report["no_drafts"] == "context"
    for event in verifier.events("session_finished"):
        assert event["no_drafts"] == "context"
    with Stream(verifier, body("z" * 300, 3000, draft_n=4)) as stream:
        stream.read(10)
        stats = verifier.stats()
        assert stats["no_drafts"] == stats["sessions"]["rows"][0]["no_drafts"] == "context"
        [logged, *_] = until(lambda: verifier.events("no_drafts"), "it is logged while it runs")
    assert logged["why"] == "context"
    assert "--ctx 4096" in verifier.event("drafter_context_is_smaller")["meaning"]
    assert "--ctx 4096" in drafter.event("context_is_smaller")["meaning"]


def test_a_text_of_any_length_is_drafted(mesh):
    """By a window of it; the next ones take over while it grows, and no round waits for them."""
    mesh.verifier("step_ms=4,n_ctx=8192,reach=8")
    drafter = mesh.drafter("draft_ms=0.5,n_ctx=320,reach=8,alpha=0.9")
    told = generate(drafter, "z" * 3000, max_tokens=600, draft_n=4, json=True).json
    assert told["no_drafts"] is None
    assert told["accepted"] > 0.6 * told["drafted"] > 200
    window = drafter.stats()["window"]
    assert window["takeovers"] > 2
    assert window["held_up"] == 0
    assert drafter.stats()["totals"]["read"] < 3000


PROMPT = "the mesh goes on"


def rows(drafter):
    return drafter.stats()["verifiers"]


def serves_a_drafter(verifier):
    return any(event.get("remote") for event in verifier.events("session_opened"))


def test_one_of_two_is_killed_in_the_middle(mesh):
    """The text goes on at the other, and is the same, and new ones go there, too."""
    addresses = mesh.address, f"tcp://127.0.0.1:{free_port()}"
    verifiers = [mesh.verifier("step_ms=8", "--bind", one, name=one[-5:]) for one in addresses]
    drafter = mesh.drafter("", "--connect", addresses[1])
    until(lambda: all(one["name"] for one in rows(drafter)), "the drafter has both")
    for verifier in verifiers:
        drafted(verifier, body(PROMPT, 100)).checked()
    with Stream(drafter, body(PROMPT, 800)) as stream:
        stream.read(5)
        [has] = [verifier for verifier in verifiers if serves_a_drafter(verifier)]
        has.kill()
        stream.read().checked()
    assert drafter.stats()["sessions"]["resumed"] == 1
    assert [one["name"] is None for one in rows(drafter)] == [one is has for one in verifiers]
    writes(drafter, PROMPT, 50)


@pytest.mark.models
def test_a_model_is_chosen(make_gguf, mesh):
    """`generate --model` chooses a verifier by its model; by default it is the first one."""
    addresses = mesh.address, f"tcp://127.0.0.1:{free_port()}"
    for seed, address in enumerate(addresses, 1):
        file = make_gguf(f"seeded-{seed}", seed=seed, words=58)
        mesh.verifier(file, *SMALL, "--bind", address, engine="llama", name=f"verifier{seed}")
    drafter = mesh.drafter("", "--connect", addresses[1], engine="ngram")
    until(lambda: all(one["model"] for one in rows(drafter)), "the drafter has both")

    def said(daemon, **options):
        return generate(daemon, PROMPT, max_tokens=40, **options).out

    first, second = map(said, mesh.daemons[:2])
    assert first != second
    assert said(drafter) == said(drafter, model="seeded-1") == first
    assert said(drafter, model="seeded-2") == second
    unknown = generate(drafter, PROMPT, model="nobody's")
    unknown.refused(2, "no model nobody's is served here: see `specmesh ps`")
    assert generate(drafter, resume="cmpl-" + "0" * 32, model="seeded-1").code == 2
