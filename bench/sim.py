"""Measure drafting at a verifier of this speed, at this distance, with models that only sleep.

    python bench/sim.py [--step-ms MS] [--row-ms MS] [--draft-ms MS] [--alpha P[/P...]]
                        [--round-trip-ms MS] [--jitter-ms MS] [--steps-file FILE] [--tokens N]
                        [--lockstep N[,N...]] [--repeats N] [--json]

The daemons are real, and a proxy delays each frame.

- lockstep: a fixed draft_n; the drafter works ahead, a little better than in lock-step.
- ideal: the same rule and text in virtual time, in which only models and distance take any.
- oracle: the ideal that knows the acceptance instead of learning it.
"""

import json
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from command_line import Options
from live import until

from specmesh.bench.steps import costs_of, read_costs
from specmesh.client import Client
from specmesh.core.draft_length import MAX_DRAFTS
from specmesh.core.draft_length.policy import Policy, PolicyInputs, solve
from specmesh.core.fields import Json, at, objects_at
from specmesh.core.simulation import Deployment, Simulation, Workload
from specmesh.engines.sim import PERIOD, SimDrafter, SimSettings, SimVerifier
from specmesh.errors import SpecmeshError

PROMPT = "a simulated text"
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
    speeds: dict[int | str, list[float]] = {}
    for draft_n in ways:
        speeds[draft_n] = []
    with daemons(pair) as client:
        for repeat in range(repeats):
            turn = repeat % len(ways)
            for draft_n in ways[turn:] + ways[:turn]:
                speed, accepted = generate(client, draft_n, tokens)
                speeds[draft_n].append(speed)
                if draft_n == "auto":
                    acceptance = accepted
        [peer] = objects_at(client.get("/stats"), "peers")
    mean = {draft_n: fmean(found) for draft_n, found in speeds.items()}
    alone = mean[0]
    adaptive = mean["auto"]
    best: int | None = None
    best_speedup: float | None = None
    if fixed:
        best = max(fixed, key=mean.__getitem__)
        best_speedup = round(mean[best] / alone, 4)
    best_possible = ideal(pair, tokens)
    informed = oracle(pair, tokens)
    lockstep = {str(n): round(mean[n], 3) for n in fixed}
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
            alone=pair.steps[0],
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
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sm-")))
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        steps = "/".join(f"{seconds * 1e3:.6g}" for seconds in pair.steps)
        alphas = "/".join(f"{alpha:.6g}" for alpha in pair.alphas)
        models = {
            "verifier": f"steps_ms={steps}",
            "drafter": f"draft_ms={pair.draft * 1e3:.6g},alphas={alphas}",
        }

        def start(role: str, flag: str) -> None:
            options = ["--log-level", "warning", "--engine", "sim", "--model", models[role]]
            options += ["--socket", str(folder / f"{role}.sock")]
            options += [flag, f"tcp://127.0.0.1:{port}"]
            stack.enter_context(running(["-m", "specmesh", role, *options]))

        start("verifier", "--bind")
        if pair.distance >= MIN_PROXY_RTT_S:
            delays = [str(pair.round_trip / 2), str(pair.jitter / 2)]
            proxy = [str(Path(__file__).with_name("delay_proxy.py")), str(port), *delays]
            output = stack.enter_context(running(proxy, subprocess.PIPE)).stdout
            assert output is not None
            port = int(output.readline())
        start("drafter", "--connect")
        client = Client(folder / "verifier.sock")
        until(lambda: bool(client.get("/stats").get("peers")))
        yield client


@contextmanager
def running(options: list[str], stdout: int | None = None) -> Iterator["subprocess.Popen[str]"]:
    """Run a Python process that ends with the block."""
    with subprocess.Popen([sys.executable, *options], stdout=stdout, text=True) as process:
        try:
            yield process
        finally:
            process.terminate()
            process.wait(15)


def generate(client: Client, draft_n: int | str, tokens: int) -> tuple[float, float]:
    """Return the tokens per second and the acceptance rate of one text."""
    body: Json = {
        "prompt": PROMPT,
        "max_tokens": tokens,
        "temperature": 0,
        "draft_n": draft_n,
        "cache_prompt": False,
    }
    for chunk in client.complete(body):
        match chunk.get("specmesh"):
            case {"report": {"tokens_per_second": speed, "acceptance_rate": accepted}}:
                return float(speed), float(accepted or 0.0)
    raise SystemExit("the simulated verifier did not report: see its messages above")


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
    steps: list[float] = []
    if args.steps_file is None:
        for drafts in range(MAX_DRAFTS + 1):
            steps.append((args.step_ms + args.row_ms * drafts) / 1e3)
    else:
        costs = read_costs(args.steps_file)
        for drafts in range(MAX_DRAFTS + 1):
            steps.append(costs.seconds(drafts + 1))
    alphas = tuple(map(float, args.alpha.split("/")))
    pair = Pair(
        steps=tuple(steps),
        draft=args.draft_ms / 1e3,
        round_trip=args.round_trip_ms / 1e3,
        jitter=args.jitter_ms / 1e3,
        alphas=alphas,
    )
    # By an exception, so that no daemon is left behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    fixed = [int(part) for part in args.lockstep.split(",") if part]
    try:
        found = measure(pair, args.tokens, fixed, args.repeats)
    except SpecmeshError as error:
        raise SystemExit(str(error)) from None
    if args.json:
        print(json.dumps(found, indent=2))
    else:
        print("\n".join(lines(found)))


if __name__ == "__main__":
    main()
