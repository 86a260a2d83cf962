"""Measure how often the drafts of a prediction are right, in the edits of a repository's history.

    python bench/predictions.py --repository DIR --target FILE [--edits N] [--drafts N] [--json]

An edit is one file before and after a commit: the client predicts the former, the answer is the
latter. Each answer is gone through as a verifier would, with so many drafts a step. Printed is the
share of accepted drafts by the number of ids in a row that agreed before them, the source of
PREDICTION_PRIOR in `core/draft_length/match_acceptance.py`. TARGET's vocabulary is used, not its
weights.
"""

import json
import random
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from command_line import Options

from specmesh import logs
from specmesh.config import ModelSettings
from specmesh.core.draft_length import MAX_COPIED
from specmesh.core.draft_length.match_acceptance import LENGTHS
from specmesh.core.verifier.predicted_text import PredictedText
from specmesh.core.verifier.sources.prediction import Alignment
from specmesh.engines.llama.engine import LlamaVerifier

SUFFIXES = (".py", ".js", ".ts", ".go", ".c", ".rs", ".java", ".md")
LETTERS = range(500, 24_000)  # of a file
SEED = 1


def git(repository: Path, *words: str) -> str:
    """Return what git prints."""
    command = ["git", "-C", str(repository), *words]
    done = subprocess.run(command, capture_output=True, check=True)
    return done.stdout.decode(errors="replace")


def edits(repository: Path) -> Iterator[tuple[str, str]]:
    """Yield files before and after a commit, the commits in a random order."""
    newest = ("log", "--no-merges", "--format=%H", "-n", "3000")
    commits = git(repository, *newest).split()
    random.Random(SEED).shuffle(commits)
    listing = ("diff-tree", "-r", "--no-commit-id", "--diff-filter=M", "--raw", "--abbrev=40")
    for commit in commits:
        for line in git(repository, *listing, commit).splitlines():
            blobs, _, path = line.partition("\t")
            if not path.endswith(SUFFIXES):
                continue
            _, _, before, after, _ = blobs.split()
            file = git(repository, "cat-file", "-p", after)
            if len(file) in LETTERS:
                yield git(repository, "cat-file", "-p", before), file


def gone_through(
    predicted: list[int], answer: list[int], drafts: int
) -> Iterator[tuple[int, int, int]]:
    """Yield, for each step: ids that agreed, drafts tested, and drafts accepted."""
    alignment = Alignment(PredictedText(predicted))
    at = 0
    while at < len(answer):
        proposed, agreed = alignment.after((), min(drafts, len(answer) - at - 1))
        accepted = 0
        for token in proposed:
            if token != answer[at + accepted]:
                break
            accepted += 1
        yield agreed, min(accepted + 1, len(proposed)), accepted
        end = at + accepted + 1
        alignment.follow(answer[at:end])
        at = end


def main() -> None:
    """Measure and print."""
    parser = Options(__doc__)
    parser.add_argument("--repository", type=Path, required=True)
    parser.add_argument("--target", required=True)
    parser.option("--edits", 300)
    parser.option("--drafts", MAX_COPIED)
    parser.switch("--json")
    args = parser.parse_args()
    logs.configure("error")
    tokenizer = LlamaVerifier(ModelSettings(engine="llama", model=args.target)).tokenizer
    tested: Counter[int] = Counter()
    accepted: Counter[int] = Counter()
    answers = 0
    for before, after in edits(args.repository):
        if answers == args.edits:
            break
        answers += 1
        predicted, answer = tokenizer.encode(before), tokenizer.encode(after)
        for agreed, count, right in gone_through(predicted, answer, args.drafts):
            for draft in range(count):
                least = max(length for length in LENGTHS if length <= agreed + draft)
                tested[least] += 1
                accepted[least] += draft < right
    rates = {least: accepted[least] / max(tested[least], 1) for least in LENGTHS}
    if args.json:
        print(json.dumps({"answers": answers, "tested": tested, "rates": rates}))
        return
    print(f"{answers} edits")
    for least, rate in rates.items():
        print(f"from {least:2} ids on: {tested[least]:7} drafts, {rate:.4f} accepted")


if __name__ == "__main__":
    main()
