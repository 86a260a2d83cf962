"""The counters of the daemons, and the snapshots made of them.

Two threads count. The I/O thread counts what it sees itself: frames, sessions that begin and end,
first tokens as clients get them. The core, on the engine's thread, counts rounds and steps. It
answers REPORT_WANTED with a `CoreReport`, which takes a whole step if one runs. So a snapshot has
the core's numbers as of its last report, and its own as of now.

Numbers that only grow are kept for the life of the daemon, those of sessions that have ended
included. All others are about the present, or the last few hundred of something.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import fields
from typing import TypedDict, Unpack

from specmesh.core import events as ev
from specmesh.core.fields import Json
from specmesh.core.no_drafts import NoDrafts
from specmesh.core.rounds import Round
from specmesh.core.statistics import snapshot
from specmesh.core.statistics.counters import (
    LONG,
    SERVED,
    SHORT,
    BusyShare,
    Histogram,
    RecentSamples,
    RoundCounts,
    Throughput,
    milliseconds,
)
from specmesh.core.verifier import events as vev

UNMEASURED: Json = {
    "draft_interval_ms": None,
    "acceptance_rate": None,
    "promised_tokens_per_second": None,
    "sessions": 0,
}
"""Measurements of a drafter that the core does not know yet."""


class DaemonFacts(TypedDict):
    """Fields of a snapshot that only the daemon itself can fill."""

    version: str
    pid: int
    model: Json
    address: str
    encrypted: bool
    offloaded_bytes: int


class DaemonStats:
    """Counters of either daemon.

    opened, resumed: sessions. reconnects: connections after one was lost.
    """

    def __init__(self, now: float, histograms: snapshot.HistogramsSection) -> None:
        self.busy = BusyShare(now)
        self.round_trips = histograms.round_trip_s
        self.opened: int = 0
        self.resumed: int = 0
        self.reconnects = 0
        self._started = now
        self._histograms = histograms
        self._lost_peers = 0  # whose place no other has taken yet

    def peer_lost(self) -> None:
        """Note that a connection was lost."""
        self._lost_peers += 1

    def peer_came(self) -> None:
        """Note a connection; it is a reconnection if one was lost before."""
        if self._lost_peers:
            self.reconnects += 1
            self._lost_peers -= 1


class VerifierStats(DaemonStats):
    """Counters of a verifier.

    throughput: of the target.
    """

    def __init__(self, now: float) -> None:
        self.throughput = Throughput()
        self._first_tokens = Histogram(LONG)
        self._between_tokens = Histogram(SHORT)
        self._latencies = Histogram(LONG)
        self._ended: Counter[str] = Counter()  # sessions by reason
        histograms = snapshot.HistogramsSection(
            round_trip_s=Histogram(SHORT),
            time_to_first_token_s=self._first_tokens,
            inter_token_latency_s=self._between_tokens,
            request_latency_s=self._latencies,
        )
        super().__init__(now, histograms)

    def began(self, began: vev.Began) -> None:
        """Count a session that a client gets."""
        if began.adopted:
            self.resumed += 1
            return
        self.opened += 1
        if began.resumed:
            self.resumed += 1

    def committed(self, opened: float, last: float | None, done: Round) -> None:
        """Count a round of a session.

        opened: when the session was. last: when its round before was sent; None for the first.
        """
        tokens = len(done.text.ids)
        if last is None:
            self._first_tokens.record(done.at - opened)
        elif tokens:
            self._between_tokens.record((done.at - last) / tokens, tokens)

    def ended(self, end: vev.SessionEnded) -> None:
        """Count the end of a session, once."""
        # A client that asks for an end once more has not been served twice.
        if end.again:
            return
        self._ended[end.reason] += 1
        # A text that was cancelled or failed early would make the others look fast.
        if end.reason in SERVED:
            self._latencies.record(end.seconds)

    def ran(self, step: vev.Ran) -> None:
        """Count a step."""
        self.busy.record(step.ended, step.ended - step.started)
        self.throughput.record(step.tokens, step.started, step.ended)

    def snapshot(
        self,
        *,
        max_sessions: int,
        core: vev.CoreReport,
        peers: Mapping[vev.DrafterId, Json],
        traffic: snapshot.WireSection,
        now: float,
        live: int,
        queued: int = 0,
        **facts: Unpack[DaemonFacts],
    ) -> snapshot.VerifierSnapshot:
        """Return the content of `specmesh stats --json`.

        core: its last report. peers: the drafters, by identity.
        live, queued: sessions that run, requests that wait for one.
        """
        # The I/O thread goes on counting. A snapshot is of one moment.
        wire = deepcopy(traffic)
        wire.stray = core.stray_frames
        sessions = snapshot.SessionsSection(
            opened=self.opened,
            resumed=self.resumed,
            max_sessions=max_sessions,
            live=live,
            kept=core.kept,
            queued=queued,
            rows=core.sessions,
            ended=_ended(self._ended),
        )
        return snapshot.VerifierSnapshot(
            uptime_s=round(now - self._started, 1),
            busy=round(self.busy.share(now), 3),
            reconnects=self.reconnects,
            histograms=deepcopy(self._histograms),
            **facts,
            role="verifier",
            sessions=sessions,
            acceptance=_acceptance(core.totals),
            totals=core.totals,
            no_drafts=_no_drafts(core, list(peers.values()), facts["model"]),
            draft_n=core.draft_n,
            tokens_per_second=round(self.throughput.per_second(), 2),
            pause_ms=self.throughput.pauses.percentiles_ms(50, 90, 99),
            one_token_step_ms=milliseconds(core.step_s),
            steps_ms=_steps_ms(core.steps),
            peers=_peers(peers, core.drafters),
            wire=wire,
            prefix_cache=core.prefix_cache,
            kv_cache=core.kv_cache,
            suffix_cache=core.suffix_cache,
        )


def _no_drafts(core: vev.CoreReport, peers: Sequence[Json], model: Json) -> str | None:
    """Return why nothing is drafted for the newest session, or for any if there is none."""
    if core.sessions:
        # People look at `stats` when a text that they have just begun is slow.
        reason = core.sessions[-1].get("no_drafts")
        return str(reason) if reason else None
    if not peers and model.get("draft_model"):
        return None
    if not peers:
        return NoDrafts.NONE_ATTACHED
    # One drafter that can draft is enough.
    if all(peer["no_drafts"] for peer in peers):
        return NoDrafts.VOCABULARY
    return None


def _ended(counts: Counter[str]) -> snapshot.Ended:
    """Return the section of ended sessions; a reason without a field does not count."""
    ended = snapshot.Ended()
    for reason in fields(snapshot.Ended):
        setattr(ended, reason.name, counts[reason.name])
    return ended


def _acceptance(totals: RoundCounts) -> Json:
    """Return the section of rates; there is no rate before a draft was verified."""
    return {
        "rate": round(totals.acceptance_rate, 4) if totals.drafted else None,
        "per_position": [round(rate, 4) for rate in totals.acceptance_per_position()],
        "mean_length": round(totals.mean_acceptance_length, 4),
    }


def _steps_ms(steps: Mapping[int, Mapping[int, float]]) -> dict[str, dict[str, float]]:
    """Return seconds of steps in milliseconds, with the keys that JSON has."""
    tables: dict[str, dict[str, float]] = {}
    for least_context, seconds in steps.items():
        table = {str(rows): round(step * 1e3, 4) for rows, step in seconds.items()}
        tables[str(least_context)] = table
    return tables


def _peers(
    peers: Mapping[vev.DrafterId, Json], measured: Mapping[vev.DrafterId, Json]
) -> list[Json]:
    """Return the rows of drafters: as attached, and as the core has measured them."""
    rows: list[Json] = []
    for identity, peer in peers.items():
        rows.append(peer | measured.get(identity, UNMEASURED))
    return rows


class DrafterStats(DaemonStats):
    """Counters of a drafter.

    prefix_cache, window: of its draft model, as last reported.
    """

    def __init__(self, now: float) -> None:
        self.prefix_cache = snapshot.PrefixCacheSection()
        self.window = snapshot.WindowSection()
        self._drafts = Histogram(SHORT)
        self._draft_seconds = RecentSamples()
        self._totals = snapshot.DraftTotals()
        histograms = snapshot.HistogramsSection(round_trip_s=Histogram(SHORT), draft_s=self._drafts)
        super().__init__(now, histograms)

    def worked(self, work: ev.WorkReport) -> None:
        """Count steps and their drafts, which share their time, and rounds of the verifier."""
        self.busy.record(work.ended, work.seconds)
        self._totals.draft_tokens += work.draft_tokens
        self._totals.rounds += work.rounds
        self._totals.accepted += work.accepted
        self._totals.committed += work.committed
        self._totals.read += work.read
        if work.draft_tokens:
            # A report may be of many steps. Each of their drafts counts, with their mean.
            seconds = work.draft_seconds / work.draft_tokens
            self._draft_seconds.record(seconds)
            self._drafts.record(seconds, work.draft_tokens)
        # A report has it only if it has changed.
        if work.prefix_cache is not None:
            self.prefix_cache = work.prefix_cache
        if work.windows is not None:
            self.window = work.windows

    def snapshot(
        self,
        *,
        max_sessions: int,
        draft_ns: Sequence[int],
        traffic: snapshot.WireSection,
        now: float,
        verifiers: list[Json],
        interrupted: int = 0,
        no_drafts: str | None = None,
        **facts: Unpack[DaemonFacts],
    ) -> snapshot.DrafterSnapshot:
        """Return the content of `specmesh stats --json`.

        draft_ns: of each session, the newest last. interrupted: requests that wait for a verifier.
        no_drafts: why nothing is drafted for the first verifier.
        """
        sessions = snapshot.SessionsSection(
            opened=self.opened,
            resumed=self.resumed,
            max_sessions=max_sessions,
            live=len(draft_ns),
            interrupted=interrupted,
        )
        return snapshot.DrafterSnapshot(
            uptime_s=round(now - self._started, 1),
            busy=round(self.busy.share(now), 3),
            reconnects=self.reconnects,
            histograms=deepcopy(self._histograms),
            **facts,
            role="drafter",
            no_drafts=no_drafts,
            verifiers=verifiers,
            sessions=sessions,
            draft_n=draft_ns[-1] if draft_ns else None,
            totals=deepcopy(self._totals),
            window=self.window,
            draft_interval_ms=milliseconds(self._draft_seconds.percentile(50)),
            wire=deepcopy(traffic),
            prefix_cache=self.prefix_cache,
        )
