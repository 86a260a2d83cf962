"""Two drafters for one text at once, beside one of them.

    python bench/second.py [--step-ms MS] [--row-ms MS] [--draft-ms MS] [--alpha P] [--tokens N] [--repeats N] [--json]

A real verifier whose engine sleeps, started with --second-drafter, and drafters that sleep too, as processes of their
own. They are right at a share P of all places, independently of each other: no two real models are so different. Each
repeat has the same text with one drafter and with both, and a ratio is of these two. Printed are the medians, the
lowest ratio, the drafts of second chains and those that stood, and whether every text is the same.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parent))
from pool import Pool


def measure(pool: Pool, drafters: tuple[str, str], tokens: int, repeats: int) -> dict[str, object]:
    """The numbers."""
    speeds, ratios, texts = list[float](), list[float](), list[list[int]]()
    for _ in range(repeats):
        pool.alone(drafters[0])
        one, ids = pool.text(tokens, {})
        texts.append(ids)
        pool.alone(*drafters)
        two, ids = pool.text(tokens, {})
        texts.append(ids)
        speeds.append(one)
        ratios.append(two / one)
    totals = pool.client.get("/stats")["totals"]
    assert isinstance(totals, dict)
    return {
        "one": round(median(speeds), 2),
        "ratio": round(median(ratios), 4),
        "lowest": round(min(ratios), 4),
        "side_drafted": totals["side_drafted"],
        "side_accepted": totals["side_accepted"],
        "texts_equal": all(ids == texts[0] and len(ids) == tokens for ids in texts),
    }


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--step-ms", type=float, default=34.0)
    parser.add_argument("--row-ms", type=float, default=0.0)
    parser.add_argument("--draft-ms", type=float, default=5.0)
    parser.add_argument("--alpha", type=float, default=0.6)
    parser.add_argument("--tokens", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    first, second = (f"draft_ms={args.draft_ms},alpha={args.alpha},seed={seed}" for seed in (1, 2))
    with tempfile.TemporaryDirectory() as name:
        pool = Pool(Path(name), args.step_ms, "wrong", "--second-drafter", row_ms=args.row_ms)
        try:
            told = measure(pool, (first, second), args.tokens, args.repeats)
        finally:
            pool.close()
    if args.json:
        print(json.dumps(told))
        return
    print(f"one drafter: {told['one']} tokens/s")
    print(f"two: {told['ratio']} times that, lowest {told['lowest']}")
    print(f"of {told['side_drafted']} drafts of second chains {told['side_accepted']} stood")
    print(f"every text the same: {told['texts_equal']}")


if __name__ == "__main__":
    main()
