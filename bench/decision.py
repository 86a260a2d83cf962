"""What the adaptive draft_n itself costs: a decision, a policy, and what solving policies does to the loop.

    python bench/decision.py [--rounds N] [--json]

A decision is everything `Pacing` does for one step: planning it, and taking in what came of it. The last two lines are
how late the loop's thread wakes when a step ends, with the solver's thread idle and with it solving all the time, which
in a daemon it does for a few milliseconds every 0.5 to 4 seconds of a session.
"""

import argparse
import json
import queue
import random
import statistics
import sys
import threading
import time

from specmesh.core.acceptance import RollingAcceptance
from specmesh.core.arrivals import Arrivals
from specmesh.core.costs import StepCosts
from specmesh.core.pacing import Pacing
from specmesh.core.policy import solve
from specmesh.core.session_times import SessionTimes
from specmesh.daemons.process import SWITCH_INTERVAL

STEP, ROW, INTERVAL, ROUND_TRIP, MOST = 0.0342, 0.001, 0.0052, 0.005, 16


def pacing() -> Pacing:
    """One that knows what it needs to know."""
    costs, arrivals = StepCosts(), Arrivals()
    for rows in range(1, MOST + 2):
        costs.record(rows, STEP + ROW * (rows - 1))
    for drafting in (False, True):
        costs.record_pause(0.0003, drafting=drafting)
    arrivals.record_round_trip(ROUND_TRIP)
    arrivals.record_restart(ROUND_TRIP + 1.5 * INTERVAL, 1)
    arrivals.record_interval(INTERVAL, 1)
    made = Pacing(None, MOST, costs, RollingAcceptance(memory=12, parent=RollingAcceptance()), SessionTimes(0.0))
    made.attach(arrivals)
    return made


def decisions(rounds: int) -> list[float]:
    """Seconds of each of so many decisions; now and then the policy is solved anew, which is not counted."""
    pace, chance, now, frontier, taken = pacing(), random.Random(1), 0.0, 100, []
    for _ in range(rounds):
        lead = chance.randrange(8)
        pace.arrived(frontier, frontier + lead, now)
        begun = time.perf_counter()
        drafts, _ = pace.plan(frontier, lead, MOST, now)
        pace.begin(now)
        taken.append(time.perf_counter() - begun)
        drafts = min(drafts, lead)
        accepted = next((at for at in range(drafts) if chance.random() > 0.75), drafts)
        now, frontier = now + STEP + ROW * drafts, frontier + accepted + 1
        begun = time.perf_counter()
        pace.stepped(frontier, min(accepted + 1, drafts), accepted, flushed=accepted < drafts, now=now)
        inputs = pace.unsolved(now)
        taken[-1] += time.perf_counter() - begun
        if inputs is not None:
            pace.adopt(solve(inputs, pace.policy))
    return taken


def solving(times: int) -> tuple[list[float], list[float]]:
    """Seconds of a policy from nothing, and from the one before it."""
    pace, cold, warm = pacing(), [], []
    for number in range(times):
        pace.acceptance.record(8, number % 8)
        inputs = pace.unsolved(10.0 * number)
        if inputs is None:
            continue
        for start, kept in ((None, cold), (pace.policy, warm)):
            begun = time.perf_counter()
            policy = solve(inputs, start)
            kept.append(time.perf_counter() - begun)
        pace.adopt(policy)
    return cold, warm


def lateness(rounds: int, *, busy: bool) -> list[float]:
    """Seconds from the end of a step on one thread to the loop's thread taking it up."""
    told: queue.SimpleQueue[float] = queue.SimpleQueue()
    done = threading.Event()
    inputs = pacing().unsolved(0.0)
    assert inputs is not None

    def engine() -> None:
        for _ in range(rounds):
            time.sleep(0.002)
            told.put(time.perf_counter())

    def solver() -> None:
        while not done.is_set():
            solve(inputs)

    threads = [threading.Thread(target=engine), *([threading.Thread(target=solver)] if busy else [])]
    for thread in threads:
        thread.start()
    late = []
    for _ in range(rounds):
        ended = told.get()
        late.append(time.perf_counter() - ended)
    done.set()
    for thread in threads:
        thread.join()
    return late


def shown(times: list[float]) -> dict[str, float]:
    """Median and 99th percentile in microseconds."""
    late = sorted(times)[int(len(times) * 0.99)]
    return {"p50_us": round(statistics.median(times) * 1e6, 1), "p99_us": round(late * 1e6, 1)}


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20_000)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    sys.setswitchinterval(SWITCH_INTERVAL)  # as the daemons do
    cold, warm = solving(60)
    result = {
        "decision": shown(decisions(args.rounds)),
        "policy_from_nothing": shown(cold),
        "policy_from_the_last": shown(warm),
        "loop_wakes_late": shown(lateness(args.rounds // 20, busy=False)),
        "loop_wakes_late_while_solving": shown(lateness(args.rounds // 20, busy=True)),
    }
    print(json.dumps(result) if args.json else "\n".join(f"{name:32} {value}" for name, value in result.items()))


if __name__ == "__main__":
    main()
