"""Admission: requests that wait for a sequence of the target, and kept sessions."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from specmesh.core.draft_length import MAX_DRAFTS
from specmesh.core.fair_queue import Tenant, parts_of
from specmesh.core.kv_slots import GUEST_IDS
from specmesh.core.verifier import events as vev
from specmesh.core.verifier.session_context import ContextState, SessionContext
from specmesh.errors import Busy

MAX_QUEUE = 256  # requests that wait for a free session, unless set otherwise
MAX_BYTES = 64 * 2**20  # that they may take together; a single request always may wait
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
    """The room that requests take while they wait: places, and MAX_BYTES together.

    The last quarter of both is for tenants that take little.

    count: requests that wait.
    """

    def __init__(self) -> None:
        self.count = 0
        self._bytes = 0
        self._places = Counter[Tenant]()  # of each tenant
        self._sizes = Counter[Tenant]()  # bytes of each tenant

    def check(self, tenant: Tenant, size: int, most: int, full: str, *, count: int = 1) -> None:
        """Raise Busy if there is no room for `count` more requests of `size` bytes together.

        most: requests that may wait. full: the message if so many do.
        """
        widest = tenant[:1]
        places = self._places[widest] if tenant else 0
        if not _fits(self.count, count, places, most):
            raise Busy(full)
        own_bytes = self._sizes[widest] if tenant else 0
        if self.count and not _fits(self._bytes, size, own_bytes, MAX_BYTES):
            raise Busy(
                f"the {self.count} requests that wait take {self._bytes >> 20} MB",
                "try again, or ask for less",
            )

    def enter(self, tenant: Tenant, size: int) -> None:
        """Take a request in."""
        self._change(tenant, 1, size)

    def leave(self, tenant: Tenant, size: int) -> None:
        """Let a request go that was taken in."""
        self._change(tenant, -1, -size)

    def _change(self, tenant: Tenant, count: int, size: int) -> None:
        """Add a request and its bytes, or take them away; a tenant without any is forgotten."""
        widest = tenant[:1]
        self.count += count
        self._bytes += size
        self._places[widest] += count
        self._sizes[widest] += size
        if not self._places[widest]:
            del self._places[widest]
            del self._sizes[widest]


def _fits(taken: int, more: int, own: int, most: int) -> bool:
    """Return True if a tenant that has `own` of what is taken may have `more` of `most`."""
    takes_little = own == 0 or own + more <= most // 32
    limit = most if takes_little else most - most // 4
    return taken + more <= limit


def is_short(opening: vev.Opening, tokens: int) -> bool:
    """Return True if a text ends within so many tokens and certainly needs few cells."""
    generated = len(opening.ids) - opening.n_prompt
    most = opening.request.params.max_tokens - generated
    return most <= tokens and len(opening.ids) + most + MAX_DRAFTS < GUEST_IDS


class WaitingRequests:
    """Requests for one of `max_sessions` sessions.

    - The next is one of the tenant that has the fewest sessions; of equal tenants, of the one whose
      last session began first; of one tenant, the oldest.
    - No tenant gets more than its share of the sessions.
    - The next one waits, and all after it, until the target has cells for its prompt.
    - If all sessions are taken, or the next one waits for cells, short requests may have `guests`
      more.

    openings: in the order in which they came.
    """

    def __init__(self, max_sessions: int, guests: int = 0) -> None:
        self.openings: list[vev.Opening] = []
        self._max_sessions = max_sessions
        self._share = most_sessions(max_sessions)
        self._guests = min(guests, len(GUEST_TOKENS))
        self._turn = 0
        # The turn at which each tenant of those that wait got its last session.
        self._turns = dict[Tenant, int]()

    def withdraw(self, unwanted: Callable[[vev.Opening], bool]) -> None:
        """Drop the unwanted requests."""
        self.openings = [opening for opening in self.openings if not unwanted(opening)]

    def sharing(self, sessions: int) -> int:
        """Return how many sessions there will be with those that wait."""
        return min(sessions + len(self.openings), max(self._max_sessions, sessions))

    def next(
        self,
        sessions: Iterable[SessionContext],
        has_cells: Callable[[vev.Opening], bool] = lambda _: True,
    ) -> tuple[vev.Opening, bool] | None:
        """Take and return the request that gets a session next, and whether it is a guest.

        None if none gets one yet.

        sessions: those that have begun. A kept one gives way, so it does not count.
        has_cells: returns True if the target has cells for a prompt.
        """
        running = [context for context in sessions if context.client is not None]
        guests = sum(context.guest for context in running)
        taken = Counter[Tenant]()
        for context in running:
            taken.update(parts_of(context.tenant))
        fit: list[vev.Opening] = []
        for opening in self.openings:
            if taken[opening.tenant[:1]] < self._share:
                fit.append(opening)
        if fit and len(running) - guests < self._max_sessions:
            opening = self._first(fit, taken)
            if has_cells(opening):
                return self._begun(opening), False
        if guests < self._guests:
            fit = [opening for opening in fit if is_short(opening, GUEST_TOKENS[guests])]
            if fit:
                return self._begun(self._first(fit, taken)), True
        return None

    def _begun(self, opening: vev.Opening) -> vev.Opening:
        """Take out and return a request, and note the turn of its tenant."""
        self.openings.remove(opening)
        self._note_turn(opening.tenant)
        return opening

    def _first(self, openings: Sequence[vev.Opening], taken: Mapping[Tenant, int]) -> vev.Opening:
        """Return the opening whose tenant has the fewest sessions, then the oldest turn.

        Tenants are compared so at each part of their path.
        """
        left = openings
        depth = 1
        while True:
            ranks: list[tuple[int, int, int]] = []
            for opening in left:
                part = opening.tenant[:depth]
                ranks.append((taken.get(part, 0), self._turns.get(part, 0), opening.client))
            first = left[ranks.index(min(ranks))]
            if len(first.tenant) <= depth:
                return first
            part = first.tenant[:depth]
            left = [opening for opening in left if opening.tenant[:depth] == part]
            depth += 1

    def _note_turn(self, tenant: Tenant) -> None:
        """Note that a tenant gets a session, and forget the turns of those that wait no more."""
        self._turn += 1
        for part in parts_of(tenant):
            self._turns[part] = self._turn
        present: set[Tenant] = set()
        for opening in self.openings:
            present.update(parts_of(opening.tenant))
        for part in self._turns.keys() - present:
            del self._turns[part]


class KeptSessions(dict[int, SessionContext]):
    """Sessions whose clients went away, by id, the oldest first.

    Each is kept for `grace` seconds, so that its client can resume it by name. An ended session is
    kept with its end.
    """

    def __init__(self, grace: float) -> None:
        super().__init__()
        self.grace = grace

    def keep_none(self) -> None:
        """Keep no session from now on: no client can come back."""
        self.grace = 0.0

    @property
    def next_end(self) -> float:
        """Return when the first is to be forgotten; infinity without any."""
        return min((context.kept_until for context in self.values()), default=float("inf"))

    def add(self, context: SessionContext, now: float) -> None:
        """Keep a session from now on."""
        self.pop(context.id, None)
        self[context.id] = context
        context.keep_until(now + self.grace)

    def running(self, *, guest: bool | None = None) -> SessionContext | None:
        """Return the oldest session that has not ended.

        guest: of the guests, or of the others; None for any.
        """
        for context in self.values():
            if context.state is ContextState.KEPT and guest in (None, context.guest):
                return context
        return None

    def expire(self, now: float) -> list[SessionContext]:
        """Forget and return the sessions whose time is over, and the oldest beyond MAX_KEPT."""
        excess = len(self) - MAX_KEPT
        if now < self.next_end and excess <= 0:
            return []
        expired: list[SessionContext] = []
        for number, context in enumerate(self.values()):
            if now >= context.kept_until or number < excess:
                expired.append(context)
        for context in expired:
            del self[context.id]
        return expired
