"""Measure what options of a verifier do to the time of a token, with many or few clients.

    python bench/option_speed.py --model FILE --options OPTIONS [--crowds CLIENTSxIDS,...]
                                 [--tokens N] [--repeats N] [--ctx N] [--threads N]

Two verifiers, one with default options and one with OPTIONS. Clients ask them in turn, as many at
once as a crowd has, each after a prompt of so many random ids that has been read before. Nothing is
drafted. Printed are the milliseconds of a token, the median over clients, and the second verifier's
over the first one's.
"""

import random
import shlex
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from beside import NO_DRAFTS, Server, Setting, ask, ours, random_ids
from command_line import Options

SLOTS = 16


def token_s(server: Server, texts: list[list[int]], tokens: int) -> float:
    """Have each text read, then continue all at once; return the median seconds of a token."""

    def answers(count: int) -> list[float]:
        with ThreadPoolExecutor(len(texts)) as clients:
            found = clients.map(lambda ids: ask(server, ids, count, NO_DRAFTS).rest_s, texts)
            return list(found)

    answers(1)
    return median(answers(tokens))


def main() -> None:
    """Measure and print."""
    parser = Options(__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--options", required=True)
    parser.option("--crowds", "1x3000,4x1000,8x1000,8x300,16x150")
    parser.option("--tokens", 48)
    parser.option("--repeats", 2)
    parser.option("--ctx", 8192)
    parser.option("--threads", 2)
    args = parser.parse_args()
    setting = Setting(args.model, args.threads, args.ctx, SLOTS)
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        default, _ = stack.enter_context(ours(setting, folder))
        changed, _ = stack.enter_context(ours(setting, folder, shlex.split(args.options)))
        for crowd in args.crowds.split(","):
            clients, ids = map(int, crowd.split("x"))
            ratios: list[float] = []
            for turn in range(args.repeats):
                rng = random.Random(turn)
                texts = [random_ids(rng, ids) for _ in range(clients)]
                order = [default, changed] if turn % 2 else [changed, default]
                took = {server.port: token_s(server, texts, args.tokens) for server in order}
                ratios.append(took[changed.port] / took[default.port])
            spread = ", ".join(f"{ratio:.2f}" for ratio in ratios)
            last = f"{1e3 * took[default.port]:.0f} and {1e3 * took[changed.port]:.0f} ms"
            print(f"{crowd}: {median(ratios):.2f} ({spread}); last {last}", flush=True)


if __name__ == "__main__":
    main()
