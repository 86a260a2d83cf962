"""Runs pairs under load and faults for a time, then judges every text."""

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from pathlib import Path

from soak.load import Clients, ask
from soak.pair import MODELS, Models, Pair
from soak.report import PairReport, Sample, growth, sampled
from soak.schedule import KILLS, NO_KILLS, Fault, Lane, Order, excused, faults, orders
from soak.truth import BAD, Alone, Text, Told, Verdict, first_difference, judge
from specmesh.client import Client
from specmesh.config import ModelSettings
from specmesh.core.fields import number_at
from specmesh.core.sampling.sampler import SamplingParams
from specmesh.engines.base import VerifyEngine
from specmesh.engines.llama.engine import LlamaVerifier
from specmesh.engines.sim import SimSettings, SimVerifier
from specmesh.errors import SpecmeshError

README = Path(__file__).parents[1] / "README.md"
LENGTHS = (3, 40, 40, 300, 1500)
"""Characters of the prompts, in turn."""

SAMPLE_S = 1.0  # between two samples
ANSWER_S = 1.0
"""Seconds for a daemon to answer with its statistics; without an answer there is no sample."""

RECOVERY_S = 10.0
"""Seconds after a fault in which a client may be refused, until both daemons run and are linked."""

ORPHANED_S = 15.0
"""Seconds after the last client until no session may be left; more than a verifier keeps one."""

TELL_S = 30.0  # between two lines about the progress
LAST_TOKENS = 50

PAIRS = {"shaken": KILLS, "steady": NO_KILLS}
"""The faults of each pair. Memory is watched in the one whose processes stay."""

CLIENTS = 3
EARLY_CLIENTS = 6
EARLY_TOKENS = 8
"""More clients ask for so few tokens until shortly before memory is watched.

A process keeps the memory of its busiest moment. Without them busier moments would still come, ever
more rarely, for hours. CPython fills caches of its own with each generation, however short: 4,096
names of attributes and more.
"""

WARM_UP = 1 / 3  # share of the time after which memory is watched
EARLY = 1 / 4  # share of the time after which early clients stop
CALM = 1 / 8
"""Share of the time without faults for the pair whose memory is watched.

With faults it would make a tenth of the generations.
"""


def texts(alone: Alone, models: Models, count: int, seed: int) -> list[Text]:
    """Return the texts that clients ask for, by the verifier alone: half greedy, half sampled."""
    source = README.read_text(encoding="utf-8")
    found: list[Text] = []
    for number in range(count):
        length = LENGTHS[number % len(LENGTHS)]
        at = number * 997 % (len(source) - length)
        prompt = source[at : at + length]
        sampling = SamplingParams()
        if number % 2:
            temperature = models.temperatures[number // 2 % len(models.temperatures)]
            sampling = SamplingParams(temperature=temperature, seed=1000 * seed + number)
        if number % 4 == 3:
            sampling = replace(sampling, top_k=40, top_p=0.95)
        found.append(alone.text(prompt, sampling, models.longest))
    return found


def soak(
    seconds: float,
    seed: int = 1,
    models: str = "sim",
    *,
    count: int = 40,
    pairs: Sequence[str] = tuple(PAIRS),
    tell: Callable[[str], None] = lambda _: None,
) -> list[PairReport]:
    """Soak these pairs for so long, with `count` texts of these models. Return their reports."""
    with ExitStack() as stack:
        alone = Alone(stack.enter_context(closing(_engine(MODELS[models]))))
        expected = texts(alone, MODELS[models], count, seed)
        tokens = sum(len(text.ids) for text in expected)
        tell(f"{len(expected)} texts of the verifier alone, {tokens} tokens")
        running: list[_Running] = []
        for name in pairs:
            # A socket's path must be short.
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="sm-", dir="/tmp"))
            pair = Pair(name, MODELS[models], Path(folder))
            stack.callback(pair.close)
            pair.start()
            running.append(_Running(pair, seconds, seed, expected))
        _pass_time(running, seconds, tell)
        for one in running:
            one.finish()
        return [one.judged(alone) for one in running]


class _Running:
    """A pair with its clients, its schedule and its samples."""

    def __init__(self, pair: Pair, seconds: float, seed: int, expected: list[Text]) -> None:
        self.pair = pair
        self._expected = expected
        steady = PAIRS[pair.name] is NO_KILLS
        self._watched = steady and Path("/proc/self/smaps_rollup").exists()
        self._warm_up = WARM_UP * seconds
        self._samples: dict[Lane, list[Sample]] = {Lane.VERIFIER: [], Lane.DRAFTER: []}
        self._report = PairReport(name=pair.name)
        calm = CALM * seconds if steady else 0.0
        schedule = faults(f"{seed} {pair.name}", seconds, PAIRS[pair.name])
        self._due: list[tuple[float, bool, Fault]] = []  # (time, the fault ends then, fault)
        for fault in schedule:
            if fault.at >= calm:
                self._due += [(fault.at, False, fault), (fault.until, True, fault)]
        self._due.sort(key=lambda due: due[:2])
        self._begun: dict[Fault, float] = {}
        wanted: list[Iterator[Order]] = []
        for number in range(CLIENTS + EARLY_CLIENTS):
            name = f"{seed} {pair.name} {number}"
            own = orders(name, len(expected), pair.models.longest)
            if number >= CLIENTS:
                own = self._early(EARLY * seconds, own)
            wanted.append(own)
        self._started = time.monotonic()
        self.clients = Clients(pair, expected, self.clock, wanted)

    def clock(self) -> float:
        return time.monotonic() - self._started

    def _early(self, end: float, wanted: Iterator[Order]) -> Iterator[Order]:
        for order in wanted:
            if self.clock() >= end:
                return
            yield replace(order, max_tokens=min(order.max_tokens, EARLY_TOKENS), pause_s=0.0)

    def turn(self) -> None:
        """Begin and end the faults that are due, in order."""
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
        """Sample the daemons that no fault stops."""
        for recorded in self.pair.proxy.captured:
            recorded.clear()
        if self._watched and self.clock() >= self._warm_up:
            stopped = {fault.lane for fault in self._begun}
            for lane in self._samples.keys() - stopped:
                self._sample(lane)

    def _sample(self, lane: Lane) -> None:
        """Add a sample without the offloaded sequences, which come and go by megabytes."""
        self.pair.look(lane)
        daemon = self.pair.daemons[lane]
        with suppress(SpecmeshError):
            stats = Client(daemon.socket, ANSWER_S).get("/stats")
            offloaded = int(number_at(stats, "offloaded_bytes"))
            asking = self.clients.at.count(lane)
            self._samples[lane].append(sampled(daemon.pid, self.clock(), asking, offloaded))

    def finish(self) -> None:
        """Stop the clients, end all faults, and ask each daemon for one more text."""
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
            order = Order(text=0, max_tokens=LAST_TOKENS, at=lane)
            told = ask(daemon.socket, self._expected[0], order, self.clock)
            self.clients.heard.append((order, told))
            if told.finish is None:
                self._failed(f"no text at the {lane} after all is over: {told.error}")
        self.pair.stop()

    def _failed(self, fault: str) -> None:
        self._report.wrong.append(f"{self.pair.name}: {fault}")

    def _left(self) -> int:
        """Return the number of sessions that remain without clients."""
        until = time.monotonic() + ORPHANED_S
        while self._sessions() and time.monotonic() < until:
            time.sleep(0.1)
        return self._sessions()

    def _sessions(self) -> int:
        try:
            kept = number_at(self.pair.daemons[Lane.VERIFIER].stats(), "sessions.kept")
            return int(kept) + sum(daemon.live() for daemon in self.pair.daemons.values())
        except SpecmeshError:
            return 1

    def judged(self, alone: Alone) -> PairReport:
        """Return the report of a finished pair."""
        report = self._report
        report.wrong += self.pair.died
        report.faults.update(f"{fault.lane} {fault.kind}" for fault in self.pair.log)
        for lane, samples in self._samples.items():
            found = growth(samples)
            if found is not None:
                report.growth[lane] = found
        if self._watched and report.growth.keys() != self._samples.keys():
            self._failed("there are no samples of its memory")
        for order, told in self.clients.heard:
            verdict = self._judged(order, told, alone.shown(told.ids))
            report.verdicts[verdict] += 1
            report.tokens += len(told.ids)
            if verdict in BAD:
                self._failed(f"{verdict}, {self._difference(order, told)}; {order}; {told.error}")
        return report

    def _judged(self, order: Order, told: Told, shown: str) -> Verdict:
        hit = excused(self.pair.log, order.at, told.begun, told.ended, RECOVERY_S)
        return judge(
            told,
            self._expected[order.text],
            order.max_tokens,
            shown,
            excused=hit,
            waits=order.waits,
        )

    def _difference(self, order: Order, told: Told) -> str:
        """Return the time of an answer, and its difference from the expected text."""
        expected = self._expected[order.text].ids[: order.max_tokens]
        times = f"{told.begun:.1f} to {told.ended:.1f} s"
        text = f"{times}: {len(told.ids)} of {len(expected)} ids"
        at = first_difference(told.ids, expected)
        if at is not None:
            text += f", different from {at} on"
        return text


def _pass_time(running: list[_Running], seconds: float, tell: Callable[[str], None]) -> None:
    started = time.monotonic()
    next_look = started
    next_line = started + TELL_S
    while time.monotonic() < started + seconds:
        now = time.monotonic()
        for one in running:
            one.turn()
        if now >= next_look:
            next_look = now + SAMPLE_S
            for one in running:
                one.look()
        if now >= next_line:
            next_line = now + TELL_S
            counts = [f"{one.pair.name} {len(one.clients.heard)}" for one in running]
            tell(f"{now - started:.0f} s: generations {', '.join(counts)}")
        time.sleep(0.02)


def _engine(models: Models) -> VerifyEngine:
    if models.engine == "sim":
        return SimVerifier(SimSettings())
    return LlamaVerifier(
        ModelSettings(
            engine="llama",
            model=models.target,
            ctx=2048,
            max_sessions=1,
            threads=1,
            reproducible=True,
        )
    )
