"""Snapshots as the daemons make them, after some work: what `/stats` answers."""

from dataclasses import replace

import numpy as np

from specmesh.core import events as ev
from specmesh.core import verifier_events as vev
from specmesh.core.daemon_statistics import DrafterStats, Traffic, VerifierStats
from specmesh.core.draft_length.estimates import Arrivals, RollingAcceptance, StepCosts
from specmesh.core.link import Link
from specmesh.core.report import session_row
from specmesh.core.sampling.sampler import SamplingParams
from specmesh.core.session import SessionContext, VerifierSession
from specmesh.core.session_params import SessionParams, TargetLimits
from specmesh.core.snapshot import LoadingSnapshot, ReuseSection
from specmesh.core.statistics import RoundCounts
from specmesh.daemons.runtime.process import process_facts
from specmesh.daemons.verifier.drafters import DrafterPeer
from specmesh.engines.base import EngineInfo
from specmesh.wire.messages import Hello

INFO = EngineInfo("big.gguf", 4096, 512, 32, trimming="removal", backend="CPU, 1 thread")
VOCAB, OPENED = 32, 150.0
REUSE = ReuseSection(2, 70, 1, 40)
TOLD = {"address": "tcp://127.0.0.1:7071", "encrypted": False} | process_facts()
"""What a daemon fills in itself."""
ROUNDS = (((7, 8), (7, 8, 9)), ((7, 9), (7, 8)), ((), (5,)))
"""Drafts of a step, and what the target says on its rows: two drafts stand, one of two, none are there."""


def opened(stats, number, draft_n=None, *, attached=True):
    """A session as a verifier holds it, opened at OPENED and counted."""
    limits = TargetLimits(4096, VOCAB, frozenset())
    params = SessionParams(SamplingParams(), 100, draft_n)
    machine = VerifierSession(range(1, 6), params, limits, StepCosts(), OPENED)
    prompt = tuple(range(1, 6))
    stats.began(vev.Began(number, number, None, prompt, params, "", OPENED, 0, 0, adopted=False))
    machine.prefilled(4)
    if attached:
        machine.attach(Arrivals(), RollingAcceptance())
    return SessionContext(number, machine, 0, number, None)


def step(stats, live, drafts, said, now):
    """A verification step of a session that ends at `now`, counted."""
    logits = np.zeros((len(drafts) + 1, VOCAB), np.float32)
    for row, token in enumerate(said):
        logits[row, token] = 1.0
    machine, last = live.machine, live.machine.times.last_token
    machine.begin(now - 0.1)
    for effect in machine.stepped(drafts, logits, now, 0.1):
        if isinstance(effect, ev.Emit):
            committed = vev.Committed(live.id, live.id, effect, now, machine.draft_n, machine.attached, sought=True)
            stats.committed(OPENED, last, committed)


def worked(stats, numbers, *, attached=True):
    lives = [opened(stats, number, attached=attached) for number in numbers]
    for index, (drafts, said) in enumerate(ROUNDS):
        for live in lives:
            step(stats, live, drafts, said, OPENED + 0.5 * (index + 1))
    return lives


def peer(name="mac:7"):
    """A drafter that has answered a PING after 5 ms and drafts every 2 ms."""
    one = DrafterPeer(name.encode(), Hello(name, "llama", "small.gguf", "", 0, 4096), Link(0.0))
    one.link.pong(one.link.ping(1.0), 0.25, 1.005)
    return one


def core(stale=0):
    """How it stands in a core without sessions; two are kept."""
    return vev.CoreReport([], {}, 2, 0, 0, stale, None, REUSE, RoundCounts(), 0.034, 0.0, {0: {1: 0.034}})


def ended(reason, seconds):
    return vev.SessionEnded(1, 1, None, None, reason, None, (), {}, seconds)


MEASURED = {
    "draft_interval_ms": 2.0,
    "acceptance": None,
    "promised_tokens_per_second": None,
    "sessions": 0,
}


def traffic():
    made = Traffic()
    made.frames_sent = made.frames_received = 1
    made.bytes_sent = made.bytes_received = 100
    made.rejected["magic"] += 1
    return made


def verifier(sessions=1, drafters=1, now=152.0):
    """A verifier with so many sessions and drafters; one more session is over."""
    stats = VerifierStats(0.0)
    stats.round_trips.record(0.005)
    stats.ran(vev.Ran(OPENED, OPENED + 0.5, 3, 3))
    over, *lives = worked(stats, range(5088329, 5088330 + sessions), attached=drafters > 0)
    stats.ended(ended("length", now - OPENED))
    peers = [peer(f"mac:{n}") for n in range(drafters)]
    rows, draft_n = [session_row(live, now) for live in lives], lives[-1].machine.draft_n if lives else None
    totals = RoundCounts()
    for live in (over, *lives):
        totals.add(live.machine.counts)
    report = replace(
        core(), totals=totals, sessions=rows, drafters={one.identity: MEASURED for one in peers}, draft_n=draft_n
    )
    known = {one.identity: one.describe() for one in peers}
    model = INFO.named() | {"reproducible": False}
    return stats.snapshot(model, INFO.n_seq, report, known, traffic(), now, len(lives), queued=3, **TOLD)


def drafter(now=152.0):
    stats = DrafterStats(0.0)
    for index in range(5):
        stats.worked(ev.Worked(OPENED + 0.1 * index + 0.004, 0.004, 0.004, 1, {}))
    stats.round(3, 4)
    stats.round_trips.record(0.005)
    stats.reuse = REUSE
    return stats.snapshot(INFO.named(), INFO.n_seq, [0], traffic(), now, verifiers=[], **TOLD)


LOADING = LoadingSnapshot(role="verifier", version="0", pid=1, uptime_s=3.0, loading=0.43)
