"""`specmesh bench sim`: would a drafter help a verifier of this speed, at this distance?

The real daemons, as processes, over real sockets, with engines that sleep for as long as the models would take and a
proxy that delays each frame; beside them the ideal pair: the same in virtual time, where nothing else takes any.
"""

import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from specmesh.bench.steps import costs_of, read_costs
from specmesh.client import Client, Json
from specmesh.core.draft_length.policy import Policy, PolicyInputs, solve
from specmesh.core.simulation import Deployment, Workload
from specmesh.core.simulation import simulate as in_virtual_time
from specmesh.engines.sim import SimSettings, luck
from specmesh.errors import EngineError, SpecmeshError

MAX_DRAFTS = 16
PROMPT = "a simulated text"
MIN_PROXY_RTT_S = 0.5e-3
"""Seconds of round trip below which no proxy is put in between: loopback and the daemons take about as long."""


@dataclass(frozen=True, slots=True)
class SimPair:
    """Seconds of a step with 0, 1, ... drafts, of a draft, of the round trip and its jitter.

    alphas: probability that a draft is accepted, each for `period` tokens in turn.
    """

    steps: tuple[float, ...]
    draft: float
    round_trip: float
    jitter: float
    alphas: tuple[float, ...]
    period: int

    def alpha(self, position: int) -> float:
        """The probability for the token at `position`, prompt included."""
        return self.alphas[position // self.period % len(self.alphas)] if self.period else self.alphas[0]


def steps_of(step_ms: float, row_ms: float, file: Path | None) -> tuple[float, ...]:
    """Return the seconds of a step by its number of drafts, from a line or from a file; see `read_costs`."""
    if file is None:
        return tuple((step_ms + row_ms * drafts) / 1e3 for drafts in range(MAX_DRAFTS + 1))
    costs = read_costs(file)
    return tuple(costs.seconds(drafts + 1) for drafts in range(MAX_DRAFTS + 1))


@dataclass(frozen=True, slots=True)
class SimResult:
    """Tokens per second of the daemons, alone, with each fixed draft_n and adaptive, and of the ideal ones.

    ideal: the same rule where nothing but models and distance takes time. oracle: that too, told the acceptance.
    """

    alone: float
    fixed: dict[int, float]
    specmesh: float
    ideal: float
    oracle: float
    ideal_alone: float
    acceptance: float
    round_trip_ms: float | None

    def as_json(self) -> dict[str, object]:
        best = max(self.fixed, key=lambda n: self.fixed[n]) if self.fixed else None
        speeds = {"alone": self.alone, "lockstep": {str(n): round(s, 3) for n, s in self.fixed.items()}}
        return {
            "schema_version": 1,
            "tokens_per_second": speeds | {"specmesh": self.specmesh},
            "speedup": round(self.specmesh / self.alone, 4),
            "best_lockstep": best,
            "speedup_best_lockstep": None if best is None else round(self.fixed[best] / self.alone, 4),
            "ideal": self.ideal,
            "ideal_speedup": round(self.ideal / self.ideal_alone, 4),
            "efficiency": round(self.specmesh / self.ideal, 4),
            "oracle": self.oracle,
            "oracle_efficiency": round(self.specmesh / self.oracle, 4),
            "acceptance_rate": round(self.acceptance, 4),
            "measured_round_trip_ms": self.round_trip_ms,
        }

    def lines(self) -> list[str]:
        speedup = self.specmesh / self.alone
        rows = [("the verifier alone", self.alone), *((f"fixed draft_n {n}", s) for n, s in self.fixed.items())]
        rows += [("specmesh, adaptive", self.specmesh), ("ideal, no overhead", self.ideal)]
        rows += [("ideal, acceptance told", self.oracle)]
        table = [f"{name:<22}{speed:9.2f} tok/s {speed / self.alone:7.3f}x" for name, speed in rows]
        verdict = (
            f"A drafter would make this verifier {speedup:.2f} times as fast."
            if speedup > 1.02
            else "A drafter would not help this verifier: it is too far, too slow or too often wrong for it."
        )
        return [*table, f"efficiency {self.specmesh / self.ideal:.3f} of the ideal pair", verdict]


def simulate(
    pair: SimPair, tokens: int, fixed: tuple[int, ...], repeats: int, advance: Callable[[], None]
) -> SimResult:
    """Run the pair; `advance` is called after each text. Raise SpecmeshError where the daemons fail."""
    ways: list[int | str] = [0, *fixed, "auto"]
    speeds: dict[int | str, list[float]] = {draft_n: [] for draft_n in ways}
    with daemons(pair) as client:
        for repeat in range(repeats):
            turn = repeat % len(ways)
            for draft_n in ways[turn:] + ways[:turn]:
                speed, accepted = _generate(client, draft_n, tokens)
                speeds[draft_n].append(speed)
                if draft_n == "auto":
                    acceptance = accepted
                advance()
        peers = client.get("/stats").get("peers")
    mean = {draft_n: fmean(found) for draft_n, found in speeds.items()}
    return SimResult(
        alone=mean[0],
        fixed={n: mean[n] for n in fixed},
        specmesh=mean["auto"],
        ideal=ideal(pair, tokens),
        oracle=oracle(pair, tokens),
        ideal_alone=1 / pair.steps[0],
        acceptance=acceptance,
        round_trip_ms=peers[0]["round_trip_ms"]["p50"] if isinstance(peers, list) and peers else None,
    )


def ideal(pair: SimPair, tokens: int, policy: Callable[[int], Policy] | None = None) -> float:
    """Tokens per second of the daemons' text in virtual time. The prompt has one token: rates leave prompts out."""
    costs = costs_of({0: {drafts + 1: seconds * 1e3 for drafts, seconds in enumerate(pair.steps)}})
    site = Deployment(costs, pair.draft, pair.round_trip + pair.jitter, solving=0.0)
    guesses = luck(SimSettings(alpha=pair.alphas, period=pair.period, n_ctx=len(PROMPT) + tokens), PROMPT, tokens)
    found = in_virtual_time(
        site, Workload(1, tokens), 1, lambda position: any(guesses[position - 1 : position]), policy
    )
    return found.total


def oracle(pair: SimPair, tokens: int) -> float:
    """The same where the acceptance need not be learned."""
    restart = pair.round_trip + pair.jitter + 1.5 * pair.draft
    known = {
        alpha: solve(PolicyInputs(pair.steps, (alpha,) * len(pair.steps), pair.draft, restart, pair.steps[0]))
        for alpha in set(pair.alphas)
    }
    return ideal(pair, tokens, lambda position: known[pair.alpha(len(PROMPT) + position - 1)])


@contextmanager
def daemons(pair: SimPair) -> Iterator[Client]:
    """A verifier and a drafter with sleeping engines, and the distance between them; the verifier's client."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sm-")))
        port = _free_port()
        steps = "/".join(f"{seconds * 1e3:.6g}" for seconds in pair.steps)
        alphas = "/".join(f"{alpha:.6g}" for alpha in pair.alphas)
        options = ["--log-level", "warning", "--socket"]
        verifier = ["verifier", "--engine", "sim", "--model", f"steps_ms={steps}", "--bind", f"tcp://127.0.0.1:{port}"]
        stack.enter_context(_running(["specmesh", *verifier, *options, str(folder / "verifier.sock")]))
        if pair.round_trip + pair.jitter >= MIN_PROXY_RTT_S:
            port = stack.enter_context(_proxy(port, pair))
        model = f"draft_ms={pair.draft * 1e3:.6g},alpha={alphas},period={pair.period}"
        drafter = ["drafter", "--engine", "sim", "--model", model, "--connect", f"tcp://127.0.0.1:{port}"]
        stack.enter_context(_running(["specmesh", *drafter, *options, str(folder / "drafter.sock")]))
        client = Client(folder / "verifier.sock")
        _until(lambda: bool(client.get("/stats").get("peers")))
        yield client


@contextmanager
def _proxy(port: int, pair: SimPair) -> Iterator[int]:
    delays = [str(pair.round_trip / 2), str(pair.jitter / 2)]
    with _running(["specmesh.bench.proxy", str(port), *delays], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline())


@contextmanager
def _running(module: list[str], stdout: int | None = None) -> Iterator["subprocess.Popen[str]"]:
    with subprocess.Popen([sys.executable, "-m", *module], stdout=stdout, text=True) as process:  # noqa: S603 - our own
        try:
            yield process
        finally:
            process.terminate()
            process.wait(15)


def _generate(client: Client, draft_n: int | str, tokens: int) -> tuple[float, float]:
    """(tokens per second, acceptance rate)."""
    body: Json = {"prompt": PROMPT, "max_tokens": tokens, "temperature": 0, "draft_n": draft_n, "cache_prompt": False}
    for chunk in client.complete(body):
        match chunk.get("specmesh"):
            case {"report": {"tokens_per_second": speed, "acceptance_rate": accepted}}:
                return float(speed), float(accepted or 0.0)
    raise EngineError("the simulated verifier did not report: see its messages above")


def _until(ready: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with suppress(SpecmeshError):
            if ready():
                return
        time.sleep(0.05)
    raise EngineError("the simulated daemons did not come up: see their messages above")


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])
