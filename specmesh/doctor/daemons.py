"""Running daemons: which, of what version, and whether they have each other."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from specmesh import __version__
from specmesh.cli import status as ps
from specmesh.doctor.check import Check, fail, ok, warn
from specmesh.snapshot import Fields, printable

GROUP = "daemons"


@dataclass(frozen=True, slots=True)
class DaemonFacts:
    """A daemon that takes connections.

    state: as `specmesh ps` says it. peers: how many it has; None while unknown. backend: where its model runs.
    vocabulary: how a drafter's fits its verifier's.
    """

    role: str
    socket: Path
    state: str
    pid: int | None = None
    model: str | None = None
    version: str | None = None
    ours: str = ""
    peers: int | None = None
    backend: str | None = None
    vocabulary: str | None = None


def checks(found: Iterable[ps.Found]) -> list[Check]:
    """A check per daemon."""
    told = [judge(facts_of(one)) for one in found]
    start = "specmesh verifier --model FILE  # or: specmesh drafter --connect tcp://HOST:7071"
    return told or [warn(GROUP, "running", "none", start)]


def facts_of(one: ps.Found) -> DaemonFacts:
    """What a daemon's snapshot says of it."""
    stats = one.fields
    version, peers = stats.text("version") or None, _peers(stats)
    backend, vocabulary = stats.text("model", "backend") or None, stats.text("vocabulary", "verdict") or None
    return DaemonFacts(
        one.role, one.socket, one.state, one.pid, one.model, version, __version__, peers, backend, vocabulary
    )


def judge(facts: DaemonFacts) -> Check:
    """One daemon."""
    name = facts.role
    pid = f"pid {facts.pid}" if facts.pid is not None else f"at {facts.socket}"
    if facts.state == "does not answer":
        told = f"takes connections at {facts.socket} and does not answer"
        return fail(GROUP, name, told, f"kill $(cat '{facts.socket}.lock')  # and see its log")
    if facts.state == "starting":
        return ok(GROUP, name, f"at {facts.socket}, starting")
    told = f"{pid}, {facts.state if facts.model is None else printable(facts.model)}"
    if facts.backend is not None:
        told += f" on {facts.backend}"
    if facts.version != facts.ours:
        told += f", of version {facts.version or 'unknown'}; installed is {facts.ours}"
        fix = f"specmesh service restart {facts.role}  # or stop and start it by hand"
        return warn(GROUP, name, told, fix)
    if facts.peers == 0 and facts.role == "drafter":
        return warn(GROUP, name, f"{told}, has no verifier", "specmesh stats  # and see below: network")
    if facts.peers == 0:
        return warn(GROUP, name, f"{told}, has no drafter", "specmesh drafter --connect tcp://HOST:7071")
    if facts.vocabulary == "partial":
        fix = "specmesh doctor --model SMALL --against BIG  # find a draft model of the same family"
        return warn(GROUP, name, f"{told}, whose vocabulary fits its verifier's in part", fix)
    return ok(GROUP, name, told)


def _peers(stats: Fields) -> int | None:
    """How many peers a snapshot tells of; None while it loads."""
    if stats.number("loading") is not None or not stats.raw:
        return None
    return len(stats.parts("peers")) if "peers" in stats.raw else int(bool(stats.part("verifier").raw))
