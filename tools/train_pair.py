"""Train, export and measure the bundled pair of tiny models.

In a virtual environment of its own:

    pip install --editable '.[pair]'

    python tools/train_pair.py all                  # the bundled pair, on two cores
    python tools/train_pair.py cotrain --compile --minutes 60
    python tools/train_pair.py distil --compile --minutes 10
    python tools/train_pair.py export
    python tools/train_pair.py report

`cotrain` trains the tokenizer, then the target on the text and the drafter on the target, in one
loop; `distil` freezes the target and lets the drafter practise on its texts; `export`
writes `specmesh/models`; `report` measures those files with llama.cpp and writes `card.json`.

The learning rate follows the clock (`--minutes`), so that a run fits the time there is. For a run
that does not depend on the machine's speed give `--steps` instead; the card says how many steps
the bundled pair had. All random numbers come from fixed seeds. Sums in another order (other
processors, another number of workers) still change the last digits of the weights.
"""

from __future__ import annotations

import argparse
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import torch
from pair import data, distill, export, team, train, vocab
from pair.model import Llama, drafter_shape, target_shape

BUNDLE = Path(__file__).resolve().parents[1] / "specmesh" / "models"


def _corpus(work: Path) -> tuple[list[list[int]], list[list[int]]]:
    """Return token ids of the training and held-out files; train the tokenizer if it is missing."""
    work.mkdir(parents=True, exist_ok=True)
    path = work / "tokenizer.json"
    files = data.training_files()
    if not path.is_file():
        vocab.train_tokenizer(list(files.values())).save(str(path))
    tokenizer = vocab.load_tokenizer(path)
    held = data.held_out_files()
    train_ids = vocab.encode_files(tokenizer, files)
    held_ids = vocab.encode_files(tokenizer, held)
    for name, texts, ids in (("train", files, train_ids), ("held-out", held, held_ids)):
        size = len("".join(texts.values()).encode())
        tokens = sum(map(len, ids))
        train.say(f"{name}: {len(texts)} files, {size} bytes, {tokens} tokens")
    return train_ids, held_ids


def _plan(kind: type[Any], args: argparse.Namespace) -> Any:
    settings: dict[str, Any] = {}
    for field in fields(kind):
        settings[field.name] = getattr(args, field.name)
    return kind(**settings)


def _load_pair(path: Path) -> tuple[Llama, Llama]:
    state = torch.load(path, weights_only=True)
    target = Llama(target_shape(vocab.VOCAB))
    drafter = Llama(drafter_shape(vocab.VOCAB))
    target.load_state_dict(state["target"])
    drafter.load_state_dict(state["drafter"])
    return target, drafter


def _newest(work: Path) -> Path:
    """Return the finished pair, or the last checkpoint of co-training if there is none."""
    final = work / "final.pt"
    return final if final.is_file() else work / "cotrain.pt"


def _cotrain(args: argparse.Namespace) -> None:
    _corpus(args.work)  # the tokenizer must be there before the workers start
    team.start(args.workers, partial(_cotrain_worker, args))


def _cotrain_worker(args: argparse.Namespace) -> None:
    train_ids, held_ids = _corpus(args.work)
    plan = _plan(train.Plan, args)
    trainer = train.Trainer(vocab.VOCAB, train_ids, held_ids, plan, args.work)
    sizes = [trainer.target.parameter_count(), trainer.drafter.parameter_count()]
    train.say(f"parameters {sizes} ratio {sizes[0] / sizes[1]:.2f}")
    if args.resume:
        trainer.resume()
    trainer.run()


def _distil(args: argparse.Namespace) -> None:
    team.start(args.workers, partial(_distil_worker, args))


def _distil_worker(args: argparse.Namespace) -> None:
    train_ids, held_ids = _corpus(args.work)
    target, drafter = _load_pair(args.work / "cotrain.pt")
    plan = _plan(distill.Finish, args)
    distiller = distill.Distiller(target, drafter, train_ids, plan, args.work)
    distiller.run()
    loss = train.held_out_loss(drafter, held_ids[::4])
    train.say(f"drafter held-out {loss:.4f}")


def _export(args: argparse.Namespace) -> None:
    newest = _newest(args.work)
    target, drafter = _load_pair(newest)
    tokenizer = vocab.load_tokenizer(args.work / "tokenizer.json")
    export.write_pair(target, drafter, tokenizer, args.bundle)
    train.say(f"exported {newest.name}")


def _report(args: argparse.Namespace) -> None:
    from pair import card  # noqa: PLC0415 - it needs llama_cpp, which training does not

    _, held_ids = _corpus(args.work)
    models = _load_pair(_newest(args.work))
    card.write(models, held_ids, args.work, args.bundle)


def _add_plan(parser: argparse.ArgumentParser, kind: type[Any]) -> None:
    for field in fields(kind):
        flag = "--" + field.name.replace("_", "-")
        if isinstance(field.default, bool):
            parser.add_argument(flag, action="store_true")
        else:
            parser.add_argument(flag, type=type(field.default), default=field.default)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, default=Path("build/pair"), help="checkpoints")
    parser.add_argument("--bundle", type=Path, default=BUNDLE, help="where the pair goes")
    parser.add_argument("--workers", type=int, default=2, help="processes of one thread each")
    commands = parser.add_subparsers(dest="command", required=True)
    cotrain = commands.add_parser("cotrain", help="train both models together")
    cotrain.add_argument("--resume", action="store_true")
    _add_plan(cotrain, train.Plan)
    cotrain.set_defaults(run=_cotrain)
    distil = commands.add_parser("distil", help="practise on the target's own text")
    _add_plan(distil, distill.Finish)
    distil.set_defaults(run=_distil)
    stages = {
        "export": (_export, "write the bundle"),
        "report": (_report, "measure the bundle"),
        "all": (_all, "everything, as the card describes it"),
    }
    for name, (stage, meaning) in stages.items():
        command = commands.add_parser(name, help=meaning)
        command.set_defaults(run=stage)
    return parser


def _all(args: argparse.Namespace) -> None:
    """Run the four stages in order with their defaults and compiled loops."""
    common = ["--work", str(args.work), "--bundle", str(args.bundle)]
    common += ["--workers", str(args.workers)]
    for stage in ("cotrain --compile", "distil --compile", "export", "report"):
        stage_args = _parser().parse_args([*common, *stage.split()])
        stage_args.run(stage_args)


def main() -> None:
    """Run the stage that the command line names."""
    args = _parser().parse_args()
    torch.set_num_threads(args.workers)
    args.run(args)


if __name__ == "__main__":
    main()
