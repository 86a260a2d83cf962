"""The drafter's counters and their snapshot."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from specmesh.core import snapshot as told
from specmesh.core.draft_session import DrafterSession
from specmesh.core.statistics import SHORT, Histogram, RecentSamples, milliseconds
from specmesh.core.vocabulary.match import VocabularyMatch
from specmesh.daemons.link.peers import Link
from specmesh.daemons.link.transport import Traffic
from specmesh.daemons.verifier.statistics import DaemonStats, model_of
from specmesh.engines.base import EngineInfo
from specmesh.wire.messages import Welcome


class DrafterStats(DaemonStats):
    def __init__(self, now: float) -> None:
        super().__init__(now)
        self.draft_seconds = RecentSamples()
        self.drafts = Histogram(SHORT)
        self.totals = told.DraftTotals()

    def worked(self, start: float, end: float, guessed: int) -> None:
        """Count a decode and its drafts, which share its time."""
        self.minute.record(end, drafted=guessed, busy=end - start)
        if guessed:
            self.totals.drafted += guessed
            self.draft_seconds.record((end - start) / guessed)
            self.drafts.record((end - start) / guessed, guessed)

    def round(self, accepted: int, committed: int, now: float) -> None:
        """Count a TRUTH that had news."""
        self.minute.record(now, accepted=accepted, generated=committed)
        self.totals.rounds += 1
        self.totals.accepted += accepted
        self.totals.committed += committed

    def snapshot(
        self,
        info: EngineInfo,
        welcome: Welcome | None,
        match: VocabularyMatch | None,
        link: Link,
        sessions: Sequence[DrafterSession],
        traffic: Traffic,
        now: float,
        interrupted: int = 0,
        **others: Any,
    ) -> told.DrafterSnapshot:
        """Return `specmesh stats --json`; interrupted: requests that wait for a verifier; others: as a verifier's."""
        named = None if welcome is None else {"name": welcome.verifier, "model": welcome.model, "stuck": link.stuck}
        return told.DrafterSnapshot(
            **self.common(traffic, self.totals.accepted, now),
            **others,
            role="drafter",
            model=model_of(info),
            verifier=named,
            vocabulary={"verdict": str(match.verdict), "overlap": round(match.overlap, 4)} if match else None,
            sessions=told.SessionsSection(
                opened=self.opened, resumed=self.resumed, max=info.n_seq, live=len(sessions), interrupted=interrupted
            ),
            draft_n=sessions[-1].draft_n if sessions else None,
            totals=replace(self.totals),
            histograms=told.HistogramsSection(round_trip_s=self.round_trips.snapshot(), draft_s=self.drafts.snapshot()),
            draft_ms=milliseconds(self.draft_seconds.percentile(0.5)),
            busy={"drafter": round(self.minute.busy(now), 3), "verifier": round(link.busy, 3)},
            round_trip_ms=link.round_trip_ms(),
            handshake_failures=dict(traffic.refused),
            wire=traffic.snapshot(),
        )
