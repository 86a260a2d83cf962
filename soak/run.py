"""Runs pairs under load and faults for a time, then judges every text that came."""

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from itertools import takewhile
from pathlib import Path

from soak.load import Clients, ask
from soak.pair import MODELS, Models, Pair
from soak.report import PairReport, Sample, growth, sampled
from soak.schedule import KILLS, NO_KILLS, Fault, Lane, Order, excused, faults, orders
from soak.truth import BAD, Alone, Text, first_difference, judge
from specmesh.client import Client
from specmesh.config import ModelSettings
from specmesh.core.fields import number_at
from specmesh.core.sampling.sampler import SamplingParams
from specmesh.engines.base import VerifyEngine
from specmesh.engines.llama import LlamaVerifier
from specmesh.engines.sim import SimSettings, SimVerifier
from specmesh.errors import SpecmeshError

README = Path(__file__).parents[1] / "README.md"
LENGTHS = (3, 40, 40, 300, 1500)
"""Characters of the prompts, in turn."""

SAMPLE_S, ANSWER_S = 1.0, 1.0
"""Seconds between two samples, and that a daemon has to tell its statistics: else it has none this time."""

RECOVERY_S = 10.0
"""Seconds after a fault within which a client may still be refused: a process starts, the other side finds it."""

ORPHANED_S = 15.0
"""Seconds after the last client has gone until no session may be left; more than a verifier keeps one."""

TELL_S = 30.0
LAST_TOKENS = 50

PAIRS = {"shaken": KILLS, "steady": NO_KILLS}
"""What befalls a pair: memory is watched in the one whose processes stay."""

CLIENTS, EARLY_CLIENTS, EARLY_TOKENS = 3, 6, 8
"""The latter ask besides, for so few tokens, until shortly before memory is watched. A process keeps what its busiest
moment needed: with no more clients than later such moments would still come, ever fewer and ever busier, for hours.
CPython fills caches of its own with each generation, however short: 4,096 names of attributes and more."""

WARM_UP, EARLY, CALM = 1 / 3, 1 / 4, 1 / 8
"""Shares of the time after which memory is watched, after which those ask for no more, and until which the pair whose
memory is watched has no faults: with them it would make a tenth of the generations."""


def texts(alone: Alone, models: Models, count: int, seed: int) -> list[Text]:
    """What will be asked for, and what the verifier alone says: half of it greedy, half sampled."""
    source = README.read_text(encoding="utf-8")
    found = []
    for number in range(count):
        length = LENGTHS[number % len(LENGTHS)]
        at = number * 997 % (len(source) - length)
        hot = models.temperatures[number // 2 % len(models.temperatures)]
        filtered = {"top_k": 40, "top_p": 0.95} if number % 4 == 3 else {}
        sampled = SamplingParams(temperature=hot, seed=1000 * seed + number, **filtered)  # type: ignore[arg-type]
        found.append(
            alone.text(
                source[at : at + length],
                sampled if number % 2 else SamplingParams(),
                models.longest,
            )
        )
    return found


def soak(
    seconds: float,
    seed: int = 1,
    models: str = "sim",
    count: int = 40,
    pairs: Sequence[str] = tuple(PAIRS),
    tell: Callable[[str], None] = lambda _: None,
) -> list[PairReport]:
    """Soak these pairs for so long, with `count` texts of these models; a report of each pair."""
    with ExitStack() as stack:
        alone = Alone(stack.enter_context(closing(_engine(MODELS[models]))))
        known = texts(alone, MODELS[models], count, seed)
        tell(
            f"{len(known)} texts of the verifier alone, {sum(len(text.ids) for text in known)} tokens"
        )
        running = []
        for name in pairs:
            folder = stack.enter_context(
                tempfile.TemporaryDirectory(prefix="sm-", dir="/tmp")
            )  # a socket's path is short
            pair = Pair(name, MODELS[models], Path(folder))
            stack.callback(pair.close)
            pair.start()
            running.append(_Running(pair, seconds, seed, known))
        _pass_time(running, seconds, tell)
        for one in running:
            one.finish()
        return [one.judged(alone) for one in running]


class _Running:
    """A pair, its clients, its schedule, and what was sampled of it. Its clients begin with it."""

    def __init__(self, pair: Pair, seconds: float, seed: int, known: list[Text]) -> None:
        self.pair, self._known = pair, known
        steady = PAIRS[pair.name] is NO_KILLS
        self._watched = steady and Path("/proc/self/smaps_rollup").exists()
        self._warm_up = WARM_UP * seconds
        self._samples: dict[Lane, list[Sample]] = {Lane.VERIFIER: [], Lane.DRAFTER: []}
        self._report = PairReport(pair.name)
        schedule = faults(f"{seed} {pair.name}", seconds, PAIRS[pair.name])
        schedule = [fault for fault in schedule if fault.at >= CALM * seconds * steady]
        ends = [(fault.until, 1, fault) for fault in schedule]
        self._due = sorted(
            [*((fault.at, 0, fault) for fault in schedule), *ends], key=lambda due: due[:2]
        )
        self._begun: dict[Fault, float] = {}
        everyone = range(CLIENTS + EARLY_CLIENTS)
        wanted = [
            orders(f"{seed} {pair.name} {n}", len(known), pair.models.longest) for n in everyone
        ]
        wanted[CLIENTS:] = [self._early(EARLY * seconds, early) for early in wanted[CLIENTS:]]
        self._started = time.monotonic()
        self.clients = Clients(pair, known, self.clock, wanted)

    def clock(self) -> float:
        return time.monotonic() - self._started

    def _early(self, end: float, wanted: Iterator[Order]) -> Iterator[Order]:
        short = (
            replace(one, max_tokens=min(one.max_tokens, EARLY_TOKENS), pause_s=0.0)
            for one in wanted
        )
        return takewhile(lambda _: self.clock() < end, short)

    def turn(self) -> None:
        while self._due and self._due[0][0] <= self.clock():
            _, over, fault = self._due.pop(0)
            if over:
                self.pair.end(fault)
                begun = self._begun.pop(fault)
                self.pair.log.append(replace(fault, at=begun, seconds=self.clock() - begun))
            else:
                self._begun[fault] = self.clock()
                self.pair.begin(fault)

    def look(self) -> None:
        for recorded in self.pair.proxy.captured:
            recorded.clear()
        if self._watched and self.clock() >= self._warm_up:
            for lane in self._samples.keys() - {
                fault.lane for fault in self._begun
            }:  # the others do not answer
                self._sample(lane)

    def _sample(self, lane: Lane) -> None:
        """But for offloaded sequences: they come and go by megabytes, and may take as much as the KV cache."""
        self.pair.look(lane)
        daemon = self.pair.daemons[lane]
        with suppress(SpecmeshError):
            offloaded = int(
                number_at(Client(daemon.socket, ANSWER_S).get("/stats"), "offloaded_bytes")
            )
            self._samples[lane].append(
                sampled(daemon.pid, self.clock(), self.clients.at.count(lane), offloaded)
            )

    def finish(self) -> None:
        """The clients leave, everything heals, each daemon says one more text, and no session is left."""
        while self._due:
            self.turn()
            time.sleep(0.05)
        if not self.clients.stop():
            self._failed("a client hangs")
        for lane in self._samples:
            self.pair.look(lane)
        try:
            self.pair.ready()
        except AssertionError as error:
            self._failed(f"it does not recover: {str(error).splitlines()[0]}")
        self._report.orphans = self._left()
        for lane, daemon in self.pair.daemons.items():
            order = Order(0, LAST_TOKENS, lane, None, None, 0.0)
            told = ask(daemon.socket, self._known[0], order, self.clock)
            self.clients.heard.append((order, told))
            if told.finish is None:
                self._failed(f"no text at the {lane} after all is over: {told.error}")
        self.pair.stop()

    def _failed(self, what: str) -> None:
        self._report.wrong.append(f"{self.pair.name}: {what}")

    def _left(self) -> int:
        until = time.monotonic() + ORPHANED_S
        while (left := self._live()) and time.monotonic() < until:
            time.sleep(0.1)
        return left

    def _live(self) -> int:
        try:
            kept = number_at(self.pair.daemons[Lane.VERIFIER].stats(), "sessions.kept")
            return int(kept) + sum(daemon.live() for daemon in self.pair.daemons.values())
        except SpecmeshError:
            return 1

    def judged(self, alone: Alone) -> PairReport:
        """The report, once it is finished."""
        report = self._report
        report.wrong += self.pair.died
        report.faults.update(f"{fault.lane} {fault.kind}" for fault in self.pair.log)
        report.growth = {
            lane: found for lane, samples in self._samples.items() if (found := growth(samples))
        }
        if self._watched and report.growth.keys() != self._samples.keys():
            self._failed("nobody could watch its memory")
        for order, told in self.clients.heard:
            text, hit = (
                self._known[order.text],
                excused(self.pair.log, order.at, told.begun, told.ended, RECOVERY_S),
            )
            verdict = judge(
                told, text, order.max_tokens, alone.shown(told.ids), excused=hit, waits=order.waits
            )
            report.verdicts[verdict] += 1
            report.tokens += len(told.ids)
            if verdict in BAD:
                at, shall = (
                    first_difference(told.ids, text.ids),
                    min(len(text.ids), order.max_tokens),
                )
                where = f"{len(told.ids)} of {shall} ids" + (
                    "" if at is None else f", different from {at} on"
                )
                self._failed(
                    f"{verdict}, {told.begun:.1f} to {told.ended:.1f} s: {where}; {order}; {told.error}"
                )
        return report


def _pass_time(running: list[_Running], seconds: float, tell: Callable[[str], None]) -> None:
    started = next_look = time.monotonic()
    next_word = started + TELL_S
    while (now := time.monotonic()) < started + seconds:
        for one in running:
            one.turn()
        if now >= next_look:
            next_look = now + SAMPLE_S
            for one in running:
                one.look()
        if now >= next_word:
            next_word = now + TELL_S
            done = [f"{one.pair.name} {len(one.clients.heard)}" for one in running]
            tell(f"{now - started:.0f} s: generations {', '.join(done)}")
        time.sleep(0.02)


def _engine(models: Models) -> VerifyEngine:
    if models.engine == "sim":
        return SimVerifier(SimSettings())
    return LlamaVerifier(
        ModelSettings(
            "llama", models.target, ctx=2048, max_sessions=1, threads=1, reproducible=True
        )
    )
