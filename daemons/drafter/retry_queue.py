"""Texts of a drafter's clients whose verifier went away: they wait for one, and may be asked for after that too."""

from array import array
from collections.abc import Callable
from dataclasses import dataclass, replace

from specmesh.api.requests import EventSink, Request
from specmesh.daemons.drafter.draft_session import PendingRequest
from specmesh.wire.messages import Welcome

RETRY = 0.5
"""Seconds until verifiers that are there, but did not take a text, are asked again."""

MOST = 64
"""Most texts that are remembered after they were given up."""


@dataclass(frozen=True, slots=True)
class _Past:
    """A text that was given up, small, as it may be kept for long: its request without ids, and all ids in int32."""

    home: str
    began: Welcome | None
    request: Request
    ids: "array[int]"
    n_prompt: int

    @classmethod
    def of(cls, asked: PendingRequest, began: Welcome | None) -> "_Past":
        prompt, generated = asked.request.prompt_ids or (), asked.request.generated
        request = replace(asked.request, prompt_ids=None, generated=())
        return cls(asked.home, began, request, array("i", (*prompt, *generated)), len(prompt))

    def whole(self) -> Request:
        ids = tuple(self.ids)
        return replace(self.request, prompt_ids=ids[: self.n_prompt], generated=ids[self.n_prompt :])


class RetryQueue:
    """Requests that wait for a verifier, and those given up, by name."""

    def __init__(self) -> None:
        self._waiting: list[tuple[float, PendingRequest]] = []
        self._given_up: dict[str, _Past] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, asked: PendingRequest, now: float) -> None:
        """Wait for a verifier, as long as its client is ready to; for one that waited before, after a pause."""
        again = asked.until is not None
        until = asked.until if asked.until is not None else now + asked.request.reconnect_timeout
        self._waiting.append((now + RETRY if again else now, replace(asked, until=until)))

    def next_due(self, ready: Callable[[PendingRequest], object]) -> float | None:
        """When one of them is to be asked for again; only of those that are `ready`, a verifier being there."""
        return min((due for due, asked in self._waiting if ready(asked)), default=None)

    def due(self, now: float, ready: Callable[[PendingRequest], object]) -> list[PendingRequest]:
        found = [(due, asked) for due, asked in self._waiting if now >= due and ready(asked)]
        self._waiting = [one for one in self._waiting if one not in found]
        return [asked for _, asked in found]

    def expire(self, now: float) -> list[PendingRequest]:
        return self.take(lambda asked: asked.until is not None and now >= asked.until)

    def cancel(self, client: EventSink) -> None:
        self.take(lambda asked: asked.client is client)

    def remember(self, asked: PendingRequest) -> None:
        """It is given up; somebody may come back for what there is of it."""
        if asked.request.id and asked.request.prompt_ids:
            same = (past.began for past in self._given_up.values() if past.began == asked.began)
            self._given_up[asked.request.id] = _Past.of(asked, next(same, asked.began))
            if len(self._given_up) > MOST:
                self._given_up.pop(next(iter(self._given_up)))

    def recalled(self, asked: PendingRequest) -> PendingRequest:
        """A request of which only the name is known, with all that is remembered of it, if anything is."""
        before = self._given_up.pop(asked.request.id, None) if asked.request.named_only else None
        if before is None:
            return asked
        mine = asked.request
        return replace(
            asked,
            home=before.home,
            began=before.began,
            request=replace(
                before.whole(), known=mine.known, rounds=mine.rounds, reconnect_timeout=mine.reconnect_timeout
            ),
        )

    def take(self, wanted: Callable[[PendingRequest], bool]) -> list[PendingRequest]:
        """Take out those that are wanted."""
        taken = [asked for _, asked in self._waiting if wanted(asked)]
        self._waiting = [(due, asked) for due, asked in self._waiting if asked not in taken]
        return taken


def same_model(before: Welcome, now: Welcome) -> bool:
    """Whether a text of one can be gone on with at the other, as far as can be known: hashes come late."""
    same = (before.model, before.vocab_fingerprint, before.n_vocab) == (now.model, now.vocab_fingerprint, now.n_vocab)
    return same and (before.model_hash == now.model_hash or not (before.model_hash and now.model_hash))


def same_file(one: Welcome, other: Welcome) -> bool:
    """Whether two verifiers surely run the same model: names do not tell files apart, two machines may have each their
    own of one name."""
    same = (one.model_hash, one.vocab_fingerprint, one.n_vocab) == (
        other.model_hash,
        other.vocab_fingerprint,
        other.n_vocab,
    )
    return same and one.model_hash != ""
