"""A request at a verifier: what the verifier's `Upstream` knows of it, and gives back.

The router keeps each request (pending_request.py). An upstream has a copy of what a session needs,
and names the request by its number. So whatever happens to it there goes back to the router as an
effect, and the router alone decides what follows.
"""

from dataclasses import dataclass, replace

from specmesh.core.fair_queue import Tenant
from specmesh.core.requests import EventSink, Request
from specmesh.core.sampling.constraint import GrammarKind
from specmesh.core.session_params import SessionParams
from specmesh.errors import SpecmeshError
from specmesh.wire import messages as m


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """A request that a verifier is asked for.

    number: the router's, of the request. tenant: the one that it counts for.
    started: the client has been sent Started.
    returns: the text began at another verifier.
    """

    number: int
    request: Request
    client: EventSink
    tenant: Tenant = ()
    started: bool = False
    returns: bool = False

    @property
    def resumes(self) -> bool:
        """Return True if it goes on with a text that has begun, here or elsewhere."""
        return self.started or self.request.named_only or bool(self.request.generated)

    def is_wrong_prompt(self, n_prompt: int) -> bool:
        """Return True if a verifier counts ids of a text to resume as its prompt."""
        return bool(self.request.generated) and n_prompt != len(self.request.prompt_ids or ())

    def opened(self, params: SessionParams) -> "Placement":
        """Return it with the parameters of the session that the verifier has opened.

        A request that names a text has no others. Any other takes only those from the verifier that
        follow from its template: its thoughts and its calls of tools. One that knows no sources
        of tokens has none in them.
        """
        request = self.request
        if not request.named_only:
            own = request.params
            grammar = own.grammar
            if grammar is not None and grammar.kind is GrammarKind.TOOLS:
                grammar = params.grammar
            params = replace(
                own,
                thinking=params.thinking,
                merged=params.merged,
                grammar=grammar,
                sources=own.sources and params.sources,
            )
        return replace(self, request=replace(request, params=params, named_only=False))

    def resumed_after(self, prompt_ids: tuple[int, ...], sent: tuple[int, ...]) -> "Placement":
        """Return it with a request that goes on after the ids which the client was sent."""
        request = self.request
        changed = replace(
            request,
            prompt_ids=prompt_ids,
            messages=(),
            generated=max(sent, request.generated, key=len),
            known=max(request.known, len(sent)),
        )
        return replace(self, request=changed)


# --- what an upstream gives back of a request


@dataclass(frozen=True, slots=True)
class PlacementOpened:
    """The verifier has a session for a request.

    request: with the session's parameters. verifier: its WELCOME.
    """

    number: int
    upstream: int
    request: Request
    verifier: m.Welcome | None


@dataclass(frozen=True, slots=True)
class PlacementRefused:
    """The verifier does not take a request."""

    number: int
    upstream: int
    error: SpecmeshError


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementLost:
    """The verifier has a request no more, which is to be placed anew.

    placement: as it is now; a text that has begun goes on after the ids that its client has.
    tried: the verifier itself is not to be asked next.
    """

    upstream: int
    placement: Placement
    error: SpecmeshError
    tried: bool = False


@dataclass(frozen=True, slots=True)
class PlacementEnded:
    """The client has its end or an error, or needs nothing more."""

    number: int


PlacementEffect = PlacementOpened | PlacementRefused | PlacementLost | PlacementEnded
