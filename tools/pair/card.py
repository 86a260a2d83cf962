"""The model card's numbers: measured on the exported files and written as JSON."""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Mapping
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pair import data, measure, train
from pair.model import Llama

NAMES = ("target", "drafter")


def halved(model: Llama) -> Llama:
    """Return the model with its matrices rounded to half precision, as they are exported."""
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim == 2:
                half = weight.to(torch.float16)
                weight.copy_(half.float())
    return model


def _loss(model: Llama, held: list[list[int]], size: int) -> dict[str, float]:
    nats = train.held_out_loss(model, held)
    tokens = sum(map(len, held))
    bits = nats * tokens / size / math.log(2)
    return _rounded({"nats_per_token": nats, "bits_per_byte": bits})


def fidelity(model: Llama, engine: measure.Engine, ids: list[int]) -> dict[str, float]:
    """Compare llama.cpp's logits of the exported file with torch's."""
    engine.reset()
    theirs = engine.feed(ids)
    with torch.no_grad():
        ours = model(torch.tensor([ids]))[0].numpy()
    same = (theirs.argmax(axis=1) == ours.argmax(axis=1)).mean()
    largest = np.abs(theirs - ours).max()
    return _rounded({"same_choice": float(same), "largest_difference": float(largest)})


def _recipe(work: Path) -> dict[str, object]:
    state = torch.load(work / "cotrain.pt", weights_only=True)
    recipe = {"plan": state["plan"], "progress": state["progress"]}
    final = work / "final.pt"
    if final.is_file():
        last = torch.load(final, weights_only=True)
        for name in NAMES:
            del last[name]
        recipe["distil"] = last
    return recipe


def _rounded(report: dict[str, float]) -> dict[str, float]:
    return {name: round(value, 4) for name, value in report.items()}


def write(models: tuple[Llama, Llama], held: list[list[int]], work: Path, bundle: Path) -> None:
    """Measure the bundle and write `card.json` into it."""
    settings = measure.Settings()
    record = _facts(work, bundle)
    engines: list[measure.Engine] = []
    prompts = measure.spots(held, settings.prompt)
    probe = list(islice(chain.from_iterable(held[:3]), 1000))
    size = _bytes(data.held_out_files())
    for name, model in zip(NAMES, map(halved, models), strict=True):
        engine = measure.Engine(bundle / f"{name}.gguf")
        engines.append(engine)
        record["held_out_loss"][name] = _loss(model, held, size)
        record["fidelity"][name] = fidelity(model, engine, probe)
    target, drafter = engines
    record["settings"] = measure.settings_record(settings)
    greedy = measure.greedy_report(target, drafter, prompts, settings)
    record["greedy"] = _rounded(greedy)
    agreement = measure.real_text_agreement(target, drafter, held)
    record["agreement_on_held_out_text"] = round(agreement, 4)
    sampled = measure.sampled_report(target, drafter, prompts, settings)
    record["sampled"] = _rounded(sampled)
    text = json.dumps(record, indent=2) + "\n"
    (bundle / "card.json").write_text(text, encoding="utf-8")
    train.say(text)


def _facts(work: Path, bundle: Path) -> dict[str, Any]:
    """Return the card without its measurements."""
    texts = data.training_files()
    files = measure.bundle_bytes(bundle)
    for name in ("card.json", "README.md"):
        files.pop(name, None)
    parameters = dict[str, int]()
    for name in NAMES:
        parameters[name] = measure.parameters(bundle / f"{name}.gguf")
    return {
        "python": platform.python_version(),
        "training_files": len(texts),
        "training_bytes": _bytes(texts),
        "held_out": list(data.HELD_OUT),
        "recipe": _recipe(work),
        "parameters": parameters,
        "bytes": files,
        "held_out_loss": {},
        "fidelity": {},
    }


def _bytes(files: Mapping[str, str]) -> int:
    return len("".join(files.values()).encode())
