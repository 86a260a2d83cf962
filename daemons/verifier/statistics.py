"""The verifier's counters and their snapshot."""

import os
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from specmesh import __version__
from specmesh.core import events as ev
from specmesh.core.draft_length.step_costs import StepCosts
from specmesh.core.drafting.drafter_pool import ATTACH_REASONS
from specmesh.core.report import tokens_per_second
from specmesh.core.sampling import is_exact
from specmesh.core.session import VerifierSession
from specmesh.core.statistics import LONG, SHORT, BusyShare, Histogram, LastMinute, Reconnects, RoundCounts, Throughput
from specmesh.daemons.link.peers import DrafterPeer
from specmesh.daemons.link.transport import Traffic
from specmesh.daemons.verifier.session_context import SessionContext
from specmesh.engines.base import EngineInfo
from specmesh.logs import dropped

SCHEMA_VERSION = 1
ROLLING_ROUNDS = 256
SERVED = ("stop", "length")
ENDS = (*SERVED, "cancelled", "error", "shutdown")

PERCENTILES = (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))


class DaemonStats:
    """Counters of either daemon. latest: newest snapshot, for any thread; unpublished: counters changed since."""

    def __init__(self, now: float) -> None:
        self._started = now
        self.busy = BusyShare()
        self.minute = LastMinute()
        self.round_trips = Histogram(SHORT)
        self.reconnects = Reconnects()
        self.opened = self.resumed = 0
        self.unpublished = True
        self.latest: dict[str, object] = {}

    def common(self, role: str, info: EngineInfo, traffic: Traffic, accepted: int, now: float) -> dict[str, object]:
        """Return the part of `stats --json` that both daemons have."""
        wire_bytes = traffic.bytes_sent + traffic.bytes_received
        return {
            "schema_version": SCHEMA_VERSION,
            "role": role,
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
            "sessions": {"opened": self.opened, "resumed": self.resumed, "max": info.n_seq},
            "last_minute": self.minute.snapshot(now),
            "histograms": {"round_trip_s": self.round_trips.snapshot()},
            "bytes_per_accepted_token": round(wire_bytes / accepted, 1) if accepted else None,
            "reconnects": self.reconnects.count,
            "log_lines_dropped": dropped(),
            "handshake_failures": dict(traffic.refused),
            "wire": traffic.snapshot(),
        }


def merged(common: dict[str, object], own: dict[str, object]) -> dict[str, object]:
    """Join two snapshots, and the objects that both have."""
    joined = {
        key: one | other
        for key, other in own.items()
        if isinstance(other, dict) and isinstance(one := common.get(key), dict)
    }
    return common | own | joined


class VerifierStats(DaemonStats):
    def __init__(self, now: float) -> None:
        super().__init__(now)
        self._recent: deque[tuple[int, int]] = deque(maxlen=ROLLING_ROUNDS)
        self.totals = RoundCounts()
        self.throughput = Throughput()
        self.drafter_changes = dict.fromkeys(ATTACH_REASONS, 0)
        self.stray_frames = self.strangers = 0
        self._prompt_tokens = self._stale_drafts = 0
        self._ended = dict.fromkeys(ENDS, 0)
        self._fallbacks = {"no_drafter": 0, "no_drafts": 0}
        self._first_tokens, self._between, self._latencies = Histogram(LONG), Histogram(SHORT), Histogram(LONG)
        self.model_hash: str | None = None

    def begun(self, session: VerifierSession) -> None:
        self.unpublished = True
        self.opened += 1
        self.resumed += session.resumed > 0
        self._prompt_tokens += session.n_prompt

    def round(self, emit: ev.Emit, now: float) -> None:
        drafted, generated = len(emit.drafts), len(emit.ids)
        self.totals.record(drafted, emit.tested, emit.accepted, generated, emit.forced)
        drafted, accepted = max(drafted - emit.forced, 0), max(emit.accepted - emit.forced, 0)
        self._recent.append((drafted, accepted))
        self.minute.record(now, drafted, accepted, generated)

    def emitted(self, live: SessionContext, emit: ev.Emit) -> None:
        """Count the round that is sent to a session's client now."""
        times, tokens = live.machine.times, len(emit.ids)
        assert times.last_token is not None, "a round sets it"
        self.round(emit, times.last_token)
        if live.sent_at is None:
            self._first_tokens.record(times.last_token - times.opened)
        elif tokens:
            self._between.record((times.last_token - live.sent_at) / tokens, tokens)
        live.sent_at = times.last_token
        if not emit.drafts and live.machine.may_draft:
            self._fallbacks["no_drafts" if live.machine.attached else "no_drafter"] += 1

    def ended(self, session: VerifierSession, reason: str, now: float) -> None:
        self.unpublished = True
        self._ended[reason] += 1
        self._stale_drafts += session.stale_drafts
        if reason in SERVED:
            self._latencies.record(now - session.times.opened)

    def step(self, start: float, end: float, generated: int) -> None:
        self.busy.record(start, end)
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
    ) -> dict[str, object]:
        """Return `specmesh stats --json`; kept: sessions whose client is away."""
        names = {peer.identity: peer.hello.drafter for peer in peers}
        drafting = Counter(live.drafter for live in sessions)
        standing = Counter(live.casting.standby for live in sessions)
        totals = self.totals
        recent_drafts = sum(drafted for drafted, _ in self._recent)
        recent = sum(accepted for _, accepted in self._recent) / recent_drafts if recent_drafts else None
        own: dict[str, object] = {
            "model": {"sha256": self.model_hash, "reproducible": info.width is not None},
            "sessions": {
                "live": len(sessions),
                "kept": kept,
                "queued": queued,
                "rows": [_session_row(live, names, now) for live in sessions],
                "ended": dict(self._ended),
            },
            "acceptance": {
                "rolling": _rounded(recent),
                "total": _rounded(totals.acceptance_rate if totals.drafted else None),
                "per_position": [round(rate, 4) for rate in totals.acceptance_per_position()],
                "mean_length": round(totals.mean_acceptance_length, 4),
            },
            "totals": asdict(totals)
            | {
                "rounds_with_drafts": totals.rounds_with_drafts,
                "prompt_tokens": self._prompt_tokens,
                "stale_drafts": self._stale_drafts + sum(live.machine.stale_drafts for live in sessions),
                "fallback_steps": dict(self._fallbacks),
            },
            "histograms": {
                "time_to_first_token_s": self._first_tokens.snapshot(),
                "inter_token_latency_s": self._between.snapshot(),
                "request_latency_s": self._latencies.snapshot(),
            },
            "draft_n": sessions[-1].machine.draft_n if sessions else None,
            "tokens_per_second": round(self.throughput.per_second(), 2),
            "gap_ms": {name: _ms(self.throughput.gaps.percentile(share)) for name, share in PERCENTILES},
            "one_token_step_ms": _ms(costs.seconds(1)),
            "steps_ms": _table_ms(costs.table()),
            "steps_ms_by_context": {str(least): _table_ms(table) for least, table in costs.tables().items()},
            "busy": {
                "verifier": round(self.busy.share(now), 3),
                "drafters": {peer.hello.drafter: round(peer.link.busy, 3) for peer in peers},
            },
            "round_trip_ms": peers[0].link.round_trip_ms() if peers else {"p50": None, "p99": None},
            "peers": [
                peer.describe() | {"sessions": drafting[peer.identity], "standbys": standing[peer.identity]}
                for peer in peers
            ],
            "drafter_changes": dict(self.drafter_changes),
            "handshake_failures": {"hello": self.strangers, "version": traffic.rejected["version"]},
            "wire": {"stray": self.stray_frames},
        }
        return merged(self.common("verifier", info, traffic, totals.accepted, now), own)


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
        "lead": session.lead,
        "strategy": str(session.params.sampling.strategy),
        "exact": is_exact(session.params.sampling.strategy),
        "stale_drafts": session.stale_drafts,
        "tokens_per_second": round(tokens_per_second(session, now), 2),
    }


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1e3, 4)


def _table_ms(table: dict[int, float]) -> dict[str, float]:
    return {str(rows): round(seconds * 1e3, 4) for rows, seconds in table.items()}


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
