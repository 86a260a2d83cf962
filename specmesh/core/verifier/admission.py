"""Requests that wait for a sequence of the target: how many, and which is next; sessions kept for absent clients."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from specmesh.core.draft_length import MAX_DRAFTS
from specmesh.core.fair_queue import Tenant, parts_of
from specmesh.core.kv_slots import GUEST_IDS
from specmesh.core.verifier import events as vev
from specmesh.core.verifier.session_context import ContextState, SessionContext
from specmesh.errors import Busy

MAX_QUEUE = 256  # requests that wait for a free session, unless set otherwise
MAX_BYTES = 64 * 2**20  # that they may take together; one alone always may
GRACE = 30.0  # seconds for which a session is kept, unless set otherwise
READER_PATIENCE = 60.0  # seconds for which a session waits for its reader, whose API ends it sooner
GUEST_TOKENS = (16, 2)
"""Tokens that a short text may have yet, beside as many others as may be, and beside those and a
short one."""

MAX_KEPT = 64  # most sessions kept, ended ones included: the oldest give way


def most_sessions(max_sessions: int) -> int:
    """Return how many of the sessions one tenant gets: three quarters, of fewer than four all."""
    return max_sessions - max_sessions // 4


class WaitingRoom:
    """What requests that wait take: places, and MAX_BYTES together. The last quarter of both is for
    tenants that take little, so that those who take much leave it to others."""

    def __init__(self) -> None:
        self.count = self._bytes = 0
        self._theirs = Counter[Tenant]()  # places of each tenant
        self._sizes = Counter[Tenant]()  # bytes

    def check(self, tenant: Tenant, size: int, most: int, full: str) -> None:
        """Raise Busy where there is no room for one more request of so many bytes; where `most`
        wait it says `full`."""
        widest = tenant[:1]
        if not _fits(self.count, 1, self._theirs[widest] if tenant else 0, most):
            raise Busy(full)
        theirs = self._sizes[widest] if tenant else 0
        if self.count and not _fits(self._bytes, size, theirs, MAX_BYTES):
            raise Busy(
                f"the {self.count} requests that wait take {self._bytes >> 20} MB",
                "try again, or ask for less",
            )

    def enter(self, tenant: Tenant, size: int) -> None:
        """Take a request in."""
        self._change(tenant, 1, size)

    def leave(self, tenant: Tenant, size: int) -> None:
        """Let one go that was taken in."""
        self._change(tenant, -1, -size)

    def _change(self, tenant: Tenant, count: int, size: int) -> None:
        widest = tenant[:1]
        self.count += count
        self._bytes += size
        self._theirs[widest] += count
        self._sizes[widest] += size
        if not self._theirs[widest]:
            del self._theirs[widest], self._sizes[widest]


def _fits(taken: int, more: int, theirs: int, most: int) -> bool:
    """Return whether one who has `theirs` of what is taken may have more of it."""
    little = theirs + more <= most // 32
    return taken + more <= (most if little or not theirs else most - most // 4)


def is_short(opening: vev.Opening, tokens: int) -> bool:
    """Return whether a text is over after so many tokens, and certainly needs few cells."""
    most = opening.request.params.max_tokens - (len(opening.ids) - opening.n_prompt)
    return most <= tokens and len(opening.ids) + most + MAX_DRAFTS < GUEST_IDS


class WaitingRequests:
    """Requests for one of `max_sessions` sessions. Next is one of the tenant that has the fewest;
    of equals, of the one whose last session began first; of one tenant the oldest. No tenant gets
    more than its share of the sessions. Where all are taken, short ones have `guests` more."""

    def __init__(self, max_sessions: int, guests: int = 0) -> None:
        self._max_sessions, self._share = max_sessions, most_sessions(max_sessions)
        self._guests = guests
        self.openings: list[vev.Opening] = []
        self._turn = 0
        self._turns = dict[Tenant, int]()  # when each tenant of those present got its last session

    def withdraw(self, unwanted: Callable[[vev.Opening], bool]) -> None:
        self.openings = [opening for opening in self.openings if not unwanted(opening)]

    def sharing(self, sessions: int) -> int:
        """How many sessions there will be as soon as those that wait have joined these."""
        return min(sessions + len(self.openings), max(self._max_sessions, sessions))

    def next(self, sessions: Iterable[SessionContext]) -> tuple[vev.Opening, bool] | None:
        """Return who is next beside these sessions, and whether as a guest; let it wait no
        longer."""
        running = [live for live in sessions if live.client is not None]
        guests = sum(live.guest for live in running)
        guest = len(running) - guests >= self._max_sessions
        if guest and guests >= min(self._guests, len(GUEST_TOKENS)):
            return None
        taken = Counter(part for live in running for part in parts_of(live.tenant))
        fit = [one for one in self.openings if taken[one.tenant[:1]] < self._share]
        if guest:
            fit = [one for one in fit if is_short(one, GUEST_TOKENS[guests])]
        if not fit:
            return None
        opening = self._first(fit, taken)
        self.openings.remove(opening)
        self._turn += 1
        self._turns |= dict.fromkeys(parts_of(opening.tenant), self._turn)
        present = {part for one in self.openings for part in parts_of(one.tenant)}
        self._turns = {part: turn for part, turn in self._turns.items() if part in present}
        return opening, guest

    def _first(self, openings: Sequence[vev.Opening], taken: Mapping[Tenant, int]) -> vev.Opening:
        """Return the one whose tenant has the fewest sessions, then the oldest turn, at each part
        of the path."""
        left, depth = openings, 1
        while True:
            ranks = list[tuple[int, int, int]]()
            for one in left:
                part = one.tenant[:depth]
                ranks.append((taken.get(part, 0), self._turns.get(part, 0), one.client))
            first = left[ranks.index(min(ranks))]
            if len(first.tenant) <= depth:
                return first
            left = [one for one in left if one.tenant[:depth] == first.tenant[:depth]]
            depth += 1


class KeptSessions(dict[int, SessionContext]):
    """Sessions whose client went away, by id, the oldest first, each for `grace` seconds for whoever resumes it by
    name; with their end those that have ended."""

    def __init__(self, grace: float) -> None:
        super().__init__()
        self.grace = grace

    @property
    def next_end(self) -> float:
        """When the first is to be forgotten."""
        return min((live.kept_until for live in self.values()), default=float("inf"))

    def add(self, live: SessionContext, now: float) -> None:
        self.pop(live.id, None)
        self[live.id] = live
        live.kept_until = now + self.grace

    def running(self, *guests: bool) -> SessionContext | None:
        """Return the first that has not ended; with an argument, that is a guest or none."""
        found = (live for live in self.values() if live.state is ContextState.KEPT)
        return next((live for live in found if not guests or live.guest in guests), None)

    def expire(self, now: float) -> list[SessionContext]:
        """Forget, and return, those whose time is over, or that are too many."""
        if now < self.next_end and len(self) <= MAX_KEPT:
            return []
        excess = len(self) - MAX_KEPT
        over = [
            live
            for number, live in enumerate(self.values())
            if now >= live.kept_until or number < excess
        ]
        for live in over:
            del self[live.id]
        return over
