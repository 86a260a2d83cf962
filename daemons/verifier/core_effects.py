"""Effects of a verifier's core, carried out on the thread of the frames."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from logging import DEBUG
from typing import assert_never

import structlog

from specmesh import logs
from specmesh.core.draft_length.policy import Policy, solve
from specmesh.core.requests import PromptRead, Scored
from specmesh.core.rounds import Round
from specmesh.core.statistics.daemon import VerifierStats
from specmesh.core.verifier import events as vev
from specmesh.core.verifier.clients import Clients, ClientsEffect
from specmesh.daemons.runtime.facts import note
from specmesh.daemons.verifier.drafters import CoreInbox, Drafters

log = structlog.get_logger("specmesh.verifier")


class CoreEffects:
    """Carries out what a core wants: news for clients, frames for drafters, policies to solve.

    report: the newest one of the core.
    """

    def __init__(
        self,
        *,
        core: CoreInbox,
        stats: VerifierStats,
        clients: Clients,
        drafters: Drafters,
        act: Callable[[Sequence[ClientsEffect]], None],
        reported: Callable[[float], None],
    ) -> None:
        """Begin without a report.

        core: takes what comes of the effects. act: carries out effects of requests.
        reported: called with the time when there is a new report.
        """
        self.report = vev.CoreReport()
        self._core = core
        self._stats = stats
        self._clients = clients
        self._drafters = drafters
        self._act = act
        self._reported = reported
        self._policies = ThreadPoolExecutor(1, thread_name_prefix="policy")

    def close(self) -> None:
        """Solve no more policies."""
        self._policies.shutdown(wait=False, cancel_futures=True)

    def carry_out(self, effect: vev.Effect, now: float) -> None:
        """Carry out an effect."""
        match effect:
            case vev.ToClient(client, news):
                self._count(news)
                self._act(self._clients.give(client, news))
            case vev.ToDrafter():
                self._drafters.send(effect, now)
            case vev.Ran():
                self._stats.ran(effect)
                if logs.least <= DEBUG:
                    _log_step(effect)
            case vev.Solve():
                solving = self._policies.submit(solve, effect.inputs, effect.old)
                solving.add_done_callback(partial(self._solved, effect))
            case vev.RequestRefused(client, error):
                self._act(self._clients.refuse(client, error))
            case vev.Forgotten(session):
                self._clients.forget(session)
            case vev.CoreReport():
                self.report = effect
                self._drafters.step_s = effect.step_s
                self._reported(now)
            case vev.Noted():
                note(effect)
            case _:
                assert_never(effect)

    def _count(self, news: vev.ClientNews) -> None:
        match news:
            case Round():
                traffic = self._clients.sessions.get(news.session)
                if traffic is not None:
                    self._stats.committed(traffic.opened, traffic.sent_at, news)
                    traffic.sent_at = news.at
            case vev.Began():
                self._stats.began(news)
            case vev.SessionEnded():
                self._stats.ended(news)
            case Scored() | PromptRead():
                pass
            case _:
                assert_never(news)

    def _solved(self, wanted: vev.Solve, done: "Future[Policy]") -> None:
        if not done.cancelled():
            solved = vev.Solved(wanted.session, wanted.drafter, done.result())
            self._core.put(solved, time.monotonic())


def _log_step(step: vev.Ran) -> None:
    sessions: list[int] = []
    drafts = 0
    accepted = 0
    for done in step.rounds:
        sessions.append(done.session)
        drafts += len(done.drafts)
        accepted += done.accepted
    log.debug(
        "step",
        sessions=sessions,
        rows=step.rows,
        drafts=drafts,
        accepted=accepted,
        draft_n=list(step.draft_n),
        seconds=round(step.ended - step.started, 6),
    )
