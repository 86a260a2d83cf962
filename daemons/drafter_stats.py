"""The drafter's counters and the picture of them that `stats` shows."""

import os
from collections.abc import Sequence

from specmesh import __version__
from specmesh.core.drafter_session import DrafterSession
from specmesh.core.stats import SHORT, BusyShare, Histogram, LastMinute, Reconnects, Rolling
from specmesh.core.vocabulary_match import Comparison
from specmesh.daemons.peers import Link
from specmesh.daemons.transport import Traffic
from specmesh.daemons.verifier_stats import SCHEMA_VERSION
from specmesh.engines.base import EngineInfo
from specmesh.logs import dropped
from specmesh.wire.messages import Welcome


class DrafterStats:
    """Counters of one drafter since it started. `latest` is the newest picture, safe to read from any thread; what has
    changed since is `unpublished`."""

    def __init__(self, now: float) -> None:
        self._started = now
        self.busy = BusyShare()
        self.draft_seconds = Rolling()
        self.minute = LastMinute()
        self.drafts, self.round_trips = Histogram(SHORT), Histogram(SHORT)
        self.reconnects = Reconnects()
        self.opened = self.resumed = self.drafted = self.accepted = self.committed = self.rounds = 0
        self.unpublished = True
        self.latest: dict[str, object] = {}

    def worked(self, start: float, end: float, guessed: int) -> None:
        """Count a call of the engine, and how many drafts it gave: of one call each takes its share of the time."""
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

    def picture(
        self,
        info: EngineInfo,
        welcome: Welcome | None,
        comparison: Comparison | None,
        link: Link,
        sessions: Sequence[DrafterSession],
        traffic: Traffic,
        now: float,
        interrupted: int = 0,
    ) -> dict[str, object]:
        """Everything `specmesh stats --json` prints about a drafter; `interrupted`: texts that wait for it."""
        interval = self.draft_seconds.percentile(0.5)
        wire_bytes = traffic.bytes_sent + traffic.bytes_received
        return {
            "schema_version": SCHEMA_VERSION,
            "role": "drafter",
            "version": __version__,
            "pid": os.getpid(),
            "uptime_s": round(now - self._started, 1),
            "model": {
                "name": info.model,
                "backend": info.backend,
                "n_ctx": info.n_ctx,
                "can_trim": info.can_trim,
                "trimming": info.trimming,
            },
            "verifier": None
            if welcome is None
            else {"name": welcome.verifier, "model": welcome.model, "stuck": link.stuck},
            "vocabulary": None
            if comparison is None
            else {"verdict": str(comparison.verdict), "overlap": round(comparison.overlap, 4)},
            "sessions": {
                "live": len(sessions),
                "opened": self.opened,
                "resumed": self.resumed,
                "interrupted": interrupted,
                "max": info.n_seq,
            },
            "draft_n": sessions[-1].draft_n if sessions else None,
            "totals": {
                "drafted": self.drafted,
                "accepted": self.accepted,
                "committed": self.committed,
                "rounds": self.rounds,
            },
            "last_minute": self.minute.picture(now),
            "histograms": {"draft_s": self.drafts.picture(), "round_trip_s": self.round_trips.picture()},
            "reconnects": self.reconnects.count,
            "draft_ms": None if interval is None else round(interval * 1e3, 4),
            "bytes_per_accepted_token": round(wire_bytes / self.accepted, 1) if self.accepted else None,
            "busy": {"drafter": round(self.busy.share(now), 3), "verifier": round(link.busy, 3)},
            "round_trip_ms": link.round_trip_ms(),
            "log_lines_dropped": dropped(),
            "handshake_failures": dict(traffic.refused),
            "wire": traffic.picture(),
        }
