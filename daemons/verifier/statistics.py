"""The verifier's counters and their snapshot."""

import os
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

from specmesh import __version__
from specmesh.core import events as ev
from specmesh.core import snapshot as told
from specmesh.core.draft_length.step_costs import StepCosts
from specmesh.core.drafting.drafter_pool import ATTACH_REASONS
from specmesh.core.report import tokens_per_second
from specmesh.core.sampling import is_exact
from specmesh.core.session import VerifierSession
from specmesh.core.statistics import LONG, SHORT, Histogram, LastMinute, Throughput, milliseconds
from specmesh.daemons.link.peers import DrafterPeer
from specmesh.daemons.link.transport import Traffic
from specmesh.daemons.verifier.session_context import SessionContext
from specmesh.engines.base import EngineInfo
from specmesh.logs import dropped

ROLLING_ROUNDS = 256
SERVED = ("stop", "length")

PERCENTILES = (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))


class DaemonStats:
    """Counters of either daemon. unpublished: some changed since `latest`, which any thread may read."""

    latest: told.RunningSnapshot

    def __init__(self, now: float) -> None:
        self._started, self._missing = now, 0
        self.minute = LastMinute()
        self.round_trips = Histogram(SHORT)
        self.opened = self.resumed = self.reconnects = 0
        self.unpublished = True

    def peer_lost(self) -> None:
        self._missing += 1
        self.unpublished = True

    def peer_came(self) -> None:
        self.reconnects += self._missing > 0
        self._missing = max(self._missing - 1, 0)
        self.unpublished = True

    def common(self, traffic: Traffic, accepted: int, now: float) -> dict[str, Any]:
        """Return the fields that both daemons fill alike."""
        wire_bytes = traffic.bytes_sent + traffic.bytes_received
        return {
            "version": __version__,
            "pid": os.getpid(),
            "uptime_s": round(now - self._started, 1),
            "last_minute": self.minute.snapshot(now),
            "bytes_per_accepted_token": round(wire_bytes / accepted, 1) if accepted else None,
            "reconnects": self.reconnects,
            "log_lines_dropped": dropped(),
        }


def model_of(info: EngineInfo) -> told.Json:
    return {"name": info.model} | {name: getattr(info, name) for name in ("backend", "n_ctx", "can_trim", "trimming")}


class VerifierStats(DaemonStats):
    def __init__(self, now: float) -> None:
        super().__init__(now)
        self._recent: deque[tuple[int, int]] = deque(maxlen=ROLLING_ROUNDS)
        self.totals, self._ended = told.RoundTotals(), told.Ended()
        self.throughput = Throughput()
        self.drafter_changes = dict.fromkeys(ATTACH_REASONS, 0)
        self.stray_frames = self.strangers = 0
        self._first_tokens, self._between, self._latencies = Histogram(LONG), Histogram(SHORT), Histogram(LONG)
        self.model_hash: str | None = None

    def begun(self, session: VerifierSession) -> None:
        self.unpublished = True
        self.opened += 1
        self.resumed += session.resumed > 0
        self.totals.prompt_tokens += session.n_prompt

    def emitted(self, live: SessionContext, emit: ev.Emit) -> None:
        """Count the round that is sent to a session's client now."""
        times, tokens = live.machine.times, len(emit.ids)
        assert times.last_token is not None, "a round sets it"
        self.totals.record(len(emit.drafts), emit.tested, emit.accepted, tokens, emit.forced)
        drafted, accepted = max(len(emit.drafts) - emit.forced, 0), max(emit.accepted - emit.forced, 0)
        self._recent.append((drafted, accepted))
        self.minute.record(times.last_token, drafted, accepted, tokens)
        if live.sent_at is None:
            self._first_tokens.record(times.last_token - times.opened)
        elif tokens:
            self._between.record((times.last_token - live.sent_at) / tokens, tokens)
        live.sent_at = times.last_token
        if not emit.drafts and live.machine.may_draft:
            self.totals.fallback_steps["no_drafts" if live.machine.attached else "no_drafter"] += 1

    def ended(self, session: VerifierSession, reason: str, now: float) -> None:
        self.unpublished = True
        setattr(self._ended, reason, getattr(self._ended, reason) + 1)
        self.totals.stale_drafts += session.drafts.stale
        if reason in SERVED:
            self._latencies.record(now - session.times.opened)

    def step(self, start: float, end: float, generated: int) -> None:
        self.minute.record(end, busy=end - start)
        self.throughput.record(generated, start, end)

    def snapshot(
        self,
        info: EngineInfo,
        sessions: Sequence[SessionContext],
        peers: Sequence[DrafterPeer],
        costs: StepCosts,
        traffic: Traffic,
        now: float,
        kept: int = 0,
        queued: int = 0,
        **others: Any,
    ) -> told.VerifierSnapshot:
        """Return `specmesh stats --json`; kept: sessions whose client is away; others: fields that are known there."""
        names = {peer.identity: peer.hello.drafter for peer in peers}
        drafting = Counter(live.drafter for live in sessions)
        standing = Counter(live.casting.standby for live in sessions)
        totals = deepcopy(self.totals)
        totals.stale_drafts += sum(live.machine.drafts.stale for live in sessions)
        drafted, accepted = (sum(counts) for counts in zip((0, 0), *self._recent, strict=True))
        return told.VerifierSnapshot(
            **self.common(traffic, totals.accepted, now),
            **others,
            role="verifier",
            model=model_of(info) | {"sha256": self.model_hash, "reproducible": info.width is not None},
            sessions=told.SessionsSection(
                opened=self.opened,
                resumed=self.resumed,
                max=info.n_seq,
                live=len(sessions),
                kept=kept,
                queued=queued,
                rows=[_session_row(live, names, now) for live in sessions],
                ended=replace(self._ended),
            ),
            histograms=told.HistogramsSection(
                round_trip_s=self.round_trips.snapshot(),
                time_to_first_token_s=self._first_tokens.snapshot(),
                inter_token_latency_s=self._between.snapshot(),
                request_latency_s=self._latencies.snapshot(),
            ),
            acceptance={
                "rolling": round(accepted / drafted, 4) if drafted else None,
                "total": round(totals.acceptance_rate, 4) if totals.drafted else None,
                "per_position": [round(rate, 4) for rate in totals.acceptance_per_position()],
                "mean_length": round(totals.mean_acceptance_length, 4),
            },
            totals=totals,
            draft_n=sessions[-1].machine.draft_n if sessions else None,
            tokens_per_second=round(self.throughput.per_second(), 2),
            gap_ms={name: milliseconds(self.throughput.gaps.percentile(share)) for name, share in PERCENTILES},
            one_token_step_ms=milliseconds(costs.seconds(1)),
            steps_ms=_table_ms(costs.table()),
            steps_ms_by_context={str(least): _table_ms(table) for least, table in costs.tables().items()},
            busy={
                "verifier": round(self.minute.busy(now), 3),
                "drafters": {peer.hello.drafter: round(peer.link.busy, 3) for peer in peers},
            },
            round_trip_ms=peers[0].link.round_trip_ms() if peers else {"p50": None, "p99": None},
            peers=[
                peer.describe() | {"sessions": drafting[peer.identity], "standbys": standing[peer.identity]}
                for peer in peers
            ],
            drafter_changes={str(reason): count for reason, count in self.drafter_changes.items()},
            handshake_failures=dict(traffic.refused)
            | {"hello": self.strangers, "version": traffic.rejected["version"]},
            wire=traffic.snapshot(self.stray_frames),
        )


def _session_row(live: SessionContext, names: Mapping[bytes, str], now: float) -> dict[str, object]:
    session, counts = live.machine, live.machine.counts
    return {
        "session": live.id,
        "prompt_tokens": session.n_prompt,
        "generated": counts.generated,
        "drafted": session.attached,
        "drafter": names.get(live.drafter) if live.drafter is not None else None,
        "standby": names.get(live.casting.standby) if live.casting.standby is not None else None,
        "acceptance_rate": round(counts.acceptance_rate, 4),
        "draft_n": session.draft_n,
        "lead": len(session.drafts),
        "strategy": str(session.params.sampling.strategy),
        "exact": is_exact(session.params.sampling.strategy),
        "stale_drafts": session.drafts.stale,
        "tokens_per_second": round(tokens_per_second(session, now), 2),
    }


def _table_ms(table: dict[int, float]) -> dict[str, float]:
    return {str(rows): round(seconds * 1e3, 4) for rows, seconds in table.items()}
