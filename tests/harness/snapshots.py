"""Snapshots as the daemons make them, after some work: what `/stats` answers."""

from random import Random

from fuzz.oracle import row
from harness.sessions import generate, mostly_right, session
from specmesh.core import events as ev
from specmesh.core.liveness import Link
from specmesh.core.sampling.sampler import SamplingParams
from specmesh.core.session_params import SessionParams, TargetLimits
from specmesh.core.statistics.daemon import DrafterStats, VerifierStats
from specmesh.core.statistics.session_report import session_row
from specmesh.core.statistics.snapshot import LoadingSnapshot, PrefixCacheSection, WireSection
from specmesh.core.verifier import events as vev
from specmesh.daemons.runtime.process import facts
from specmesh.daemons.verifier.drafters import DrafterPeer
from specmesh.engines.base import Capabilities, EngineInfo
from specmesh.engines.sim import SimSettings, SimVerifier
from specmesh.wire.messages import Hello

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
ADDRESS = "tcp://127.0.0.1:7071"
LOADING = LoadingSnapshot(role="verifier", version="0", pid=1, uptime_s=3.0, loading=0.43)


def peer(name="mac:7"):
    """A drafter that has answered a PING after 5 ms."""
    hello = Hello(
        drafter=name,
        engine="llama",
        model="small.gguf",
        vocab_fingerprint="",
        n_vocab=0,
        n_ctx=4096,
    )
    one = DrafterPeer(identity=name.encode(), hello=hello, link=Link(0.0))
    one.link.pong(one.link.ping(1.0), 0.25, 1.005)
    return one


def verifier(sessions=1, drafters=1, now=152.0, ended=()):
    """A verifier with so many drafters, and so many sessions that all have said the same; others ended for these
    reasons."""
    stats, traffic = VerifierStats(0.0), WireSection()
    for reason in ended:
        stats.ended(
            vev.SessionEnded(
                session=1, reason=reason, error=None, prompt_ids=(), report={}, seconds=2.0
            )
        )
    traffic.rejected["magic"] += 1
    traffic.handshake_failures["hello"] += 1
    machine = session(
        range(1, 6), SessionParams(SamplingParams(), 20), TargetLimits(4096, 16, frozenset())
    )
    generate(machine, row, mostly_right(row, Random(1)))
    machine.id = 5088330
    rows = [session_row(machine, None, now)] * sessions
    peers = {one.identity: one for one in (peer(f"mac:{n}") for n in range(drafters))}
    measured = {
        "draft_interval_ms": 2.0,
        "acceptance_rate": None,
        "promised_tokens_per_second": None,
        "sessions": 0,
    }
    drafting = dict.fromkeys(peers, measured)
    report = vev.CoreReport(
        sessions=rows,
        drafters=drafting,
        kept=2,
        draft_n=machine.draft_n,
        prefix_cache=PREFIX_CACHE,
        totals=machine.counts,
        step_s=0.034,
        steps={0: {1: 0.034}},
    )
    known = {identity: one.describe() for identity, one in peers.items()}
    told = facts(
        ENGINE, INFO.named() | {"reproducible": False, "model_hash": None}, ADDRESS, encrypted=False
    )
    return stats.snapshot(
        max_sessions=INFO.max_sessions,
        core=report,
        peers=known,
        traffic=traffic,
        now=now,
        live=sessions,
        queued=3,
        **told,
    )


def drafter(now=152.0):
    stats, traffic = DrafterStats(0.0), WireSection()
    traffic.rejected["magic"] += 1
    stats.worked(
        ev.WorkReport(ended=now - 1.0, seconds=0.004, draft_seconds=0.004, drafted=1, rounds=1)
    )
    stats.prefix_cache = PREFIX_CACHE
    return stats.snapshot(
        max_sessions=INFO.max_sessions,
        draft_ns=[0],
        traffic=traffic,
        now=now,
        verifiers=[],
        **facts(ENGINE, INFO.named(), ADDRESS, encrypted=False),
    )
