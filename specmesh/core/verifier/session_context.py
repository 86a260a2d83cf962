"""A session with its client and its drafters, and what these, the log and `stats` hear of it; its report has the
numbers of `generate --json` and `--verbose`."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from specmesh.core.draft_length.estimates import StepCosts
from specmesh.core.fair_queue import Tenant
from specmesh.core.fields import Json
from specmesh.core.no_drafts import NoDrafts
from specmesh.core.sampling import is_exact
from specmesh.core.sampling.logprobs import flattened
from specmesh.core.verifier import events as vev
from specmesh.core.verifier.session import VerifierSession
from specmesh.errors import InvalidTransition
from specmesh.wire import messages as m


class ContextState(Enum):
    """Of a session, by who hears of it."""

    CONNECTED = "connected"
    KEPT = "kept"
    ENDED = "ended"
    FORGOTTEN = "forgotten"


CONTEXT_STATES: Mapping[ContextState, set[ContextState]] = {
    ContextState.CONNECTED: set(ContextState),
    ContextState.KEPT: {ContextState.CONNECTED, ContextState.ENDED, ContextState.FORGOTTEN},
    ContextState.ENDED: {ContextState.ENDED, ContextState.FORGOTTEN},
    ContextState.FORGOTTEN: set(),
}
"""What each may become. A client has it, or one that resumes it by name. It is kept where its client went with a
drafter that may return; ended, its end is kept for who may have missed it. Nobody can ask for it any more where time is
over, its client has closed it or was here, or its sequence was needed."""


@dataclass(slots=True, eq=False)
class SessionContext:
    """client: who hears of it, None while it is kept. owner: the drafter whose client asked for it,
    None for one of the verifier's own. tenant: whom it counts for. guest: it is short, and beside
    as many others as may be. name: to resume it by; key: it was opened with; either may be empty.
    end: what its client got at the end. The drafter pool's: whether its drafter has heard of it,
    for how many rounds it has had that, whether drafts were asked for when drafters' loads were
    last counted, and why nothing was drafted when that was last logged, and when that was."""

    session: VerifierSession
    seq: int  # of the target's memory
    client: int | None
    owner: vev.DrafterId | None
    drafter: vev.DrafterId | None = None
    name: str = ""
    key: str = ""
    tenant: Tenant = ()
    guest: bool = False
    end: vev.SessionEnded | None = None
    kept_until: float = 0.0
    announced: bool = False
    rounds: int = 0
    in_load: bool = False
    no_drafts: NoDrafts | None = None
    noted: float = float("-inf")
    state: ContextState = ContextState.CONNECTED  # changed by `move` only

    def move(self, to: ContextState) -> None:
        """Change its state; raise InvalidTransition, and change nothing, where `CONTEXT_STATES` does not have it."""
        if to not in CONTEXT_STATES[self.state]:
            raise InvalidTransition("context", self.state, to)
        self.state = to

    @property
    def id(self) -> int:
        return self.session.id

    @property
    def prompt_ids(self) -> tuple[int, ...]:
        return tuple(self.session.prefix[: self.session.n_prompt])

    def opened(self, label: str) -> vev.Noted:
        ids = {"prompt_tokens": self.session.n_prompt, "cached_tokens": self.session.cached}
        whose = {"request": label} if self.owner is None else {"remote": True}
        return vev.Noted(
            "session_opened",
            {"session": self.id, **ids, "resumed_tokens": self.session.resumed, **whose},
        )

    def logprobs(self, truth: m.Truth | m.Sync) -> list[m.Logprobs]:
        """Return those of the ids that a drafter is sent, where its client asked for them."""
        known, end = self.session.logprobs, truth.base + len(truth.ids)
        if self.owner is None or known is None or end <= known.begin:
            return []
        begin = max(truth.base, known.begin)
        parts = flattened(known.between(begin, end), m.MAX_LOGPROBS)
        return [m.Logprobs(self.id, begin + at, *flat) for at, flat in parts]

    def began(self, known: int, *, adopted: bool) -> vev.Began:
        """What its client, new to it, hears; of a client of the verifier's own that has `known` ids, the others too."""
        session, begin = self.session, self.session.n_prompt + known
        said = session.said(known) if self.owner is None else ()
        assert self.client is not None, "it was just given to one"
        return vev.Began(
            self.client, self.id, self.prompt_ids, session.params, self.name, session.times.opened, session.resumed,
            adopted, said,
            session.logprobs.between(begin, begin + len(said)) if said and session.logprobs is not None else (),
        )  # fmt: skip


def session_report(
    session: VerifierSession,
    costs: StepCosts,
    drafter: str | None,
    now: float,
    no_drafts: NoDrafts | None = None,
) -> Json:
    """Counts and times of a session as its verifier saw them, in seconds and milliseconds as the keys say.
    tokens_per_second counts from the first verification step on. The baseline of speedup_vs_one_token_step is the
    measured cost of a step of one row on this verifier, not a run without drafts. Where a text was gone on with after
    resumed_tokens, all but generated_tokens is about what followed."""
    times, counts = session.times, session.counts
    rate = tokens_per_second(session, now)
    one_step = costs.alone.seconds(1, len(session.prefix))
    return {
        "prompt_tokens": session.n_prompt,
        "cached_tokens": session.cached,
        "generated_tokens": session.generated,
        "resumed_tokens": session.resumed,
        "rounds": counts.rounds,
        "drafted": counts.drafted,
        "accepted": counts.accepted,
        "forced_drafted": counts.forced_drafted,
        "forced_accepted": counts.forced_accepted,
        "acceptance_rate": round(counts.acceptance_rate, 4),
        "mean_acceptance_length": round(counts.mean_acceptance_length, 4),
        "accept_histogram": counts.accept_histogram,
        "draft_n_last": session.draft_n,
        "time_s": round(now - times.opened, 6),
        "time_to_first_token_s": round(times.first_token - times.opened, 6)
        if times.first_token is not None
        else None,
        "tokens_per_second": round(rate, 3),
        "verify_ms": round(times.verify * 1e3, 3),
        "wait_ms": round(times.wait * 1e3, 3),
        "one_token_step_ms": round(one_step * 1e3, 4),
        "speedup_vs_one_token_step": round(rate * one_step, 3),
        "seed": session.params.sampling.seed,
        "strategy": str(session.params.sampling.strategy),
        "exact": is_exact(session.params.sampling.strategy),
        "draft_ms": None,  # what only a drafter knows: its own time
        "drafter": drafter,
        "no_drafts": no_drafts,
    }


def tokens_per_second(session: VerifierSession, now: float) -> float:
    """Tokens per second of a session since its first verification step; 0 before it."""
    seconds = session.times.generating(now)
    return session.counts.generated_tokens / seconds if seconds > 0 else 0.0


def session_row(
    live: SessionContext, drafter: str | None, now: float, no_drafts: NoDrafts | None = None
) -> Json:
    """Return a running session's row of `stats --json`."""
    session, counts = live.session, live.session.counts
    return {
        "session": live.id,
        "prompt_tokens": session.n_prompt,
        "generated_tokens": counts.generated_tokens,
        "drafter": drafter,
        "no_drafts": no_drafts,
        "acceptance_rate": round(counts.acceptance_rate, 4),
        "draft_n": session.draft_n,
        "lead": len(session.draft_buffer.tokens),
        "strategy": str(session.params.sampling.strategy),
        "exact": is_exact(session.params.sampling.strategy),
        "stale_drafts": counts.stale_drafts,
        "tokens_per_second": round(tokens_per_second(session, now), 2),
    }
