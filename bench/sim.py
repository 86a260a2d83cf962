"""Measure drafting at a verifier of this speed, at this distance, with models that only sleep.

    python bench/sim.py [--step-ms MS] [--row-ms MS] [--draft-ms MS] [--alpha P[/P...]]
                        [--round-trip-ms MS] [--jitter-ms MS] [--steps-file FILE] [--tokens N]
                        [--lockstep N[,N...]] [--repeats N] [--json]

The daemons are real, and a proxy delays each frame.

- lockstep: a fixed draft_n; the drafter works ahead, a little better than in lock-step.
- ideal: the same rule and text in virtual time, in which only models and distance take any.
- oracle: the ideal that knows the acceptance instead of learning it.
"""

import argparse
import json
import signal
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from command_line import Options, numbers
from live import command, free_port, is_drafted, running, until

from specmesh.bench.step_times import costs_of, read_costs
from specmesh.bench.texts import generate
from specmesh.client import Client
from specmesh.core.draft_length import MAX_DRAFTS
from specmesh.core.draft_length.policy import Policy, PolicyInputs, solve
from specmesh.core.fields import Json, at, number_at, objects_at
from specmesh.core.simulation import Deployment, Simulation, Workload
from specmesh.engines.sim import PERIOD, SimDrafter, SimSettings, SimVerifier
from specmesh.errors import SpecmeshError

PROMPT = "a simulated text"
DELAY_PROXY = Path(__file__).with_name("delay_proxy.py")
MIN_PROXY_RTT_S = 0.5e-3
"""Minimum round trip for a proxy in between: loopback and the daemons take about as long."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pair:
    """A simulated pair; times are in seconds."""

    steps: tuple[float, ...]  # with 0, 1, ... drafts
    draft: float
    round_trip: float
    jitter: float
    alphas: tuple[float, ...]  # acceptance of a draft, each for PERIOD tokens in turn

    @property
    def distance(self) -> float:
        """Return the longest round trip."""
        return self.round_trip + self.jitter

    def alpha(self, position: int) -> float:
        """Return the probability for the token at `position`, prompt included."""
        return self.alphas[position // PERIOD % len(self.alphas)]


def measure(pair: Pair, tokens: int, fixed: list[int], repeats: int) -> Json:
    """Run the daemons alone, with each fixed draft_n, and adaptive; return what --json prints."""
    ways: list[int | str] = [0, *fixed, "auto"]
    speeds: dict[int | str, list[float]] = defaultdict(list)
    body: Json = {"prompt": PROMPT, "max_tokens": tokens, "temperature": 0, "cache_prompt": False}
    with daemons(pair) as client:
        for repeat in range(repeats):
            turn = repeat % len(ways)
            for draft_n in ways[turn:] + ways[:turn]:
                report = generate(client, body | {"draft_n": draft_n}).report
                speeds[draft_n].append(number_at(report, "tokens_per_second"))
                if draft_n == "auto":
                    acceptance = number_at(report, "acceptance_rate", 0.0)
        [peer] = objects_at(client.get("/stats"), "peers")
    alone = fmean(speeds[0])
    adaptive = fmean(speeds["auto"])
    best: int | None = None
    best_speedup: float | None = None
    lockstep: dict[str, float] = {}
    for draft_n in fixed:
        mean = fmean(speeds[draft_n])
        lockstep[str(draft_n)] = round(mean, 3)
        speedup = round(mean / alone, 4)
        if best_speedup is None or speedup > best_speedup:
            best = draft_n
            best_speedup = speedup
    best_possible = ideal(pair, tokens)
    informed = oracle(pair, tokens)
    return {
        "schema_version": 1,
        "tokens_per_second": {"alone": alone, "lockstep": lockstep, "specmesh": adaptive},
        "speedup": round(adaptive / alone, 4),
        "best_lockstep": best,
        "speedup_best_lockstep": best_speedup,
        "ideal": best_possible,
        "ideal_speedup": round(best_possible * pair.steps[0], 4),
        "efficiency": round(adaptive / best_possible, 4),
        "oracle": informed,
        "oracle_efficiency": round(adaptive / informed, 4),
        "acceptance_rate": round(acceptance, 4),
        "measured_round_trip_ms": at(peer, "round_trip_ms.p50"),
    }


def lines(found: Json) -> list[str]:
    """Return the same as a table."""
    speeds = found["tokens_per_second"]
    assert isinstance(speeds, dict)
    rows = {"the verifier alone": speeds["alone"]}
    for draft_n, speed in speeds["lockstep"].items():
        rows[f"fixed draft_n {draft_n}"] = speed
    rows["specmesh, adaptive"] = speeds["specmesh"]
    rows["ideal, no overhead"] = found["ideal"]
    rows["ideal, acceptance told"] = found["oracle"]
    table: list[str] = []
    for name, speed in rows.items():
        speedup = speed / speeds["alone"]
        table.append(f"{name:<22}{speed:9.2f} tok/s {speedup:7.3f}x")
    table.append(f"efficiency {found['efficiency']} of the ideal pair")
    return table


def ideal(pair: Pair, tokens: int, policy: Callable[[int], Policy] | None = None) -> float:
    """Return tokens per second of the daemons' text in virtual time, without the prompt."""
    steps_ms: dict[int, float] = {}
    for rows, seconds in enumerate(pair.steps, 1):
        steps_ms[rows] = seconds * 1e3
    costs = costs_of({0: steps_ms})
    site = Deployment(costs=costs, draft=pair.draft, round_trip=pair.distance, solving=0.0)
    hits = guesses(SimSettings(alphas=pair.alphas, n_ctx=len(PROMPT) + tokens), tokens)

    def right(position: int) -> bool:
        return any(hits[position - 1 : position])

    simulation = Simulation(site, Workload(1, tokens), 1, right, policy)
    return simulation.run().total


def oracle(pair: Pair, tokens: int) -> float:
    """Return the same for a pair that knows the acceptance."""
    policies: dict[float, Policy] = {}
    for alpha in set(pair.alphas):
        inputs = PolicyInputs(
            steps=pair.steps,
            rates=(alpha,) * len(pair.steps),
            interval=pair.draft,
            restart=pair.distance + 1.5 * pair.draft,
            undrafted_s=pair.steps[0],
        )
        policies[alpha] = solve(inputs)

    def policy(position: int) -> Policy:
        return policies[pair.alpha(len(PROMPT) + position - 1)]

    return ideal(pair, tokens, policy)


def guesses(settings: SimSettings, tokens: int) -> list[bool]:
    """Return for each of `tokens` ids after the prompt if SimDrafter guesses SimVerifier's."""
    target = SimVerifier(settings)
    drafter = SimDrafter(settings)
    prefix = target.prefixes[0]
    for token in target.encode(PROMPT):
        following = target.append(0, token)
    hits: list[bool] = []
    for _ in range(tokens):
        guess = drafter.draft(prefix.crc, len(prefix), following)
        hits.append(guess == following)
        following = target.append(0, following)
    return hits


@contextmanager
def daemons(pair: Pair) -> Iterator[Client]:
    """Run a simulated pair at its distance; yield the verifier's client."""
    steps: list[str] = []
    for seconds in pair.steps:
        steps.append(f"{seconds * 1e3:.6g}")
    alphas = "/".join(map("{:.6g}".format, pair.alphas))
    port = free_port()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sm-")))
        path = folder / "verifier.sock"
        verifier = command(
            "verifier",
            log_level="warning",
            engine="sim",
            model=f"steps_ms={'/'.join(steps)}",
            socket=path,
            bind=f"tcp://127.0.0.1:{port}",
        )
        stack.enter_context(running(verifier))
        if pair.distance >= MIN_PROXY_RTT_S:
            port = stack.enter_context(proxy(port, pair))
        drafter = command(
            "drafter",
            log_level="warning",
            engine="sim",
            model=f"draft_ms={pair.draft * 1e3:.6g},alphas={alphas}",
            socket=folder / "drafter.sock",
            connect=f"tcp://127.0.0.1:{port}",
        )
        stack.enter_context(running(drafter))
        client = Client(path)
        until(lambda: is_drafted(client))
        yield client


@contextmanager
def proxy(port: int, pair: Pair) -> Iterator[int]:
    """Run the proxy between a pair and a verifier's port; yield its own."""
    words = [sys.executable, str(DELAY_PROXY), str(port)]
    words += [str(pair.round_trip / 2), str(pair.jitter / 2)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.terminate()


def steps_of(args: argparse.Namespace) -> tuple[float, ...]:
    """Return the seconds of a step with 0, 1, ... drafts."""
    steps: list[float] = []
    if args.steps_file is None:
        for drafts in range(MAX_DRAFTS + 1):
            steps.append((args.step_ms + args.row_ms * drafts) / 1e3)
    else:
        costs = read_costs(args.steps_file)
        for drafts in range(MAX_DRAFTS + 1):
            steps.append(costs.seconds(drafts + 1))
    return tuple(steps)


def main() -> None:
    """Run and print."""
    parser = Options(__doc__)
    parser.option("--step-ms", 34.2, "a step of one row")
    parser.option("--row-ms", 1.0, "each further row")
    parser.option("--draft-ms", 5.2, "a draft")
    parser.option(
        "--alpha", "0.75", "probability that a draft is accepted; several, 300 tokens each: 0.9/0.2"
    )
    parser.option("--round-trip-ms", 0.3)
    parser.option("--jitter-ms", 0.0)
    parser.add_argument("--steps-file", type=Path, help="what `specmesh bench steps --json` prints")
    parser.option("--tokens", 600)
    parser.option("--lockstep", "4", "fixed draft_n to compare with: 2,4; may be empty")
    parser.option("--repeats", 1)
    parser.switch("--json")
    args = parser.parse_args()
    pair = Pair(
        steps=steps_of(args),
        draft=args.draft_ms / 1e3,
        round_trip=args.round_trip_ms / 1e3,
        jitter=args.jitter_ms / 1e3,
        alphas=tuple(map(float, args.alpha.split("/"))),
    )
    # By an exception, so that no daemon is left behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        found = measure(pair, args.tokens, numbers(args.lockstep), args.repeats)
    except SpecmeshError as error:
        raise SystemExit(str(error)) from None
    if args.json:
        print(json.dumps(found, indent=2))
    else:
        print("\n".join(lines(found)))


if __name__ == "__main__":
    main()
