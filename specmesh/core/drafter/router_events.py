"""The events that a `RequestRouter` takes, and the effects that it returns.

What has become of a request at a verifier is an event too: see placement.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from specmesh.core.drafter.placement import PlacementEffect
from specmesh.core.drafter.upstream_events import LinkEffect
from specmesh.core.fair_queue import Tenant
from specmesh.core.requests import EventSink, Reply, Request
from specmesh.errors import SpecmeshError


@dataclass(frozen=True, slots=True)
class TextsWanted:
    """Clients want the texts of an answer. All of them are refused if not all have room."""

    texts: Sequence[tuple[Request, EventSink]]
    tenant: Tenant = ()


@dataclass(frozen=True, slots=True)
class ReaderLeft:
    """A client needs nothing more."""

    client: EventSink


@dataclass(frozen=True, slots=True)
class ReaderPaused:
    """A client reads nothing now, or goes on."""

    client: EventSink
    paused: bool


@dataclass(frozen=True, slots=True)
class DrafterStops:
    """The drafter stops: its clients get this error."""

    error: SpecmeshError


@dataclass(frozen=True, slots=True)
class PlacingDue:
    """Time has passed, or a request came back: those that are due are placed."""


RouterEvent = TextsWanted | ReaderLeft | ReaderPaused | DrafterStops | PlacingDue | PlacementEffect


@dataclass(frozen=True, slots=True)
class AtUpstream:
    """An effect of the upstream with this number, for its link."""

    upstream: int
    effect: LinkEffect


RouterEffect = AtUpstream | Reply
