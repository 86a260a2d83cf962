"""A session as a drafter follows it, and what its own client, if it has one, hears of it."""

from collections import deque
from collections.abc import Collection
from dataclasses import asdict, dataclass, field

from specmesh.core.drafter_session import DrafterSession
from specmesh.core.events import Learned
from specmesh.core.report import with_drafting
from specmesh.core.sampling import Sampler
from specmesh.errors import SpecmeshError
from specmesh.requests import Client, Failed, Finished, Request, Started, Tokens
from specmesh.wire.messages import DRAFT_N_AUTO, Done, Open, Round


@dataclass(frozen=True, slots=True)
class Asked:
    """A request of a local client."""

    request: Request
    client: Client

    def order(self, ref: int) -> Open:
        """What asks the verifier for it."""
        request, params, sampling = self.request, self.request.params, self.request.params.sampling
        return Open(
            ref,
            request.prompt or "",
            params.max_tokens,
            sampling.temperature,
            sampling.top_k,
            sampling.top_p,
            sampling.seed,
            DRAFT_N_AUTO if params.draft_n is None else params.draft_n,
            request.rounds,
            list(request.prompt_ids or ()),
            [asdict(message) for message in request.messages],
            list(params.stop),
        )


@dataclass(slots=True)
class Followed:
    """A session this drafter follows. seq is None where the draft model has no room: then nothing is drafted for it.

    The truth it learns is the prompt first, then rounds. Where its client asked for rounds, each waits for its ROUND.
    """

    id: int
    machine: DrafterSession
    sampler: Sampler
    seq: int | None
    n_prompt: int
    end_ids: Collection[int]
    asked: Asked | None
    bytes_sent: int = 0
    bytes_received: int = 0
    _prompt_ids: list[int] = field(default_factory=list)
    _withheld: deque[Learned] = field(default_factory=deque)

    def started(self) -> None:
        """The verifier has opened it."""
        if self.asked is not None:
            self.asked.client.hear(Started(self.id, self.n_prompt))

    def learned(self, news: Learned) -> bool:
        """Take truth in; whether any of it was generated (and not the prompt)."""
        missing = self.n_prompt - len(self._prompt_ids)
        if missing:
            self._prompt_ids += news.ids[:missing]
            news = Learned(news.ids[missing:], news.accepted)
        if not news.ids:
            return False
        if self.asked is not None and self.asked.request.rounds:
            self._withheld.append(news)
        elif self.asked is not None:
            self.asked.client.hear(Tokens(self._shown(news.ids), news.accepted, None))
        return True

    def round(self, message: Round) -> None:
        """The drafts that led to the oldest truth withheld."""
        if self.asked is not None and self._withheld:
            shown = self._shown(self._withheld.popleft().ids)
            self.asked.client.hear(Tokens(shown, min(message.accepted, len(shown)), tuple(message.drafts)))

    def done(self, message: Done) -> None:
        """The verifier has ended it: its report, with this drafter's own time and bytes."""
        if self.asked is None:
            return
        report = with_drafting(message.report, self.machine.drafted, self.machine.draft_seconds)
        report |= {"bytes_sent": self.bytes_sent, "bytes_received": self.bytes_received}
        self.asked.client.hear(Finished(message.finish_reason, tuple(self._prompt_ids), report))

    def cancelled(self) -> None:
        """Its client has left."""
        if self.asked is not None:
            self.asked.client.hear(Finished("cancelled", tuple(self._prompt_ids), {}))

    def failed(self, error: SpecmeshError) -> None:
        """It broke; nothing more is heard of it."""
        if self.asked is not None:
            self.asked.client.hear(Failed(error))
            self.asked = None

    def _shown(self, ids: tuple[int, ...]) -> tuple[int, ...]:
        """Ids without the end id, which only the last round can have."""
        return ids[:-1] if ids and ids[-1] in self.end_ids else ids
