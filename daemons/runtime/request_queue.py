"""Requests that have no session yet: their prompts are being encoded, or all sessions are taken."""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from specmesh.api.requests import Failed, Request
from specmesh.core.session_params import (
    TargetLimits,
    check_alternatives,
    check_biases,
    check_continued,
    check_prompt,
    check_strategy,
)
from specmesh.daemons.runtime.prompts import EncodedPrompt, Opening, PromptEncoder
from specmesh.errors import Busy, SpecmeshError

MAX_QUEUE = 256  # requests that wait for a free session, unless told otherwise
MAX_BYTES = 64 * 2**20  # that they may take together; one alone always may
LONGEST_RETRY = 60.0  # seconds in a Retry-After: clients ignore more


class QueueLimits:
    """How much may wait, `most` at once, and how fast it moves."""

    def __init__(self, most: int = MAX_QUEUE) -> None:
        self._most = most
        self._departures: deque[float] = deque(maxlen=32)

    def check(self, waiting: Iterable[Request], new: Request, now: float, full: str, free: int = 0) -> None:
        """Raise Busy, which says `full`, where there is no room for one more; the first `free` do not count."""
        sizes = [request.size for request in waiting]
        if not sizes:
            self._departures.clear()
            self._departures.append(now)
        elif sum(sizes) + new.size > MAX_BYTES:
            text = f"the {len(sizes)} requests that wait take {sum(sizes) >> 20} MB: try again, or ask for less"
            raise Busy(text, self.retry_after(len(sizes), now))
        if len(sizes) >= self._most + free:
            raise Busy(full, self.retry_after(len(sizes), now))

    def left(self, now: float) -> None:
        self._departures.append(now)

    def retry_after(self, waiting: int, now: float) -> float:
        """Seconds in which so many will have left, as fast as the last did."""
        if len(self._departures) < 2:
            return 1.0
        return min(max(waiting * (now - self._departures[0]) / (len(self._departures) - 1), 1.0), LONGEST_RETRY)


@dataclass(slots=True)
class _QueuedRequest:
    """prompt: None while it is being encoded, until `encoding` is cancelled."""

    opening: Opening
    encoding: Future[None] | None = None
    prompt: EncodedPrompt | None = None


class RequestQueue:
    """Requests in the order they came, a lower `priority` first: as many as sessions are free, and `most` more.

    A drafter's own clients get at most three quarters of the sessions (of fewer than four all), and half of the places
    here, so that it can keep nobody else out. A prompt that takes long holds up nobody either: those that are ready
    overtake it.
    """

    def __init__(self, prompts: PromptEncoder, limits: TargetLimits, sessions: int, most: int = MAX_QUEUE) -> None:
        self._prompts, self._limits = prompts, limits
        self._sessions, self._most = sessions, most
        self._share = sessions - sessions // 4
        self._queue_limits = QueueLimits(most)
        self._waiting: list[_QueuedRequest] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, opening: Opening, owners: Sequence[bytes | None], now: float) -> None:
        """Let a request wait; `owners` of the live sessions. Raises Busy where too many wait already."""
        waiting, free = (one.opening.request for one in self._waiting), self._sessions - len(owners)
        self._queue_limits.check(waiting, opening.request, now, self._refusal(), free)
        if opening.owner is not None:
            theirs = owners.count(opening.owner) + sum(one.opening.owner == opening.owner for one in self._waiting)
            if theirs >= self._share + (self._most + 1) // 2:
                text = f"{theirs} requests of this drafter run or wait, half of --max-queue: try again, or start the "
                retry_after = self._queue_limits.retry_after(len(self._waiting), now)
                raise Busy(f"{text}verifier with a larger one", retry_after)
        ids = opening.request.prompt_ids
        if ids is None or opening.request.params.grammar is not None:
            self._waiting.append(_QueuedRequest(opening, self._prompts.add(opening)))
        else:
            self._waiting.append(_QueuedRequest(opening))
            self.encoded(EncodedPrompt(opening, ids))

    def encoded(self, encoded: EncodedPrompt) -> None:
        """Take over an encoded prompt; one that is refused is withdrawn and its client told. Ignores withdrawn ones."""
        request = encoded.opening.request
        try:
            if encoded.error is not None:
                raise encoded.error
            check_prompt((*encoded.ids, *request.generated), self._limits, len(encoded.ids))
            check_biases(request.params.sampling, self._limits)
            check_alternatives(request.params, len(encoded.ids), self._limits)
            check_strategy(request.params)
            check_continued(request.generated, encoded.constraint, self._limits)
        except SpecmeshError as error:
            for opening in self.withdraw(lambda other: other is encoded.opening):
                opening.client.on_event(Failed(error))
            return
        for waiting in self._waiting:
            if waiting.opening is encoded.opening:
                waiting.prompt = encoded

    def next(self, owners: Sequence[bytes | None], now: float) -> EncodedPrompt | None:
        if len(owners) >= self._sessions:
            return None
        for waiting in sorted(self._waiting, key=lambda one: one.opening.request.priority):
            owner = waiting.opening.owner
            if waiting.prompt is not None and (owner is None or owners.count(owner) < self._share):
                self._waiting.remove(waiting)
                self._queue_limits.left(now)
                return waiting.prompt
        return None

    def withdraw(self, unwanted: Callable[[Opening], bool]) -> list[Opening]:
        gone = [waiting for waiting in self._waiting if unwanted(waiting.opening)]
        self._waiting = [waiting for waiting in self._waiting if waiting not in gone]
        for waiting in gone:
            if waiting.encoding is not None:
                waiting.encoding.cancel()
        return [waiting.opening for waiting in gone]

    def _refusal(self) -> str:
        taken = f"all {self._sessions} sessions are taken"
        if not self._most:
            return f"{taken}: try again, or start the verifier with more --max-sessions, or with --max-queue"
        return f"{taken} and {len(self._waiting)} requests wait: try again, or start it with a larger --max-queue"
