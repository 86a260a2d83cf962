"""Trains, exports and measures the bundled pair of tiny models."""

from __future__ import annotations

import argparse
from dataclasses import fields
from functools import partial
from pathlib import Path

import torch

from pair import data, team, train, vocab


def _corpus(work: Path) -> tuple[list[list[int]], list[list[int]]]:
    """Token ids of the training and the held-out files; trains the tokenizer where none is."""
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
        size = sum(len(t.encode()) for t in texts.values())
        train.say(f"{name}: {len(texts)} files, {size} bytes, {sum(map(len, ids))} tokens")
    return train_ids, held_ids


def _cotrain(args: argparse.Namespace) -> None:
    _corpus(args.work)  # the tokenizer must be there before the workers start
    team.start(args.workers, partial(_cotrain_worker, args))


def _cotrain_worker(args: argparse.Namespace) -> None:
    names = {field.name for field in fields(train.Plan)}
    plan = train.Plan(**{k: v for k, v in vars(args).items() if k in names})
    train_ids, held_ids = _corpus(args.work)
    trainer = train.Trainer(vocab.VOCAB, train_ids, held_ids, plan, args.work)
    sizes = [m.parameter_count() for m in (trainer.target, trainer.drafter)]
    train.say(f"parameters {sizes} ratio {sizes[0] / sizes[1]:.2f}")
    if args.resume:
        trainer.resume()
    trainer.run()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, default=Path("build/pair"))
    parser.add_argument("--workers", type=int, default=2, help="processes of one thread each")
    commands = parser.add_subparsers(dest="command", required=True)
    cotrain = commands.add_parser("cotrain", help="train both models together")
    cotrain.add_argument("--resume", action="store_true")
    for field in fields(train.Plan):
        flag = "--" + field.name.replace("_", "-")
        if isinstance(field.default, bool):
            cotrain.add_argument(flag, action="store_true")
        else:
            cotrain.add_argument(flag, type=type(field.default), default=field.default)
    cotrain.set_defaults(run=_cotrain)
    return parser


def main() -> None:
    args = _parser().parse_args()
    torch.set_num_threads(args.workers)
    args.run(args)


if __name__ == "__main__":
    main()
