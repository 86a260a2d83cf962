"""Snapshots of the daemons after some work, as `/stats` answers them."""

from dataclasses import replace
from random import Random

from fuzz.oracle import row
from harness.long_opens import incoming_open
from harness.loops import hello
from harness.sessions import generate, mostly_right, session
from specmesh.core import events as ev
from specmesh.core.liveness import Link
from specmesh.core.sampling.sampler import SamplingParams
from specmesh.core.session_params import SessionParams, TargetLimits
from specmesh.core.statistics.daemon import DrafterStats, VerifierStats
from specmesh.core.statistics.session_report import session_row
from specmesh.core.statistics.snapshot import (
    KVCacheSection,
    LoadingSnapshot,
    PrefixCacheSection,
    SuffixCacheSection,
    WireSection,
)
from specmesh.core.verifier import events as vev
from specmesh.daemons.runtime.facts import facts
from specmesh.daemons.verifier.drafters import DrafterPeer
from specmesh.engines.base import Capabilities, EngineInfo
from specmesh.engines.sim import SimSettings, SimVerifier

INFO = EngineInfo(
    model="big.gguf",
    n_ctx=4096,
    n_batch=512,
    max_sessions=32,
    backend="CPU, 1 thread",
    capabilities=Capabilities(),
)
ENGINE = SimVerifier(SimSettings())
PREFIX_CACHE = PrefixCacheSection(2, 70, 1, 40)
KV_CACHE = KVCacheSection(cells=8192, used=70, idle=30, offloaded=10, setbacks=3, set_back=1)
ADDRESS = "tcp://127.0.0.1:7071"
LOADING = LoadingSnapshot(role="verifier", version="0", pid=1, uptime_s=3.0, loading=0.43)
MEASURED = {
    "draft_interval_ms": 2.0,
    "acceptance_rate": None,
    "promised_tokens_per_second": None,
    "sessions": 0,
}


def peer(name="mac:7"):
    """Return a drafter that has answered a PING after 5 ms."""
    greeting = hello(name, engine="llama", model="small.gguf")
    made = DrafterPeer(
        identity=name.encode(), hello=greeting, link=Link(0.0), incoming=incoming_open(0)
    )
    number = made.link.ping(1.0)
    made.link.pong(number, 0.25, 1.005)
    return made


ENDED = vev.SessionEnded(
    session=1, reason="stop", error=None, prompt_ids=(), report={}, seconds=2.0
)
NOW = 152.0


def generated():
    """Return a session with a whole text."""
    limits = TargetLimits(4096, 16, frozenset())
    machine = session(range(1, 6), SessionParams(SamplingParams(), 20), limits)
    generate(machine, row, mostly_right(row, Random(1)))
    machine.id = 5088330
    return machine


def shared(model):
    """Return the parts that both daemons' snapshots have."""
    traffic = WireSection()
    traffic.rejected["magic"] += 1
    traffic.handshake_failures["hello"] += 1
    process = facts(ENGINE, INFO.named() | model, ADDRESS, encrypted=False)
    return process | {"max_sessions": INFO.max_sessions, "traffic": traffic, "now": NOW}


def verifier(sessions=1, drafters=1, ended=()):
    """Return a verifier's snapshot: sessions with one text, and some that ended for a reason."""
    stats = VerifierStats(0.0)
    for reason in ended:
        stats.ended(replace(ENDED, reason=reason))
    peers = {}
    for number in range(drafters):
        made = peer(f"mac:{number}")
        peers[made.identity] = made.describe()
    machine = generated()
    core = vev.CoreReport(
        sessions=[session_row(machine, None, NOW)] * sessions,
        drafters=dict.fromkeys(peers, MEASURED),
        kept=2,
        draft_n=machine.draft_n,
        prefix_cache=PREFIX_CACHE,
        totals=machine.counts,
        step_s=0.034,
        steps={0: {1: 0.034}},
        kv_cache=KV_CACHE,
        suffix_cache=SuffixCacheSection(max_bytes=8192, bytes=4096, tokens=97, outputs=2),
    )
    parts = shared({"reproducible": False, "model_hash": None})
    return stats.snapshot(core=core, peers=peers, live=sessions, queued=3, **parts)


def drafter():
    """Return a drafter's snapshot after one step."""
    stats = DrafterStats(0.0)
    work = ev.WorkReport(
        ended=NOW - 1.0, seconds=0.004, draft_seconds=0.004, draft_tokens=1, rounds=1
    )
    stats.worked(work)
    stats.prefix_cache = PREFIX_CACHE
    return stats.snapshot(draft_ns=[0], verifiers=[], **shared({}))
