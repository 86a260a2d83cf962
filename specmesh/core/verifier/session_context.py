"""A session with its client and its drafter, and the frames and events about it.

`VerifierSession` has the text and knows nobody. `SessionContext` knows for whom it is. So a session
can change its client, its drafter, or lose both, and its text goes on as if nothing had happened.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from specmesh.core.draft_length.drafter_estimates import DrafterEstimates
from specmesh.core.fair_queue import Tenant
from specmesh.core.no_drafts import NoDrafts
from specmesh.core.requests import Account, SourceRun
from specmesh.core.sampling.logprobs import Logprob, flattened
from specmesh.core.states import state_after
from specmesh.core.token_sources import runs_of
from specmesh.core.verifier import events as vev
from specmesh.core.verifier.session import VerifierSession
from specmesh.wire import messages as m


class ContextState(Enum):
    """The state of a session by its client.

    - CONNECTED: it has a client. Another one gets it by its name.
    - KEPT: it waits for its client, which went with a drafter that may return.
    - ENDED: it is over. Its end is kept for a client that may have missed it.
    - FORGOTTEN: nobody can ask for it any more.
    """

    CONNECTED = "connected"
    KEPT = "kept"
    ENDED = "ended"
    FORGOTTEN = "forgotten"


class ContextEvent(Enum):
    """An event that changes the state.

    - RESUMED: a client has asked for the session by its name.
    - CLIENT_LOST: its client went with a drafter that may return.
    - OVER: its text has ended, and its client may have missed the end.
    - END_REPEATED: a client has got the end once more, and may lose it again.
    - DROPPED: its time is over, its client has had the end or has closed it, or its sequence is
      needed.
    """

    RESUMED = "resumed"
    CLIENT_LOST = "client lost"
    OVER = "over"
    END_REPEATED = "end repeated"
    DROPPED = "dropped"


CONTEXT_STATES: Mapping[ContextState, Mapping[ContextEvent, ContextState]] = {
    ContextState.CONNECTED: {
        ContextEvent.RESUMED: ContextState.CONNECTED,
        ContextEvent.CLIENT_LOST: ContextState.KEPT,
        ContextEvent.OVER: ContextState.ENDED,
        ContextEvent.DROPPED: ContextState.FORGOTTEN,
    },
    ContextState.KEPT: {
        ContextEvent.RESUMED: ContextState.CONNECTED,
        ContextEvent.OVER: ContextState.ENDED,
        ContextEvent.DROPPED: ContextState.FORGOTTEN,
    },
    ContextState.ENDED: {
        ContextEvent.END_REPEATED: ContextState.ENDED,
        ContextEvent.DROPPED: ContextState.FORGOTTEN,
    },
    ContextState.FORGOTTEN: {},
}
"""The state that follows each event, in each state."""


@dataclass(slots=True, eq=False, kw_only=True)
class SessionContext:
    """A session of the verifier's core. Its methods alone change its fields, but for `rounds`.

    client: number of its client; None while it is kept.
    owner: the drafter whose client asked for it; None for a client of the verifier's own.
    drafter: the one that drafts for it.
    prompt_ids: the ids of its prompt.
    name: by which it can be resumed. key: that it was opened with. Either may be empty.
    tenant: for whom it counts.
    account: whose outputs draft for it, and get its own; None for nobody's.
    guest: it is short, and runs beside as many others as there may be.
    end: the effect that its client got at its end.
    kept_until: when it is forgotten.
    state: changed by `advance` only.
    announced: its drafter knows of it.
    rounds: that its drafter has had it for. The drafter pool counts them, in each step.
    in_load: drafts were asked for when the drafters' loads were last counted.
    losses: how often the engine has emptied its sequence since its text had `lost_at` ids.
    no_drafts: why nothing was drafted when that was last logged, at `noted_at`.
    """

    session: VerifierSession
    client: int | None
    owner: vev.DrafterId | None
    drafter: vev.DrafterId | None = None
    prompt_ids: tuple[int, ...] = ()
    name: str = ""
    key: str = ""
    tenant: Tenant = ()
    account: Account | None = None
    guest: bool = False
    end: vev.SessionEnded | None = None
    kept_until: float = 0.0
    announced: bool = False
    rounds: int = 0
    in_load: bool = False
    losses: int = 0
    lost_at: int = 0
    no_drafts: NoDrafts | None = None
    noted_at: float = float("-inf")
    state: ContextState = ContextState.CONNECTED

    def advance(self, event: ContextEvent) -> None:
        """Change the state. Raise InvalidTransition if it has no such event."""
        self.state = state_after(CONTEXT_STATES, "context", self.state, event)

    def ended(self, end: vev.SessionEnded) -> None:
        """Note the end that its client gets."""
        self.end = end

    def keep_until(self, time: float) -> None:
        """Keep it, or its end, until then."""
        self.kept_until = time

    def lost_sequence(self) -> int:
        """Note that the engine has emptied its sequence; return how often without a new id."""
        length = len(self.session.prefix)
        if length != self.lost_at:
            self.lost_at = length
            self.losses = 0
        self.losses += 1
        return self.losses

    # --- its client

    def connect(self, opening: vev.Opening) -> None:
        """Give it to the client of a request."""
        self.client = opening.client
        self.owner = opening.owner
        self.tenant = opening.tenant
        if opening.account != self.account:
            # Neither account may see in its drafts what the other one has written.
            self.account = None
            self.session.forget_earlier()
        self.session.follow(by_drafter=opening.owner is not None)

    def disconnect(self) -> None:
        """Let it go on without a client."""
        self.client = None
        self.owner = None
        self.session.follow(by_drafter=False)

    # --- its drafter

    def attach(self, drafter: vev.DrafterId) -> None:
        """Give it to a drafter, which does not know of it yet."""
        self.drafter = drafter
        self.rounds = 0
        self.announced = False

    def detach(self) -> None:
        """Let it go on without a drafter."""
        self.drafter = None
        self.session.draft_length.detach()

    def announce(self, estimates: DrafterEstimates, *, muted: bool) -> list[m.Sync]:
        """Begin with its drafter; return the frames that give it the prefix."""
        self.announced = True
        self.session.draft_length.mute(muted=muted)
        return self.session.attach(estimates)

    def weigh(self) -> bool:
        """Note and return whether drafts are asked for, and so count in its drafter's load."""
        self.in_load = self.session.drafting
        return self.in_load

    def note_no_drafts(self, why: NoDrafts | None, now: float) -> None:
        """Note the reason that the log gets now."""
        self.no_drafts = why
        self.noted_at = now

    # --- frames and events about it

    @property
    def id(self) -> int:
        """Return the session's number."""
        return self.session.id

    def opened(self, label: str) -> vev.Noted:
        """Return the log's line about the beginning; `label` names the request."""
        session = self.session
        fields: dict[str, object] = {
            "session": self.id,
            "prompt_tokens": session.n_prompt,
            "cached_tokens": session.cached,
            "resumed_tokens": session.resumed,
        }
        if self.owner is None:
            fields["request"] = label
        else:
            fields["remote"] = True
        return vev.Noted("session_opened", fields)

    def logprobs(self, frame: m.Truth | m.Sync) -> list[m.Logprobs]:
        """Return what the drafter's client wants to know of the frame's ids, if anything."""
        if self.owner is None:
            return []
        recorder = self.session.logprobs
        sources = self.session.token_sources
        first = recorder or sources  # the prompt has no sources, perhaps log-probabilities
        end = frame.base + len(frame.ids)
        if first is None or end <= first.begin:
            return []
        # A SYNC may begin far back, in a prompt that nothing is noted of.
        begin = max(frame.base, first.begin)
        logprobs: tuple[Logprob | None, ...] = ()
        names: list[str] = []
        if recorder is not None:
            logprobs = recorder.between(begin, end)
        if sources is not None:
            names = sources.between(begin, end)
        return logprobs_frames(self.id, begin, logprobs, names)

    def began(self, known: int, *, adopted: bool) -> vev.Began:
        """Return the event for a client that is new to the session.

        known: ids of the text that the client has. A client of the verifier's own gets the others.
        adopted: the session was here already.
        """
        session = self.session
        ids: tuple[int, ...] = ()
        logprobs: tuple[Logprob | None, ...] = ()
        if self.owner is None:
            # A drafter's client gets them from its drafter, which has the text by TRUTH.
            ids = session.text_ids(known)
        if ids and session.logprobs is not None:
            begin = session.n_prompt + known
            logprobs = session.logprobs.between(begin, begin + len(ids))
        sources: tuple[SourceRun, ...] = ()
        if ids and session.token_sources is not None:
            begin = session.n_prompt + known
            sources = runs_of(session.token_sources.between(begin, begin + len(ids)))
        reading = None
        # An adopted session has read its prompt for another request.
        if session.progress is not None and not adopted:
            reading = session.progress.first
        return vev.Began(
            session=self.id,
            prompt_ids=self.prompt_ids,
            params=session.params,
            name=self.name,
            opened=session.times.opened,
            resumed=session.resumed,
            adopted=adopted,
            ids=ids,
            logprobs=logprobs,
            sources=sources,
            reading=reading,
        )

    def finished(self, reason: m.FinishReason, no_drafts: NoDrafts | None) -> vev.Noted:
        """Return the log's line about the end."""
        session = self.session
        counts = session.counts
        fields: dict[str, object] = {
            "session": self.id,
            "reason": reason,
            "tokens": session.generated,
            "rounds": counts.rounds,
            "accepted": counts.accepted,
            "drafted": counts.drafted,
        }
        if session.constraint is not None and session.constraint.exhausted is not None:
            # No draft was verified from then on.
            fields["grammar_spent"] = session.constraint.exhausted
        if no_drafts is not None:
            fields["no_drafts"] = no_drafts
        return vev.Noted("session_finished", fields)

    def done(self, end: vev.SessionEnded) -> list[vev.ToDrafter]:
        """Return the end for its drafter, with the report if the drafter's client owns it."""
        if self.drafter is None or not self.announced:
            return []
        # The report is for the client that asked. Another drafter has only helped.
        report = end.report if self.owner == self.drafter else {}
        done = m.Done(self.id, end.reason, len(self.session.prefix), report)
        return [vev.ToDrafter(self.drafter, done)]


def logprobs_frames(
    session: int, begin: int, logprobs: Sequence[Logprob | None], sources: Sequence[str] = ()
) -> list[m.Logprobs]:
    """Return the frames with the log-probabilities of ids from position `begin` on.

    logprobs, sources: of each id; empty if they are not wanted.
    """
    frames: list[m.Logprobs] = []
    flat = flattened(logprobs or [None] * len(sources), m.MAX_LOGPROBS)
    for offset, (chosen, top_ids, top) in flat:
        frame = m.Logprobs(
            session=session,
            base=begin + offset,
            chosen=chosen,
            top_ids=top_ids,
            top=top,
            sources=list(sources[offset : offset + m.MAX_LOGPROBS]),
        )
        frames.append(frame)
    return frames
