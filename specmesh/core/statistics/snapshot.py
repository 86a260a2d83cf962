"""Snapshots of a daemon: the JSON of `stats --json` and, by the annotations of fields, its metrics.

Sections that only one role has are None by default. No metric's label has anything of a request, a
prompt or a peer.

A field is written once, and shown three times:

    live: Annotated[int, gauge("num_requests_running", "Sessions held now.")]

- `stats --json` has it by its place, as `sessions.live`;
- `stats` and `--watch` show what they choose of that JSON;
- `/metrics` has it as `specmesh_num_requests_running`, with the help text. The names are vLLM's
  where vLLM has the same number, so that its dashboards can be used.

A field without an annotation is in the JSON only. `schema_version` changes when a field goes or
comes to mean something else, not when one is added.
"""

from collections import Counter
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Annotated

from specmesh.core.fields import Json
from specmesh.core.statistics.counters import Histogram, RoundCounts, counter, gauge, histogram


def as_json(part: object) -> Json:
    """Return a snapshot or a section as JSON.

    A field that is None by default is left out while it is None.
    """
    assert is_dataclass(part), "snapshots and their sections are"
    shown: Json = {}
    for field_ in fields(part):
        value = getattr(part, field_.name)
        if value is None and field_.default is None:
            continue
        shown[field_.name] = as_json(value) if is_dataclass(value) else value
    return shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The fields of every snapshot."""

    schema_version: int = 1
    role: str
    version: str
    pid: int
    uptime_s: Annotated[float, gauge("uptime_seconds", "Seconds since the start.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadingSnapshot(Snapshot):
    """A daemon that loads its model.

    loading: the share that is loaded.
    waiting_for: the missing thing, if loading has not begun for want of it.
    """

    loading: float
    waiting_for: str | None = None


@dataclass(slots=True, kw_only=True)
class Ended:
    """Numbers of ended sessions by FinishReason; a session that was MOVED has not ended."""

    stop: Annotated[
        int, counter("request_success", "Requests completed.", labels={"finished_reason": "stop"})
    ] = 0
    length: Annotated[
        int, counter("request_success", "Requests completed.", labels={"finished_reason": "length"})
    ] = 0
    cancelled: Annotated[int, counter("cancelled_requests", "Requests whose client left.")] = 0
    error: Annotated[
        int, counter("failed_requests", "Requests that failed.", labels={"reason": "error"})
    ] = 0
    shutdown: Annotated[
        int, counter("failed_requests", "Requests that failed.", labels={"reason": "shutdown"})
    ] = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionsSection:
    """The sessions of a daemon.

    kept: whose client is away. interrupted: requests that wait for a verifier.
    rows: one for each session.
    """

    opened: int
    resumed: Annotated[
        int,
        counter("resumed_requests", "Completions resumed after a connection or a daemon was lost."),
    ]
    max_sessions: int
    live: Annotated[int, gauge("num_requests_running", "Sessions held now.")]
    kept: Annotated[
        int | None, gauge("num_sessions_kept", "Sessions of a drafter that is away, kept for it.")
    ] = None
    queued: Annotated[
        int | None, gauge("num_requests_waiting", "Requests that have no session yet.")
    ] = None
    interrupted: Annotated[
        int | None, gauge("num_requests_interrupted", "Requests that wait for a verifier.")
    ] = None
    rows: list[Json] | None = None
    ended: Ended | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HistogramsSection:
    """The histograms of a daemon."""

    round_trip_s: Annotated[Histogram, histogram("round_trip_seconds", "From a PING to its PONG.")]
    time_to_first_token_s: Annotated[
        Histogram | None,
        histogram("time_to_first_token_seconds", "From the request to the first token."),
    ] = None
    inter_token_latency_s: Annotated[
        Histogram | None,
        histogram("inter_token_latency_seconds", "Seconds per token after the first round."),
    ] = None
    request_latency_s: Annotated[
        Histogram | None,
        histogram("e2e_request_latency_seconds", "From the request to its last token."),
    ] = None
    draft_s: Annotated[Histogram | None, histogram("draft_seconds", "Seconds per draft.")] = None


@dataclass(slots=True, kw_only=True)
class WireSection:
    """Frames and bytes of one socket, without ZMTP's own 2 or 9 bytes for each frame."""

    frames_sent: Annotated[
        int, counter("wire_frames", "Frames of the wire.", labels={"direction": "sent"})
    ] = 0
    frames_received: Annotated[
        int, counter("wire_frames", "Frames of the wire.", labels={"direction": "received"})
    ] = 0
    bytes_sent: Annotated[
        int, counter("wire_bytes", "Bytes of the wire.", labels={"direction": "sent"})
    ] = 0
    bytes_received: Annotated[
        int, counter("wire_bytes", "Bytes of the wire.", labels={"direction": "received"})
    ] = 0
    rejected: Annotated[
        Counter[str], counter("frames_rejected", "Frames refused.", by="reason")
    ] = field(default_factory=Counter)
    handshake_failures: Annotated[
        Counter[str], counter("handshake_failures", "Peers refused.", by="reason")
    ] = field(default_factory=Counter)
    stray: Annotated[
        int | None, counter("stray_frames", "Frames for sessions that are over or another's.")
    ] = None


@dataclass(slots=True, kw_only=True)
class WindowSection:
    """The windows of texts that a draft model reads.

    size: tokens of a window; 0 if texts are read whole or not at all.
    acceptance_whole, acceptance_windows: acceptance rates of texts that could be read either way.
        None while too few drafts were verified.
    """

    size: int = 0
    takeovers: Annotated[
        int, counter("window_takeovers", "Windows that were read ahead of need, and took over.")
    ] = 0
    held_up: Annotated[
        int, counter("window_held_up_rounds", "Rounds without drafts because a window was read.")
    ] = 0
    acceptance_whole: float | None = None
    acceptance_windows: float | None = None


@dataclass(frozen=True, slots=True)
class PrefixCacheSection:
    """The cached ids of sequences without a session."""

    hits: Annotated[
        int, counter("prefix_cache_hit_requests", "Sessions that found some there.")
    ] = 0
    tokens_saved: Annotated[
        int, counter("prefix_cache_hits", "Tokens found in the prefix cache.")
    ] = 0
    kept_sequences: int = 0
    kept_tokens: Annotated[
        int, gauge("prefix_cache_kept_tokens", "Tokens in the prefix cache.")
    ] = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class KVCacheSection:
    """The cells that the sessions of a target share, one for each token.

    cells: all of them. used: that the texts of sessions fill, shared ones once.
    idle: that kept prefixes fill besides. offloaded: tokens in the host's memory instead.
    setbacks: how often a session was set back. set_back: sessions that wait for cells to go on.
    """

    cells: Annotated[int, gauge("kv_cache_tokens", "Tokens that the KV cache has cells for.")]
    used: Annotated[int, gauge("kv_cache_used_tokens", "Cells that sessions fill.")]
    idle: Annotated[int, gauge("kv_cache_idle_tokens", "Cells that kept prefixes fill.")]
    offloaded: Annotated[
        int, gauge("kv_cache_offloaded_tokens", "Tokens of prefixes in the host's memory.")
    ]
    setbacks: Annotated[
        int, counter("num_preemptions", "Times that a session was set back for want of cells.")
    ]
    set_back: Annotated[
        int, gauge("num_requests_set_back", "Sessions that wait for cells to go on.")
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class SuffixCacheSection:
    """Earlier outputs that are kept for drafts. tokens: of all outputs."""

    max_bytes: int
    bytes: Annotated[int, gauge("suffix_cache_bytes", "Memory that earlier outputs may take now.")]
    tokens: Annotated[int, gauge("suffix_cache_tokens", "Tokens of earlier outputs, for drafts.")]
    outputs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningSnapshot(Snapshot):
    """The fields that both daemons have.

    no_drafts: why nothing is drafted now, for the newest session or for any: a sentence at a
        drafter, one of NoDrafts at a verifier.
    """

    address: str
    encrypted: bool
    model: Json
    no_drafts: str | None
    sessions: SessionsSection
    histograms: HistogramsSection
    draft_n: Annotated[
        int | None, gauge("draft_n", "Drafts that the newest session's drafter is asked for.")
    ]
    busy: Annotated[float, gauge("busy_ratio", "Share of the last minute that the engine worked.")]
    reconnects: Annotated[
        int,
        counter("drafter_reconnects", "Connections of drafter and verifier after one was lost."),
    ]
    wire: WireSection
    prefix_cache: PrefixCacheSection
    offloaded_bytes: Annotated[
        int, gauge("offloaded_bytes", "Memory of the host that offloaded sequences take.")
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifierSnapshot(RunningSnapshot):
    """A verifier.

    steps_ms: by the least context of each table, then by rows.
    kv_cache: None if each session has cells of its own.
    suffix_cache: None if no outputs are kept.
    """

    acceptance: Json
    totals: RoundCounts
    tokens_per_second: float
    pause_ms: dict[str, float | None]
    one_token_step_ms: Annotated[
        float | None, gauge("one_token_step_seconds", "Time of a step of one token.", scale=1e-3)
    ]
    steps_ms: dict[str, dict[str, float]]
    peers: list[Json]
    kv_cache: KVCacheSection | None = None
    suffix_cache: SuffixCacheSection | None = None


@dataclass(slots=True, kw_only=True)
class DraftTotals:
    """Counts of a drafter since its start."""

    draft_tokens: Annotated[
        int, counter("drafter_drafted_tokens", "Tokens this drafter has drafted.")
    ] = 0
    accepted: Annotated[
        int, counter("drafter_accepted_tokens", "Of these, those that were accepted.")
    ] = 0
    committed: Annotated[
        int, counter("drafter_committed_tokens", "Tokens the verifier committed meanwhile.")
    ] = 0
    read: Annotated[
        int, counter("drafter_read_tokens", "Tokens the draft model read, its drafts among them.")
    ] = 0
    rounds: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterSnapshot(RunningSnapshot):
    """A drafter.

    verifiers: in the order of the settings; the `name` of one that is not there is None.
    """

    verifiers: list[Json]
    totals: DraftTotals
    window: WindowSection
    draft_interval_ms: float | None
