"""A snapshot as lines for people."""

from specmesh.cli.stats import rows
from specmesh.core import events as ev
from specmesh.core.draft_length.step_costs import StepCosts
from specmesh.daemons.link.peers import DrafterPeer, Link
from specmesh.daemons.link.transport import Traffic
from specmesh.daemons.verifier.statistics import VerifierStats
from specmesh.engines.base import EngineInfo
from specmesh.wire.messages import Hello

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


def test_a_daemon_of_another_version():
    """What it does not tell is a dash; what could steer a terminal is replaced."""
    told = dict(rows({"role": "verifier", "model": {"name": "big\x1b[2J"}, "busy": {"drafters": {"a\x1b": 0.5}}}))
    assert told["model"] == "big?[2J on -"
    assert told["sessions"] == "- live of -, - opened"
    assert told["tokens/s"] == "-, one-token step - ms"
    assert told["busy"] == "a? 50%"
    assert told["drafter"] == "none attached"
    assert dict(rows({"role": "drafter"}))["verifier"] == "not connected"
