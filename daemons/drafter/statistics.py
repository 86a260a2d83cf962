"""The drafter's counters and their snapshot."""

from collections.abc import Sequence

from specmesh.core.draft_session import DrafterSession
from specmesh.core.statistics import SHORT, Histogram, RecentSamples
from specmesh.core.vocabulary.match import VocabularyMatch
from specmesh.daemons.link.peers import Link
from specmesh.daemons.link.transport import Traffic
from specmesh.daemons.verifier.statistics import DaemonStats, merged
from specmesh.engines.base import EngineInfo
from specmesh.wire.messages import Welcome


class DrafterStats(DaemonStats):
    def __init__(self, now: float) -> None:
        super().__init__(now)
        self.draft_seconds = RecentSamples()
        self.drafts = Histogram(SHORT)
        self.drafted = self.accepted = self.committed = self.rounds = 0

    def worked(self, start: float, end: float, guessed: int) -> None:
        """Count a decode and its drafts, which share its time."""
        self.busy.record(start, end)
        if guessed:
            self.drafted += guessed
            self.draft_seconds.record((end - start) / guessed)
            self.drafts.record((end - start) / guessed, guessed)
            self.minute.record(end, drafted=guessed)

    def round(self, accepted: int, committed: int, now: float) -> None:
        """Count a TRUTH that had news."""
        self.minute.record(now, accepted=accepted, generated=committed)
        self.rounds += 1
        self.accepted += accepted
        self.committed += committed

    def snapshot(
        self,
        info: EngineInfo,
        welcome: Welcome | None,
        comparison: VocabularyMatch | None,
        link: Link,
        sessions: Sequence[DrafterSession],
        traffic: Traffic,
        now: float,
        interrupted: int = 0,
    ) -> dict[str, object]:
        """Return `specmesh stats --json`; interrupted: requests that wait for a verifier."""
        interval = self.draft_seconds.percentile(0.5)
        counts = {name: getattr(self, name) for name in ("drafted", "accepted", "committed", "rounds")}
        named = None if welcome is None else {"name": welcome.verifier, "model": welcome.model, "stuck": link.stuck}
        own: dict[str, object] = {
            "verifier": named,
            "vocabulary": comparison and {"verdict": str(comparison.verdict), "overlap": round(comparison.overlap, 4)},
            "sessions": {"live": len(sessions), "interrupted": interrupted},
            "draft_n": sessions[-1].draft_n if sessions else None,
            "totals": counts,
            "histograms": {"draft_s": self.drafts.snapshot()},
            "draft_ms": None if interval is None else round(interval * 1e3, 4),
            "busy": {"drafter": round(self.busy.share(now), 3), "verifier": round(link.busy, 3)},
            "round_trip_ms": link.round_trip_ms(),
        }
        return merged(self.common("drafter", info, traffic, self.accepted, now), own)
