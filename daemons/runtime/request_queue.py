"""Requests that have no session yet: their prompts are being encoded, or all sessions are taken."""

from collections import deque
from collections.abc import Callable, Iterable, Sequence

from specmesh.api.requests import Request
from specmesh.core import verifier_events as vev
from specmesh.core.sampling.constraint import Constraint
from specmesh.core.session_params import (
    TargetLimits,
    check_request,
)
from specmesh.daemons.runtime.prompts import ClientRequest, EncodedPrompt, PromptEncoder
from specmesh.errors import Busy

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


class RequestQueue:
    """Requests that have no session yet: as many as sessions are free, and `most` more. The core decides who is next.

    A drafter's own clients get half of the places here, and three quarters of the sessions, so that it can keep nobody
    else out. A prompt that takes long holds up nobody either: those that are ready overtake it.
    """

    def __init__(self, prompts: PromptEncoder, limits: TargetLimits, sessions: int, most: int = MAX_QUEUE) -> None:
        self._prompts, self._limits = prompts, limits
        self._sessions, self._most = sessions, most
        self._share = sessions - sessions // 4
        self._queue_limits = QueueLimits(most)
        self._waiting: dict[int, ClientRequest] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, asked: ClientRequest, owners: Sequence[bytes | None], now: float) -> vev.Opening | None:
        """Let a request wait; `owners` of the live sessions. Return it for the core where its prompt needs no encoding.
        Raises Busy where too many wait already, and what `encoded` does."""
        waiting, free = (one.request for one in self._waiting.values()), self._sessions - len(owners)
        self._queue_limits.check(waiting, asked.request, now, self._refusal(), free)
        if asked.owner is not None:
            theirs = owners.count(asked.owner) + sum(one.owner == asked.owner for one in self._waiting.values())
            if theirs >= self._share + (self._most + 1) // 2:
                text = f"{theirs} requests of this drafter run or wait, half of --max-queue: try again, or start the "
                retry_after = self._queue_limits.retry_after(len(self._waiting), now)
                raise Busy(f"{text}verifier with a larger one", retry_after)
        self._waiting[asked.number] = asked
        ids = asked.request.prompt_ids
        if ids is None or asked.request.params.grammar is not None:
            asked.encoding = self._prompts.add(asked)
            return None
        return self.encoded(EncodedPrompt(asked, ids))

    def encoded(self, encoded: EncodedPrompt) -> vev.Opening | None:
        """Return a request with its prompt for the core, None where it was withdrawn. Raises SpecmeshError, and
        withdraws it, where it is refused."""
        asked, request = encoded.asked, encoded.asked.request
        if asked.number not in self._waiting:
            return None
        known = (*encoded.ids, *request.generated)
        try:
            encoded.check()
            check_request(request.params, known, len(encoded.ids), encoded.constraint, self._limits)
        except BaseException:
            del self._waiting[asked.number]
            raise
        return opening_of(asked, known, len(encoded.ids), encoded.constraint)

    def left(self, number: int, now: float) -> None:
        """Note that a request has its session, or was refused one."""
        if self._waiting.pop(number, None) is not None:
            self._queue_limits.left(now)

    def withdraw(self, unwanted: Callable[[ClientRequest], bool]) -> list[ClientRequest]:
        gone = [waiting for waiting in self._waiting.values() if unwanted(waiting)]
        for waiting in gone:
            del self._waiting[waiting.number]
            if waiting.encoding is not None:
                waiting.encoding.cancel()
        return gone

    def _refusal(self) -> str:
        taken = f"all {self._sessions} sessions are taken"
        if not self._most:
            return f"{taken}: try again, or start the verifier with more --max-sessions, or with --max-queue"
        return f"{taken} and {len(self._waiting)} requests wait: try again, or start it with a larger --max-queue"


def opening_of(
    asked: ClientRequest, ids: Sequence[int] = (), n_prompt: int = 0, constraint: Constraint | None = None
) -> vev.Opening:
    """Return a request as the core takes it; without ids it asks for the session of its name."""
    request = asked.request
    return vev.Opening(
        asked.number,
        tuple(ids),
        n_prompt,
        request.params,
        constraint,
        asked.owner,
        request.id,
        asked.key,
        request.known,
        request.priority,
        request.label,
    )
