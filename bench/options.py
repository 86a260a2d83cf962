"""Compare a verifier with llama-server for each option of placement, caches and adapters.

    python bench/options.py --llama-server FILE --model FILE [--adapter FILE] [--vocabulary N]
                            [--tie NATS]

Both get the same words, and the same prompts of random ids. A line for each option says how many
answers are the same ids, and how many differ at a near tie: the second token is at most NATS behind
the first. With --adapter that LoRA adapter is tried, too. The model should have experts.
"""

import random
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from beside import Setting, ours, theirs
from command_line import Options
from overflow import compared
from prefixes import LEAST_ID, ask

PROMPTS = 4
PROMPT = 200

OPTIONS = """
--cache-type-k q8_0
--cache-type-v q4_0 --flash-attn on
--cache-type-k iq4_nl --cache-type-v q5_1
--cache-type-k bf16 --cache-type-v bf16
--cache-type-k f32 --cache-type-v f32
--flash-attn on
--flash-attn off
--device none
--split-mode none
--cpu-moe
--n-cpu-moe 1
--override-tensor ffn_.*_exps=CPU
--ubatch-size 16
--rope-scaling linear --rope-scale 2
--rope-scaling yarn --rope-scale 4
--rope-scaling yarn --rope-scale 4 --yarn-orig-ctx 128
"""


LOAD_MODES = {"--no-mmap": "none", "--mlock": "mmap+mlock", "--no-mmap --mlock": "mlock"}
"""llama-server's --load-mode for our options."""


def words_of_both(adapter: Path | None) -> Iterator[tuple[list[str], list[str]]]:
    """Yield the words of each option, for us and for llama-server."""
    yield [], []
    for line in OPTIONS.split("\n"):
        if line:
            yield line.split(), line.split()
    for line, mode in LOAD_MODES.items():
        yield line.split(), ["--load-mode", mode]
    if adapter is not None:
        yield ["--lora", f"{adapter}"], ["--lora", f"{adapter}"]
        # There --lora takes no scale.
        yield ["--lora", f"{adapter}:0.5"], ["--lora-scaled", f"{adapter}:0.5"]


def main() -> None:
    """Compare, and print a line for each option."""
    parser = Options(__doc__)
    parser.add_argument("--llama-server", type=Path, required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--adapter", type=Path)
    parser.option("--vocabulary", 250)
    parser.option("--tie", 0.01)
    args = parser.parse_args()
    rng = random.Random(0)
    prompts: list[list[int]] = []
    for _ in range(PROMPTS):
        prompts.append([rng.randrange(LEAST_ID, args.vocabulary) for _ in range(PROMPT)])
    setting = Setting(args.model, 1, ctx=512, slots=2)
    usual: list[list[int]] = []
    for words, their_words in words_of_both(args.adapter):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            with (
                ours(setting, folder, words) as (us, _),
                theirs(args.llama_server, setting, folder, their_words) as (them, _),
            ):
                answers = [ask(us, prompt).answer for prompt in prompts]
                rival = [ask(them, prompt).answer for prompt in prompts]
        usual = usual or [answer.ids for answer in answers]
        kinds = Counter(
            compared(one, other, args.tie).partition(",")[0]
            for one, other in zip(rival, answers, strict=True)
        )
        changed = sum(one.ids != other for one, other in zip(answers, usual, strict=True))
        print(f"{dict(kinds)}, {changed} other than without options: {' '.join(words)}", flush=True)


if __name__ == "__main__":
    main()
