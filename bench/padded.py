"""Real acceptance at a large model's cost: specmesh and llama-server on the same two cores.

    python bench/padded.py [--types F32,F16,Q8_0,Q4_0] [--params 1e9] [--prompts N]
                           [--tokens N] [--repeats N] [--threads N] [--llama-server PATH]
                           [--sweep 1-8] [--cores 0,1] [--out DIR] [--json]

For each type bench/padded_model.py writes the bundled target anew, made expensive with that type
and still the same function, so that the bundled drafter's drafts are accepted as ever. Then,
prompt by prompt and in an order that rotates, every contender continues the same held-out source
text greedily (bench/contenders.py has the exact options):

- specmesh alone and specmesh auto: one verifier of one thread on the first core, one drafter of
  one thread on the second, with `draft_n` 0 and "auto";
- specmesh --draft-model: both models in one verifier of one thread;
- llama-server alone, at its default number of drafts, and with each --spec-draft-n-max of the
  sweep: one thread for the target and one for the drafter, free to use both cores. It drafts and
  verifies in turn, never both at once.

With --threads 2 the last two have two threads for each model. There is no drafter daemon then, and
the verifier alone is that of --draft-model, asked for no drafts.

The client runs on the second core. Two otherwise idle cores are needed: the work of other programs
is printed with the numbers. A first round of all is not counted. bench/README.md has the commands
that build llama-server; without it its rows are left out.
"""

import argparse
import json
import os
import sys
import tempfile
from collections import Counter
from contextlib import ExitStack, redirect_stdout
from pathlib import Path
from statistics import median

from command_line import Options, numbers
from contenders import (
    ALONE,
    AUTO,
    BESIDE,
    Contender,
    Place,
    Run,
    llama_servers,
    specmesh,
    specmesh_beside,
)
from foreign import Foreign
from held_out import prompts
from padded_model import TYPES, shape_for, write
from referee import referee

from specmesh import logs
from specmesh.bench.texts import ratio as share
from specmesh.paths import bundled

Runs = dict[str, list[Run]]
Row = dict[str, object]


def measure(
    contenders: dict[str, Contender], texts: list[list[int]], tokens: int, repeats: int
) -> Runs:
    """Run every contender on every text, `repeats` times, in rotating order."""
    names = list(contenders)
    runs: Runs = {}
    for name, contender in contenders.items():
        contender(texts[0], tokens)
        runs[name] = []
    for turn, text in enumerate(texts * repeats):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            runs[name].append(contenders[name](text, tokens))
    return runs


def ratio(runs: Runs, one: str, other: str) -> float:
    """Return the median over turns of the speed of `one` over that of `other`, on the same text."""
    ratios: list[float] = []
    for ours, theirs in zip(runs[one], runs[other], strict=True):
        ratios.append(ours.rate / theirs.rate)
    return round(median(ratios), 3)


def row(runs: list[Run], alone: list[Run]) -> Row:
    """Return a contender's row. overall: all tokens over all seconds, in which long waits count."""
    total: Counter[str] = Counter()
    seconds = 0.0
    for run, reference in zip(runs, alone, strict=True):
        total["drafted"] += run.drafted
        total["accepted"] += run.accepted
        total["timed"] += run.timed
        total["tokens"] += len(run.ids)
        total["same"] += int(run.ids == reference.ids)
        seconds += run.seconds
    drafted = total["drafted"]
    overall = total["timed"] / seconds
    return {
        "tokens_per_second": round(median_rate(runs), 2),
        "overall": round(overall, 2),
        "acceptance": share(total["accepted"], drafted, 3),
        "drafts_per_token": share(drafted, total["tokens"], 2),
        "same_text": total["same"],
    }


def median_rate(runs: list[Run]) -> float:
    """Return the median of tokens per second."""
    return median(run.rate for run in runs)


def summary(runs: Runs) -> dict[str, object]:
    """Return the rows of all contenders, and their ratios."""
    alone = runs[ALONE]
    rows: dict[str, Row] = {}
    swept: dict[str, float] = {}
    for name, found in runs.items():
        rows[name] = row(found, alone)
        if name.startswith("llama-server n="):
            swept[name] = median_rate(found)
    others = {"alone": ALONE}
    if "llama-server default" in runs:
        others["llama-server default"] = "llama-server default"
    if swept:
        others["llama-server best"] = max(swept, key=swept.__getitem__)
    ratios: dict[str, object] = {}
    for short, contender in (("auto", AUTO), ("--draft-model", BESIDE)):
        if contender in runs:
            for name, other in others.items():
                ratios[f"{short} / {name}"] = ratio(runs, contender, other)
    if swept:
        ratios["best"] = others["llama-server best"].removeprefix("llama-server ")
    return {"turns": len(alone), "rows": rows, "ratios": ratios}


def show(kind: str, found: dict[str, object]) -> None:
    """Print the table of one type."""
    rows = found["rows"]
    ratios = found["ratios"]
    assert isinstance(rows, dict)
    assert isinstance(ratios, dict)
    foreign = f"other programs kept {found['foreign_cores']} cores busy"
    print(f"\n{kind}: {found['turns']} turns, {foreign}")
    print(f"{'':22}   tok/s  overall  acceptance  drafts/token  same text")
    for name, cells in rows.items():
        acceptance = "-"
        if cells["acceptance"] is not None:
            acceptance = f"{cells['acceptance']:.3f}"
        speeds = f"{cells['tokens_per_second']:7.2f} {cells['overall']:8.2f}"
        drafts = f"{acceptance:>11} {cells['drafts_per_token']:13.2f}"
        print(f"{name:22} {speeds} {drafts} {cells['same_text']:10}")
    print("   ".join(f"{name}: {value}" for name, value in ratios.items()))
    if "llama-server alone" not in rows:
        print("llama-server: not measured, --llama-server was not given")


def of_type(kind: str, args: argparse.Namespace, folder: Path) -> dict[str, object]:
    """Write the target unless --out has it already, start everything, and measure."""
    layer = shape_for(args.params)
    target = folder / f"{Path(args.target).stem}-{kind}-{layer.width}x{layer.count}.gguf"
    if not target.is_file():
        write(target, layer, kind, Path(args.target))
    with referee(args.target) as engine:
        texts = list(map(engine.tokenizer.encode, prompts(args.prompts)))
    foreign = Foreign()
    with ExitStack() as stack:
        run_folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        place = Place(
            folder=run_folder,
            target=str(target),
            drafter=args.drafter,
            cores=tuple(args.cores),
            threads=args.threads,
        )
        contenders: dict[str, Contender] = {}
        if args.threads == 1:
            contenders |= stack.enter_context(specmesh(place))
        contenders |= stack.enter_context(specmesh_beside(place))
        if args.llama_server:
            settings: list[int | str | None] = [None, "default", *args.sweep]
            contenders |= stack.enter_context(llama_servers(place, args.llama_server, settings))
        found = summary(measure(contenders, texts, args.tokens, args.repeats))
    if args.out is None:
        target.unlink()
    found["padding_weights"] = layer.count * layer.params()
    found["foreign_cores"] = foreign.cores()
    return found


def _span(text: str) -> list[int]:
    """Return the numbers of 1-8 or 2,3,5."""
    first, _, last = text.partition("-")
    if last:
        return list(range(int(first), int(last) + 1))
    return numbers(text)


def _arguments() -> argparse.Namespace:
    parser = Options(__doc__)
    parser.option("--types", ",".join(TYPES))
    parser.option("--params", 1e9, "weights of the padding")
    parser.option("--prompts", 10)
    parser.option("--tokens", 128)
    parser.option("--repeats", 1)
    parser.option("--threads", 1)
    parser.option("--target", bundled("target.gguf"))
    parser.option("--drafter", bundled("drafter.gguf"))
    parser.add_argument("--llama-server", type=Path, help="the program to compare with")
    parser.add_argument(
        "--sweep", type=_span, default=_span("1-8"), help="values of --spec-draft-n-max"
    )
    parser.add_argument(
        "--cores", type=_span, default=[0, 1], help="the verifier's and the drafter's"
    )
    parser.add_argument(
        "--out", type=Path, help="keep the padded targets there, and use those that are there"
    )
    parser.switch("--json")
    args = parser.parse_args()
    args.types = args.types.split(",")
    if len(args.cores) != 2 or not set(args.types) <= set(TYPES):
        parser.error(f"--cores takes two numbers, --types a list out of {','.join(TYPES)}")
    return args


def main() -> None:
    """Measure and show type by type; with --json the tables go to stderr."""
    args = _arguments()
    logs.configure("error")
    os.sched_setaffinity(0, {args.cores[1]})
    results: dict[str, dict[str, object]] = {}
    with ExitStack() as stack:
        folder = args.out or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        for kind in args.types:
            found = of_type(kind, args, folder)
            results[kind] = found
            with redirect_stdout(sys.stderr if args.json else sys.stdout):
                show(kind, found)
    if args.json:
        print(json.dumps({"tokens": args.tokens, "prompts": args.prompts, "types": results}))


if __name__ == "__main__":
    main()
