"""The drafter's loop: frames and orders in, one unit of drafting at a time, frames and client events out.

It polls between draft tokens, so a correction interrupts at once.
"""

import random
import time
from collections.abc import Callable
from typing import assert_never

import structlog
import zmq

from specmesh.core import events as ev
from specmesh.core.greeting import Greeting
from specmesh.core.vocabulary import Vocabulary
from specmesh.core.vocabulary_match import LEAST_OVERLAP
from specmesh.daemons.dealer import Dealer
from specmesh.daemons.drafter_stats import DrafterStats
from specmesh.daemons.followed import Asked
from specmesh.daemons.following import Following
from specmesh.daemons.introduction import Introduction
from specmesh.daemons.mailbox import Mailbox
from specmesh.daemons.peers import U32, Link
from specmesh.daemons.vocabulary_cache import VocabularyCache
from specmesh.engines.base import DraftEngine
from specmesh.errors import ConfigError, DaemonUnreachable, WentAway
from specmesh.requests import Cancel, ClientOrder, Failed, Peer, Probe, Submit
from specmesh.wire import messages as m

log = structlog.get_logger("specmesh.drafter")

SNAPSHOT_INTERVAL = 0.1


class DrafterLoop:
    """One drafter attached to one verifier. Everything runs on the thread that calls `run`.

    connect() opens a fresh DEALER to the verifier at `address`. least_overlap is the share of tokens that must have a
    counterpart in the verifier's vocabulary, which is kept in `cache`. changed: whether `connect` would expect another
    verifier now. temperature: see `Following`.
    """

    def __init__(
        self,
        name: str,
        connect: "Callable[[], zmq.Socket[bytes]]",
        address: str,
        engine: DraftEngine,
        mailbox: Mailbox[ClientOrder],
        least_overlap: float = LEAST_OVERLAP,
        cache: VocabularyCache | None = None,
        changed: Callable[[], bool] = lambda: False,
        temperature: float | None = None,
    ) -> None:
        self._name, self._dealer, self._address = name, Dealer(connect, address, changed), address
        self._engine, self._mailbox = engine, mailbox
        self._introduction = Introduction(engine, address, least_overlap, cache, mailbox.wake)
        self._link = Link(time.monotonic())
        self._welcome: m.Welcome | None = None
        self._greeting = Greeting(random.random, time.monotonic())
        self._next_snapshot = 0.0
        self._turns = 0
        self._round_trip = 0.0
        self._stopping = False
        self.stats = DrafterStats(time.monotonic())
        self._sessions = Following(self._dealer, engine, self.stats, address, temperature)

    @property
    def verifier(self) -> m.Welcome | None:
        """What the verifier said of itself; None while there is none."""
        return self._welcome

    @property
    def trouble(self) -> str:
        """Why there is no verifier, as far as that is known."""
        silent = f"the verifier at {self._address} does not answer: is it running, and reachable from here?"
        return self.refusal or silent

    @property
    def refusal(self) -> str | None:
        """Why the verifier, or our own keys, keep this drafter out."""
        return self._dealer.refusal

    @property
    def vocabulary(self) -> Vocabulary | None:
        """The verifier's vocabulary, once it is known and suits."""
        return self._introduction.vocabulary

    # --- the loop

    def run(self) -> None:
        """Draft until stopped; raises ConfigError when the verifier refuses this drafter for good."""
        try:
            self._draft()
        finally:
            self._dealer.send(m.Bye())

    def _draft(self) -> None:
        while not self._stopping:
            self._turns += 1
            self._receive()
            if self._welcome is not None and self._link.silent(time.monotonic()):
                self._lost("silent")  # judged with the socket just emptied: frames may have waited for a long guess
            engine = self._introduction.engine  # None while the verifier's vocabulary is still on its way
            if engine is None or not self._sessions.work(engine, self._round_trip):
                self._sessions.flush()
                self._dealer.inlet.wait(self._mailbox, self._timeout(time.monotonic()))
            for order in self._mailbox.drain():
                self._order(order)
            self._tick(time.monotonic())
        stopping = WentAway("the drafter is stopping")
        for order in self._mailbox.drain():
            if isinstance(order, Submit):
                order.client.hear(Failed(stopping))
        self._sessions.stop(stopping)

    def close(self) -> None:
        """Give the connection back."""
        self._dealer.close()

    @property
    def progress(self) -> int:
        """Changes while the loop turns, and the engine with it; for a watchdog, from any thread."""
        return self._turns

    def stop(self) -> None:
        """End after this turn; a signal handler may call this."""
        self._stopping = True

    def _timeout(self, now: float) -> float:
        due = self._greeting.due
        if self._welcome is not None:
            due = min(self._link.next_ping, self._sessions.next_due() or self._link.next_ping)
        if self.stats.unpublished:
            due = min(due, self._next_snapshot)
        return max(min(due, self._dealer.next_look) - now, 0.0)

    def _tick(self, now: float) -> None:
        refusal = self._dealer.look(now)
        if refusal is not None:
            log.warning("refused", error=refusal)
            if self._welcome is not None:
                self._lost("refused")
        if self._welcome is None:
            if now >= self._greeting.due:
                self._say_hello(now)
        elif now >= self._link.next_ping:
            self._dealer.send(self._link.ping(now, self._turns, self.stats.busy.share(now)))
        self._sessions.expire(now, self.refusal)
        if self._welcome is not None:
            self._sessions.reopen(now)
        self._introduction.settle()
        self._ask(self._introduction.overdue(now))
        if now >= self._next_snapshot:
            self._next_snapshot = now + SNAPSHOT_INTERVAL
            self.stats.unpublished = bool(self._sessions.live)
            self.stats.publish(self.snapshot(now))

    def _order(self, order: ClientOrder) -> None:
        match order:
            case Submit(request, client):
                if self._welcome is None:
                    client.hear(Failed(DaemonUnreachable(self.trouble)))
                else:
                    self._sessions.ask(Asked(request, client), time.monotonic())
            case Cancel(client):
                self._sessions.cancel_of(client)
            case Probe():
                peers = [Peer(self._welcome.verifier, self._address)] if self._welcome is not None else []
                order.sent(peers)
                for peer in peers:
                    now = time.monotonic()
                    busy, answer = self.stats.busy.share(now), order.answer(peer)
                    self._dealer.send(self._link.probe(now, self._turns, busy, answer))
            case _:
                assert_never(order)

    # --- the wire

    def _say_hello(self, now: float) -> None:
        if self._greeting.unanswered(now) and self._dealer.refusal is None:
            log.warning("verifier_not_answering", connect=self._address, meaning="trying on; is it running there?")
        if self._greeting.doubtful(now) and self._dealer.refusal is None:
            self._dealer.reconnect()
        self._greeting.said(now, sent=self._dealer.send(self._introduction.hello(self._name)) > 0)

    def _receive(self) -> None:
        for message, size in self._dealer.receive():
            self._link.last_heard = time.monotonic()
            if message is not None:
                self._message(message, size, self._link.last_heard)

    def _message(self, message: m.Message, size: int, now: float) -> None:
        match message:
            case m.Truth(session, base, crc, ids, draft_n):
                self._sessions.heard(session, ev.Told(base, crc, ids, draft_n, sync=False), size, now)
            case m.Sync(session, base, crc, ids, draft_n):
                self._sessions.heard(session, ev.Told(base, crc, ids, draft_n, sync=True), size, now)
            case m.Nack(session, base, crc):
                self._sessions.heard(session, ev.Nacked(base, crc), size, now)
            case m.Round():
                self._sessions.round(message)
            case m.Logprobs():
                self._sessions.logprobs(message)
            case m.Done(session):
                if session in self._sessions.live:  # else it was closed from this side
                    self._sessions.done(message, now)
            case m.Opened():
                self._sessions.opened(message)
            case m.Welcome():
                self._welcomed(message, now)
            case m.Vocab():
                self._ask(self._introduction.answered(message, now))
            case m.Error():
                self._error(message, now)
            case m.Bye():
                if self._welcome is not None:
                    self._lost("stopped")
            case m.Ping(number, progress, busy):
                self._link.told(progress, busy, now)
                self._dealer.send(m.Pong(number, self._turns & U32, self.stats.busy.share(now)))
            case m.Pong():
                round_trip = self._link.pong(message, now)
                if round_trip is not None:
                    self.stats.round_trips.record(round_trip)
                self._round_trip = self._link.round_trips.percentile(0.5) or 0.0
            case _:
                self._dealer.traffic.rejected["direction"] += 1

    def _welcomed(self, welcome: m.Welcome, now: float) -> None:
        if self._welcome is not None and self._welcome.verifier == welcome.verifier:
            return  # it heard more than one HELLO
        self._sessions.lost(DaemonUnreachable("the verifier started anew and has forgotten this session"), now)
        self._sessions.found(welcome)
        if self._welcome is not None:
            self.stats.reconnects.lost()
        self.stats.reconnects.came()
        self._welcome = welcome
        self._greeting.answered(now)
        self.stats.unpublished = True
        self._link.next_ping = now
        log.info("verifier_found", verifier=welcome.verifier, model=welcome.model)
        self._ask(self._introduction.welcomed(welcome, now))

    def _ask(self, request: m.Vocab | None) -> None:
        if request is not None:
            self._dealer.send(request)

    def _error(self, error: m.Error, now: float) -> None:
        if self._sessions.refused(error, now):
            return
        if error.code == "hello":
            if self._welcome is not None:
                self._lost("the verifier does not know this drafter")
        elif error.code == "version":
            raise ConfigError(f"the verifier at {self._address} refused this drafter: {error.message}")
        else:
            log.warning("verifier_error", code=error.code, message=error.message)

    def _lost(self, reason: str) -> None:
        """The verifier is gone: start over on a fresh connection."""
        log.warning("verifier_lost", reason=reason)
        self.stats.reconnects.lost()
        self._welcome = None
        self.stats.unpublished = True
        self._introduction.lost()
        self._sessions.lost(DaemonUnreachable(f"the verifier at {self._address} went away"), time.monotonic())
        self._dealer.reconnect()
        self._greeting.lost(time.monotonic())

    def snapshot(self, now: float) -> dict[str, object]:
        """What `stats` shows: an immutable picture, built on the loop's thread."""
        return self.stats.picture(
            self._engine.info,
            self._welcome,
            self._introduction.comparison,
            self._link,
            [live.machine for live in self._sessions.live.values()],
            self._dealer.traffic,
            now,
            self._sessions.interrupted,
        ) | {
            "address": self._address,
            "encrypted": self._dealer.encrypted,
            "refusal": self._dealer.refusal,
            "reuse": self._sessions.places.picture(),
        }
