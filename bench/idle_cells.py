"""Measure the speed of a short session while long idle texts fill the cells.

    python bench/idle_cells.py --model FILE [--idle N,...] [--ids N] [--tokens N] [--repeats N]
                               [--threads N]

Two verifiers with default options. One of them reads idle texts of so many random ids, which stay
in its prefix cache. Then both answer texts of --ids ids in turn, without drafts. Printed are the
seconds of each idle text's first answer, and the speed of a token with idle texts over that without
them: the median of the pairs, the least and the most.
"""

import json
import random
import tempfile
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from beside import NO_DRAFTS, ask, random_ids
from command_line import Options, numbers
from overflow import verifier


def main() -> None:
    """Measure and print."""
    parser = Options(__doc__)
    parser.add_argument("--model", required=True)
    parser.option("--idle", "30000,30000,30000,10000")
    parser.option("--ids", 500)
    parser.option("--tokens", 64)
    parser.option("--repeats", 9)
    parser.option("--threads", 2)
    args = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        words = ["--model", args.model, "--threads", str(args.threads)]
        empty, _ = stack.enter_context(verifier(words, folder))
        full, client = stack.enter_context(verifier(words, folder))
        for number, count in enumerate(numbers(args.idle)):
            ids = random_ids(random.Random(number), count)
            answer = ask(full, ids, 1, NO_DRAFTS)
            print(f"{count} ids: first token after {answer.first_s:.1f} s", flush=True)
        print(json.dumps(client.get("/stats").get("kv_cache")), flush=True)
        ratios: list[float] = []
        for number in range(args.repeats):
            ids = random_ids(random.Random(1000 + number), args.ids)
            order = [empty, full] if number % 2 else [full, empty]
            seconds: dict[int, float] = {}
            for server in order:
                seconds[server.port] = ask(server, ids, args.tokens, NO_DRAFTS).rest_s
            ratios.append(seconds[empty.port] / seconds[full.port])
        spread = f"{min(ratios):.3f} to {max(ratios):.3f}"
        print(f"speed beside idle texts over that without: {median(ratios):.3f} ({spread})")


if __name__ == "__main__":
    main()
