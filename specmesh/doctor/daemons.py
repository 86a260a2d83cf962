"""Running daemons: which, of what version, and whether they have each other."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from specmesh import __version__, ps
from specmesh.doctor.check import Check, fail, ok, warn
from specmesh.stats_lines import printable

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
    stats = one.stats or {}
    version = str(stats["version"]) if "version" in stats else None
    backend, vocabulary = _text(stats, "model", "backend"), _text(stats, "vocabulary", "verdict")
    peers = _peers(stats)
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
        told += f" on {printable(facts.backend)}"
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


def _text(stats: dict[str, object], part: str, field: str) -> str | None:
    """A field of a part of a snapshot; None where it is not there."""
    told = stats.get(part)
    value = told.get(field) if isinstance(told, dict) else None
    return value if isinstance(value, str) else None


def _peers(stats: dict[str, object]) -> int | None:
    """How many peers a snapshot tells of; None while it loads."""
    if "loading" in stats or not stats:
        return None
    peers = stats.get("peers")
    return len(peers) if isinstance(peers, list) else int(stats.get("verifier") is not None)
