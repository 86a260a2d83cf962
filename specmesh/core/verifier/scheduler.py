"""The steps of the target: which sessions share the next one, with what rows, on how many CPU threads
beside the other daemon of the host; and what each teaches about the costs of steps and about drafting."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import inf

from specmesh.core import events as ev
from specmesh.core.draft_length.estimates import StepCosts
from specmesh.core.draft_length.gate import SpeculationGate, allocate_drafts
from specmesh.core.verifier.events import ThreadsShared
from specmesh.core.verifier.session import SessionState
from specmesh.core.verifier.session_context import SessionContext
from specmesh.wire import messages as m

Part = ev.Prefill | ev.Verify  # what one session does in a step
PREFILL_ROWS = (
    128  # of a step in which others verify; where the same ids must have the same bits, in any step
)


@dataclass(frozen=True, slots=True)
class Batch:
    """What one step does, by session id. context: ids that its sequences hold before it. pure: all verify.
    has_drafts: some bring drafts."""

    parts: tuple[tuple[int, Part], ...]
    rows: int
    context: int
    pure: bool
    has_drafts: bool

    @classmethod
    def of(cls, parts: tuple[tuple[int, Part], ...]) -> "Batch":
        rows, context, pure, has_drafts = 0, 0, True, False
        for _, part in parts:
            context += part.position
            if isinstance(part, ev.Verify):
                rows += 1 + len(part.drafts)
                has_drafts = has_drafts or bool(part.drafts)
            else:
                rows += len(part.ids)
                pure = False
        return cls(parts, rows, context, pure, has_drafts)


class Scheduler:
    """Forms steps of at most `n_batch` rows, one for each session at least. As soon as one session is ready, every
    session that could step joins, and nobody waits for another's drafts: that would cost more than any draft brings.
    Each has its own row; where they are several, as many drafts come as raise what all get for the time by `costs`.
    Prompts take the rest before drafts do; where others verify or wait only `prefill_rows`, times as many as there are
    prompts for each of the others. In turn the oldest prompt is first, so that it goes on whatever comes, and the one
    with least to go. constant: rows cost the same whatever they hold, so all drafts come, and a prompt is always cut at
    multiples of `prefill_rows`: other sessions do not change how it is computed."""

    def __init__(
        self, n_batch: int, costs: StepCosts, prefill_rows: int, *, constant: bool = False
    ) -> None:
        self._n_batch, self._costs, self._prefill_rows, self._constant = (
            n_batch,
            costs,
            prefill_rows,
            constant,
        )
        self._shortest = False  # is first of the prompts in this step

    def next_batch(self, sessions: Mapping[int, SessionContext], now: float) -> Batch | ev.Wait:
        """Return the next step's parts for the unfinished `sessions`, or until when it has none: for ever, infinity."""
        if len(sessions) == 1:
            ((key, live),) = sessions.items()
            plan = live.session.plan(now)
            if isinstance(plan, ev.Wait):
                return plan
            if isinstance(plan, ev.Verify) and len(plan.drafts) < self._n_batch:
                return Batch.of(((key, plan),))
        plans = {
            key: live.session.plan(now)
            for key, live in sessions.items()
            if live.session.finished is None
        }
        waits = [plan.until for plan in plans.values() if isinstance(plan, ev.Wait)]
        if len(waits) == len(plans):
            return ev.Wait(min(waits, default=inf))
        prompts = {key: plan for key, plan in plans.items() if isinstance(plan, ev.Prefill)}
        others = [key for key in plans if key not in prompts]
        joining = others if len(waits) < len(others) else []
        room = self._n_batch - len(joining)
        share = self._prefill_rows * -(-len(prompts) // len(others)) if others else room
        filling = self._filling(prompts, min(room, share))
        room -= sum(len(part.ids) for _, part in filling)
        return Batch.of((*self._verifying(joining, plans, sessions, room), *filling))

    def _verifying(
        self,
        joining: list[int],
        plans: Mapping[int, ev.Plan],
        sessions: Mapping[int, SessionContext],
        room: int,
    ) -> list[tuple[int, ev.Verify]]:
        """Each with its own row, and the drafts that fit in `room` more and pay."""
        wants = list[ev.Verify]()
        for key in joining:
            plan = plans[key]
            wants.append(plan if isinstance(plan, ev.Verify) else sessions[key].session.verify())
        if len(wants) <= 1 or self._constant or not any(want.drafts for want in wants):
            counts: list[int] = []
            for want in wants:
                counts.append(min(len(want.drafts), room))
                room -= counts[-1]
        else:
            context = sum(want.position for want in wants)
            bids = [
                sessions[key].session.bid(want) for key, want in zip(joining, wants, strict=True)
            ]
            pause = self._costs.pause
            counts = allocate_drafts(
                bids, room, lambda rows: self._costs.seconds(rows, context) + pause
            )
        return [
            (key, want if count == len(want.drafts) else replace(want, drafts=want.drafts[:count]))
            for key, want, count in zip(joining, wants, counts, strict=True)
        ]

    def _filling(
        self, prompts: Mapping[int, ev.Prefill], budget: int
    ) -> list[tuple[int, ev.Prefill]]:
        """Parts of prompts of at most `budget` rows: one that has to be cut elsewhere than where it always is waits."""
        self._shortest = not self._shortest and not self._constant
        order = (
            sorted(prompts, key=lambda key: len(prompts[key].ids)) if self._shortest else prompts
        )
        parts: list[tuple[int, ev.Prefill]] = []
        for key in order:
            plan = prompts[key]
            ids = plan.ids[: budget if not self._constant else self._next_cut(plan)]
            if 0 < len(ids) <= budget:
                parts.append((key, replace(plan, ids=ids)))
                budget -= len(ids)
        return parts

    def _next_cut(self, plan: ev.Prefill) -> int:
        """Where a constant width ends a prompt's next part."""
        return (
            len(plan.ids)
            if plan.stepwise
            else self._prefill_rows - plan.position % self._prefill_rows
        )


class StepMeter:
    """Records one step after the other. costs: what they teach of pauses and batch sizes; width: rows of every step,
    where constant."""

    def __init__(self, costs: StepCosts, width: int | None) -> None:
        self._costs, self._width = costs, width
        self._current = costs  # those of the step that runs
        self._last_ended: float | None = (
            None  # of the step before, where sessions have gone on since
        )
        self._waited = False  # for drafts, before that one
        self._spent: float | None = None  # from the end of the step before to the end of the newest

    def idle(self) -> None:
        """Note that there is no session: no pause is measured over idle time."""
        self._last_ended = None

    def begun(self, costs: StepCosts, *, waited: bool) -> None:
        self._current, self._waited = costs, waited

    def ended(self, batch: Batch, started: float, ended: float, *, cut: bool) -> None:
        """Record a step. cut: sequences were cut before it. Some models then decode ids again, which drafts pay for."""
        before, self._last_ended, self._spent = self._last_ended, ended, None
        if before is not None:
            self._spent = ended - before
            if not self._waited:
                self._costs.record_pause(started - before)
        if batch.pure and (batch.has_drafts or not cut):
            # With a constant width each part was a decode of its own.
            rows, decodes = (
                (batch.rows, 1) if self._width is None else (self._width, len(batch.parts))
            )
            self._current.record(
                rows, (ended - started) / decodes, context=batch.context // decodes
            )

    def compare(
        self,
        batch: Batch,
        tokens: int,
        gate: SpeculationGate,
        alone: float,
        *,
        asked: bool,
        had: bool,
        forced: bool,
    ) -> None:
        """Hold what steps bring with drafts against what they bring without. tokens: that it committed. alone: seconds
        that one session would take without drafts, 0 if unknown. asked, had: some session whose draft_n adapts asked
        for drafts, and had some; forced: a grammar had some of its own."""
        if not batch.pure or self._spent is None or (gate.open and not asked):
            return
        sharing, rate, shared = len(batch.parts), 1 / alone if alone else 0.0, self._costs.shared
        if sharing > 1 or not forced:  # those make one session's steps faster, whoever drafts
            gate.stepped(
                sharing, tokens, self._spent, asked=asked, had=had, alone=rate, shared=shared
            )


class CpuThreads:
    """CPU threads of the steps: fewer while a drafter of the same host drafts for a session that generates, all while
    it is off, and for prompts. Steps beside one that drafts are measured in `costs`, the others in `costs.alone`."""

    def __init__(self, costs: StepCosts) -> None:
        self._costs = costs
        self._share: ThreadsShared | None = (
            None  # None: the target does not compute on the CPU, or nobody else does
        )
        self._used = 0

    def shared(self, share: ThreadsShared) -> None:
        self._used = self._used or share.alone
        self._share = share
        if share.beside != share.alone:
            self._costs.split(share.alone / share.beside)
        else:
            self._costs.join()

    def next(self, sessions: Mapping[int, SessionContext]) -> tuple[int | None, StepCosts]:
        """Return the threads of the next step where that changes, and the costs that it is measured in."""
        share = self._share
        if share is None:
            return None, self._costs
        drafts = any(
            live.session.drafting
            and live.session.state is SessionState.GENERATING
            and live.drafter in share.drafters
            for live in sessions.values()
        )
        threads = share.beside if drafts else share.alone
        changed, self._used = threads != self._used, threads
        return threads if changed else None, self._costs if drafts else self._costs.alone


HostPeer = (
    m.Hello | m.Welcome
)  # they tell of their host and the threads that they take there, 0 off the CPU


class ThreadShare:
    """An engine's CPU threads beside those of the other daemon of its host: more than cores stall at every barrier. How
    many of `cores` it takes: `threads` now, and `alone` while nobody else computes on `host`. Unless it `follows` who
    does, they stay. drafter: it is a draft model's engine, which beside others takes a quarter of the cores: it is
    small, and loses less by that than a target. A verifier takes what drafters leave."""

    def __init__(
        self, threads: int, cores: int, host: str, *, drafter: bool, follows: bool
    ) -> None:
        self.alone = self.threads = threads
        self.host = host
        self._cores, self._drafter, self._follows = cores, drafter, follows
        self._warned = False

    def shared_with(self, peer: HostPeer) -> bool:
        return bool(self.host) and peer.host == self.host and peer.cpu_threads > 0

    def share(self, others: int) -> int:
        if not others or not self._follows:
            return self.alone
        return max(self._cores // 4 if self._drafter else self._cores - others, 1)

    def beside(self, peers: Iterable[HostPeer]) -> ev.Noted | None:
        """Take the threads that are right beside these peers; return what the log is to say."""
        others = sum(peer.cpu_threads for peer in peers if self.shared_with(peer))
        before, self.threads = self.threads, self.share(others)
        if self.threads != before:
            why = (
                f"others of this host take {others}"
                if others
                else "nobody else of this host computes on it"
            )
            return ev.Noted(
                "cpu_threads", {"threads": self.threads, "cores": self._cores, "why": why}
            )
        fixed = others > 0 and self.threads > 0 and not self._follows
        if not fixed or self._warned or self.threads + others <= self._cores:
            return None
        self._warned = True
        meaning = "drafter and verifier of this host slow each other down: give fewer by --threads"
        numbers = {"threads": self.threads, "others": others, "cores": self._cores}
        return ev.Noted("more_threads_than_cores", {**numbers, "meaning": meaning}, "warning")
