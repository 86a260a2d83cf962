"""A snapshot as lines for people."""

from specmesh.cli.stats import rows
from specmesh.core import events as ev
from specmesh.core.draft_length.step_costs import StepCosts
from specmesh.daemons.drafter.statistics import DrafterStats
from specmesh.daemons.link.peers import DrafterPeer, Link
from specmesh.daemons.link.transport import Traffic
from specmesh.daemons.verifier.statistics import VerifierStats
from specmesh.engines.base import EngineInfo
from specmesh.wire.messages import Hello, Welcome

INFO = EngineInfo("big.gguf", 4096, 512, 8, trimming="removal", backend="CPU, 1 thread")


def verifier(*, used: bool) -> dict[str, object]:
    """A verifier's real snapshot, fresh or after some rounds with a drafter."""
    stats, costs, traffic = VerifierStats(0.0), StepCosts(), Traffic()
    peers = []
    if used:
        peers = [DrafterPeer(b"d", Hello("mac:7", "llama", "small.gguf", "", 0, 4096), Link(0.0))]
        stats.round(ev.Emit((1, 2, 3), 2, (1, 2, 3, 4), 3), 1.5)
        stats.step(1.0, 1.5, 3)
        costs.record(1, 0.034)
        traffic.sent(100)
    return stats.snapshot(INFO, [], peers, costs, traffic, 2.0)


def test_loading():
    """While loading, the share loaded."""
    assert rows({"role": "verifier", "loading": 0.43}) == [("role", "verifier"), ("loading", "43%")]


def test_fresh_verifier():
    """A verifier that has done nothing has dashes, and says that no drafter is attached."""
    told = dict(rows(verifier(used=False)))
    assert told["model"] == "big.gguf on CPU, 1 thread"
    assert told["drafter"] == "none attached"
    assert told["draft_n"] == "-"
    assert told["bytes/accepted"] == "-"


def test_used_verifier():
    """After some rounds: acceptance, per position, totals, the drafter."""
    told = dict(rows(verifier(used=True)))
    assert told["acceptance"] == "rolling 0.5, total 0.5"
    assert told["per position"] == "1.00 1.00 0.00"
    assert told["generated"] == "3 tokens in 1 rounds"
    assert told["drafts"] == "2 accepted of 4"
    assert told["drafter"].startswith("mac:7 (llama small.gguf), - ms per draft, acceptance -, promises - tokens/s")
    assert told["drafter"].endswith("drafts for 0, stands by for 0")
    assert told["bytes/accepted"] == "50.0"
    assert "34.0" in told["tokens/s"]


def test_drafter_with_and_without_a_verifier():
    """A drafter names its verifier, or says that there is none."""
    stats = DrafterStats(0.0)
    welcome = Welcome("spark:1", "big.gguf", "", "", 5, 4096, [])
    for told, where in ((welcome, "spark:1 (big.gguf)"), (None, "not connected")):
        snapshot = stats.snapshot(INFO, told, None, Link(0.0), [], Traffic(), 3.0)
        assert dict(rows(snapshot))["verifier"] == where
        assert dict(rows(snapshot))["wire"] == "not encrypted"
    refused = dict(rows(snapshot | {"encrypted": True, "refusal": "no way into it"}))
    assert (refused["verifier"], refused["wire"]) == ("no way into it", "encrypted, for allowed keys only")


def test_a_drafter_with_several_verifiers():
    """A line each: where, what it does, how far it is; or why it is not there."""
    load = {"sessions": 3, "queued": 0, "max": 8}
    here = {"name": "spark:1", "model": "big", "address": "a", "load": load, "sessions": {"own": 2}}
    told = [
        here | {"round_trip_ms": {"p50": 0.5}},
        {"name": "old:1", "model": "big", "address": "b", "load": {"max": None}, "round_trip_ms": {"p50": None}},
        {"name": None, "address": "c", "refusal": "no way in"},
        {"name": None, "address": "d", "refusal": None},
    ]
    assert [value for name, value in rows({"role": "drafter", "verifiers": told}) if name == "verifier"] == [
        "spark:1 (big) at a, 3 of 8 sessions, 2 ours, 0.5 ms away",
        "old:1 (big) at b, its load untold, 0 ours, - ms away",
        "no way in at c",
        "not connected at d",
    ]


def test_sessions_that_wait_for_somebody():
    """Those kept for a client that went away, those whose verifier did; none of either is no word."""
    told = dict(rows(VerifierStats(0.0).snapshot(INFO, [], [], StepCosts(), Traffic(), 2.0, kept=2)))
    assert told["sessions"] == "0 live of 8, 0 opened, 2 kept"
    told = dict(rows(DrafterStats(0.0).snapshot(INFO, None, None, Link(0.0), [], Traffic(), 3.0, interrupted=1)))
    assert told["sessions"] == "0 live of 8, 0 opened, 1 interrupted"
    assert dict(rows(verifier(used=False)))["sessions"] == "0 live of 8, 0 opened"


def test_what_sessions_had_of_others():
    """Which found something in memory, how much, and what is kept."""
    reuse = {"hits": 2, "tokens_saved": 70, "kept_sequences": 1, "kept_tokens": 40}
    told = dict(rows(verifier(used=True) | {"reuse": reuse}))
    assert told["prefix cache"] == "2 sessions reused 70 tokens, 40 tokens in 1 sequences are kept"


def test_a_daemon_of_another_version():
    """What it does not tell is a dash; what could steer a terminal is replaced."""
    told = dict(rows({"role": "verifier", "model": {"name": "big\x1b[2J"}, "busy": {"drafters": {"a\x1b": 0.5}}}))
    assert told["model"] == "big?[2J on -"
    assert told["sessions"] == "- live of -, - opened"
    assert told["tokens/s"] == "-, one-token step - ms"
    assert told["busy"] == "a? 50%"
    assert told["drafter"] == "none attached"
    assert dict(rows({"role": "drafter"}))["verifier"] == "not connected"
