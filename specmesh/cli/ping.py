"""`specmesh ping`: a line for each answer as it comes, then a summary per peer."""

import json
import socket
from dataclasses import dataclass, field
from statistics import median

import click

from specmesh.client import Client, Json
from specmesh.errors import DaemonUnreachable
from specmesh.snapshot import printable
from specmesh.ways import Way, endpoint, way

SCHEMA_VERSION = 1


@dataclass(slots=True)
class Tally:
    """What became of the PINGs to one peer: milliseconds until each answer, None for a lost one."""

    name: str
    address: str
    way: Way
    times_ms: list[float | None] = field(default_factory=list)

    @property
    def answered(self) -> list[float]:
        """The times of those that were answered."""
        return [time for time in self.times_ms if time is not None]

    @property
    def loss(self) -> float:
        """The share of lost ones."""
        return 1 - len(self.answered) / len(self.times_ms)

    def line(self, time_ms: float | None) -> str:
        """One PING's result for people."""
        said = "lost" if time_ms is None else f"time={time_ms:.2f} ms"
        return f"from {self.name} via {self.address} ({self.way}): {said}"

    def summary(self) -> str:
        """All of them for people."""
        head = f"{self.name}: {len(self.times_ms)} sent, {len(self.answered)} answered, {self.loss:.0%} lost"
        if not self.answered:
            return head
        low, middle, high = min(self.answered), median(self.answered), max(self.answered)
        return f"{head}; min/median/max = {low:.2f}/{middle:.2f}/{high:.2f} ms"

    def as_json(self) -> Json:
        """All of them for programs."""
        times = self.answered
        return {
            "name": self.name,
            "address": self.address,
            "way": str(self.way),
            "sent": len(self.times_ms),
            "answered": len(times),
            "loss": round(self.loss, 4),
            "min_ms": min(times, default=None),
            "median_ms": round(median(times), 4) if times else None,
            "max_ms": max(times, default=None),
            "times_ms": list(self.times_ms),
        }


class Tallies:
    """All peers' of one run, in the order in which they were first heard of."""

    def __init__(self) -> None:
        self._peers: dict[tuple[str, str], Tally] = {}

    def add(self, event: Json) -> str:
        """Count an event of the daemon's answer; its line."""
        name, address = printable(str(event["peer"])), printable(str(event["address"]))
        if (name, address) not in self._peers:
            self._peers[name, address] = Tally(name, address, way(_resolved(endpoint(address)[0])))
        tally, time_ms = self._peers[name, address], event["time_ms"]
        tally.times_ms.append(float(time_ms) if isinstance(time_ms, int | float) else None)
        return tally.line(tally.times_ms[-1])

    def summaries(self) -> list[str]:
        """A line per peer."""
        return [tally.summary() for tally in self._peers.values()]

    def as_json(self) -> Json:
        """What --json prints."""
        return {"schema_version": SCHEMA_VERSION, "peers": [tally.as_json() for tally in self._peers.values()]}

    @property
    def answered(self) -> bool:
        """Whether any peer answered at all."""
        return any(tally.answered for tally in self._peers.values())


def run(client: Client, count: int, interval: float, *, as_json: bool) -> None:
    """Ask the daemon to ping its peers and print what comes; raises DaemonUnreachable where nobody answers.

    interval: seconds. Ctrl-C ends it with the summary of what came.
    """
    tallies = Tallies()
    try:
        for event in client.stream("/ping", {"count": count, "interval_s": interval}):
            line = tallies.add(event)
            if not as_json:
                click.echo(line)
    finally:
        _finish(tallies, as_json=as_json)
    if not tallies.answered:
        raise DaemonUnreachable("no peer answered: is it running, and reachable from here? `specmesh doctor` looks")


def _finish(tallies: Tallies, *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(tallies.as_json(), indent=2))
    elif tallies.summaries():
        click.echo("\n" + "\n".join(tallies.summaries()))


def _resolved(host: str) -> str:
    """The first IP address of a host; the host itself where none is found."""
    try:
        return str(socket.getaddrinfo(host, None)[0][4][0])
    except OSError:
        return host
