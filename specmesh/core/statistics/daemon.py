"""What the daemons count, and the snapshots made of it."""

from collections import Counter
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import fields
from typing import TypedDict, Unpack

from specmesh.core import events as ev
from specmesh.core.fields import Json
from specmesh.core.no_drafts import NoDrafts
from specmesh.core.statistics import snapshot
from specmesh.core.statistics.counters import (
    LONG,
    SERVED,
    SHORT,
    BusyShare,
    Histogram,
    RecentSamples,
    Throughput,
    milliseconds,
)
from specmesh.core.verifier import events as vev

UNMEASURED = {
    "draft_interval_ms": None,
    "acceptance_rate": None,
    "promised_tokens_per_second": None,
    "sessions": 0,
}


class DaemonFacts(TypedDict):
    """Fields of a snapshot that only the daemon itself can fill."""

    version: str
    pid: int
    model: Json
    address: str
    encrypted: bool
    offloaded_bytes: int


class DaemonStats:
    """Counters of either daemon."""

    def __init__(self, now: float, histograms: snapshot.HistogramsSection) -> None:
        self._started, self._missing = now, 0
        self.busy = BusyShare(now)
        self._histograms, self.round_trips = histograms, histograms.round_trip_s
        self.opened: int = 0
        self.resumed: int = 0
        self.reconnects = 0

    def peer_lost(self) -> None:
        self._missing += 1

    def peer_came(self) -> None:
        self.reconnects += self._missing > 0
        self._missing = max(self._missing - 1, 0)


class VerifierStats(DaemonStats):
    def __init__(self, now: float) -> None:
        self._first_tokens, self._between, self._latencies = (
            Histogram(LONG),
            Histogram(SHORT),
            Histogram(LONG),
        )
        own = self._first_tokens, self._between, self._latencies
        super().__init__(now, snapshot.HistogramsSection(Histogram(SHORT), *own))
        self._ended, self.throughput = Counter[str](), Throughput()
        self._rounds: list[vev.Committed] = []  # of the step that runs

    def began(self, began: vev.Began) -> None:
        if began.adopted:
            self.resumed += 1
            return
        self.opened += 1
        self.resumed += began.resumed > 0

    def committed(self, opened: float, last: float | None, done: vev.Committed) -> None:
        """Count a round of a session that was `opened` then, and whose round before was sent at `last`."""
        tokens = len(done.emit.ids)
        self._rounds.append(done)
        if last is None:
            self._first_tokens.record(done.at - opened)
        elif tokens:
            self._between.record((done.at - last) / tokens, tokens)

    def ended(self, end: vev.SessionEnded) -> None:
        self._ended[end.reason] += 1
        if end.reason in SERVED:
            self._latencies.record(end.seconds)

    def ran(self, step: vev.Ran) -> list[vev.Committed]:
        """Count a step; return its rounds."""
        self.busy.record(step.ended, step.ended - step.started)
        self.throughput.record(step.tokens, step.started, step.ended)
        rounds, self._rounds = self._rounds, []
        return rounds

    def snapshot(
        self,
        max_sessions: int,
        core: vev.CoreReport,
        peers: dict[vev.DrafterId, Json],
        traffic: snapshot.WireSection,
        now: float,
        live: int,
        queued: int = 0,
        **facts: Unpack[DaemonFacts],
    ) -> snapshot.VerifierSnapshot:
        """Return `specmesh stats --json`. core: how it stood there of late; peers: what is known of each drafter."""
        totals, wire = core.totals, deepcopy(traffic)
        wire.stray = core.stray_frames
        return snapshot.VerifierSnapshot(
            uptime_s=round(now - self._started, 1),
            busy=round(self.busy.share(now), 3),
            reconnects=self.reconnects,
            histograms=deepcopy(self._histograms),
            **facts,
            role="verifier",
            sessions=snapshot.SessionsSection(
                opened=self.opened,
                resumed=self.resumed,
                max_sessions=max_sessions,
                live=live,
                kept=core.kept,
                queued=queued,
                rows=core.sessions,
                ended=snapshot.Ended(
                    **{one.name: self._ended[one.name] for one in fields(snapshot.Ended)}
                ),
            ),
            acceptance={
                "rate": round(totals.acceptance_rate, 4) if totals.drafted else None,
                "per_position": [round(rate, 4) for rate in totals.acceptance_per_position()],
                "mean_length": round(totals.mean_acceptance_length, 4),
            },
            totals=totals,
            no_drafts=_no_drafts(core, list(peers.values())),
            draft_n=core.draft_n,
            tokens_per_second=round(self.throughput.per_second(), 2),
            pause_ms=self.throughput.pauses.percentiles_ms(50, 90, 99),
            one_token_step_ms=milliseconds(core.step_s),
            steps_ms={
                str(least): {str(n): round(one * 1e3, 4) for n, one in table.items()}
                for least, table in core.steps.items()
            },
            peers=[
                peer | core.drafters.get(identity, UNMEASURED) for identity, peer in peers.items()
            ],
            wire=wire,
            prefix_cache=core.prefix_cache,
        )


def _no_drafts(core: vev.CoreReport, peers: Sequence[Json]) -> str | None:
    """Return why nothing is drafted for the newest session, or, if there is none, for any that may
    come."""
    if core.sessions:
        why = core.sessions[-1].get("no_drafts")
        return str(why) if why else None
    if not peers:
        return NoDrafts.NONE_ATTACHED
    return NoDrafts.VOCABULARY if all(peer["no_drafts"] for peer in peers) else None


class DrafterStats(DaemonStats):
    def __init__(self, now: float) -> None:
        self._drafts = Histogram(SHORT)
        super().__init__(now, snapshot.HistogramsSection(Histogram(SHORT), draft_s=self._drafts))
        self.prefix_cache = snapshot.PrefixCacheSection()
        self._draft_seconds = RecentSamples()
        self._totals = snapshot.DraftTotals()

    def worked(self, work: ev.Worked) -> None:
        """Count steps and their drafts, which share their time, and the rounds that were heard of."""
        self.busy.record(work.ended, work.seconds)
        self._totals.draft_tokens += work.drafted
        self._totals.rounds += work.rounds
        self._totals.accepted += work.accepted
        self._totals.committed += work.committed
        if work.drafted:
            self._draft_seconds.record(work.draft_seconds / work.drafted)
            self._drafts.record(work.draft_seconds / work.drafted, work.drafted)
        self.prefix_cache = work.prefix_cache or self.prefix_cache

    def snapshot(
        self,
        max_sessions: int,
        draft_ns: Sequence[int],
        traffic: snapshot.WireSection,
        now: float,
        verifiers: list[Json],
        interrupted: int = 0,
        no_drafts: str | None = None,
        **facts: Unpack[DaemonFacts],
    ) -> snapshot.DrafterSnapshot:
        """Return `specmesh stats --json`; draft_ns: of each session, the newest last; interrupted: requests that wait
        for a verifier; no_drafts: why nothing is drafted for the first of these."""
        return snapshot.DrafterSnapshot(
            uptime_s=round(now - self._started, 1),
            busy=round(self.busy.share(now), 3),
            reconnects=self.reconnects,
            histograms=deepcopy(self._histograms),
            **facts,
            role="drafter",
            no_drafts=no_drafts,
            verifiers=verifiers,
            sessions=snapshot.SessionsSection(
                opened=self.opened,
                resumed=self.resumed,
                max_sessions=max_sessions,
                live=len(draft_ns),
                interrupted=interrupted,
            ),
            draft_n=draft_ns[-1] if draft_ns else None,
            totals=deepcopy(self._totals),
            draft_interval_ms=self._draft_seconds.percentiles_ms(50)["p50"],
            wire=deepcopy(traffic),
            prefix_cache=self.prefix_cache,
        )
