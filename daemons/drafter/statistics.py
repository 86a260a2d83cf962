"""The drafter's counters and their snapshot."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from specmesh.core import events as ev
from specmesh.core import snapshot as told
from specmesh.core.daemon_statistics import DaemonStats, Traffic
from specmesh.core.link import Link
from specmesh.core.requests import VerifierInfo
from specmesh.core.statistics import SHORT, Histogram, RecentSamples, milliseconds
from specmesh.core.vocabulary.match import VocabularyMatch
from specmesh.engines.base import EngineInfo


class DrafterStats(DaemonStats):
    def __init__(self, now: float) -> None:
        super().__init__(now)
        self.reuse = told.ReuseSection(0, 0)
        self.draft_seconds = RecentSamples()
        self.drafts = Histogram(SHORT)
        self.totals = told.DraftTotals()

    def worked(self, work: ev.Worked) -> None:
        """Count steps and their drafts, which share their time."""
        self.minute.record(work.ended, drafted=work.drafts, busy=work.seconds)
        if work.drafts:
            self.totals.drafted += work.drafts
            self.draft_seconds.record(work.draft_seconds / work.drafts)
            self.drafts.record(work.draft_seconds / work.drafts, work.drafts)

    def round(self, accepted: int, committed: int, now: float) -> None:
        """Count a TRUTH that had news."""
        self.minute.record(now, accepted=accepted, generated=committed)
        self.totals.rounds += 1
        self.totals.accepted += accepted
        self.totals.committed += committed

    def snapshot(
        self,
        info: EngineInfo,
        verifier: VerifierInfo | None,
        match: VocabularyMatch | None,
        link: Link,
        asked: Sequence[int],
        traffic: Traffic,
        now: float,
        interrupted: int = 0,
        **others: Any,
    ) -> told.DrafterSnapshot:
        """Return `specmesh stats --json`; asked: draft_n of each session, the newest last; interrupted: requests that
        wait for a verifier; others: fields that are known elsewhere."""
        named = None if verifier is None else {"name": verifier.name, "model": verifier.model, "stuck": link.stuck}
        return told.DrafterSnapshot(
            **self.common(traffic, self.totals.accepted, now),
            **others,
            role="drafter",
            model=info.named(),
            verifier=named,
            vocabulary={"verdict": str(match.verdict), "overlap": round(match.overlap, 4)} if match else None,
            sessions=told.SessionsSection(
                opened=self.opened, resumed=self.resumed, max=info.n_seq, live=len(asked), interrupted=interrupted
            ),
            draft_n=asked[-1] if asked else None,
            totals=replace(self.totals),
            histograms=told.HistogramsSection(round_trip_s=self.round_trips.snapshot(), draft_s=self.drafts.snapshot()),
            draft_ms=milliseconds(self.draft_seconds.percentile(0.5)),
            busy={"drafter": round(self.minute.busy(now), 3), "verifier": round(link.busy, 3)},
            round_trip_ms=link.round_trip_ms(),
            handshake_failures=dict(traffic.refused),
            wire=traffic.snapshot(),
            reuse=self.reuse,
        )
