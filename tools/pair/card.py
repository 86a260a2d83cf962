"""The model card's numbers: measured on the exported files and written as JSON."""

from __future__ import annotations

import json
import math
import platform
from pathlib import Path

import numpy as np
import torch

from pair import data, measure, train
from pair.model import Llama


def halved(model: Llama) -> Llama:
    """The model with its matrices rounded to half precision, as they are exported."""
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim == 2:
                weight.copy_(weight.to(torch.float16).float())
    return model


def _loss(model: Llama, held: list[list[int]], size: int) -> dict[str, float]:
    nats = train.held_out_loss(model, held)
    tokens = sum(len(ids) for ids in held)
    bits = nats * tokens / size / math.log(2)
    return {"nats_per_token": round(nats, 4), "bits_per_byte": round(bits, 4)}


def fidelity(model: Llama, engine: measure.Engine, ids: list[int]) -> dict[str, float]:
    """How far llama.cpp's logits of the exported file lie from torch's."""
    engine.reset()
    theirs = engine.feed(ids)
    with torch.no_grad():
        ours = model(torch.tensor([ids]))[0].numpy()
    same = float((theirs.argmax(axis=1) == ours.argmax(axis=1)).mean())
    return {
        "same_choice": round(same, 4),
        "largest_difference": round(float(np.abs(theirs - ours).max()), 4),
    }


def _recipe(work: Path) -> dict[str, object]:
    state = torch.load(work / "cotrain.pt", weights_only=True)
    recipe = {"plan": state["plan"], "progress": state["progress"]}
    final = work / "final.pt"
    if final.is_file():
        last = torch.load(final, weights_only=True)
        recipe["distil"] = {k: v for k, v in last.items() if k not in ("target", "drafter")}
    return recipe


def _rounded(report: dict[str, float]) -> dict[str, float]:
    return {name: round(value, 4) for name, value in report.items()}


def write(models: tuple[Llama, Llama], held: list[list[int]], work: Path, bundle: Path) -> None:
    """Measures the bundle and writes `card.json` beside it."""
    settings = measure.Settings()
    size = sum(len(text.encode()) for text in data.held_out_files().values())
    names = ("target", "drafter")
    pair = {name: halved(model) for name, model in zip(names, models, strict=True)}
    engines = {name: measure.Engine(bundle / f"{name}.gguf") for name in names}
    prompts = measure.spots(held, settings.prompt)
    probe = [i for ids in held[:3] for i in ids][:1000]
    files = measure.bundle_bytes(bundle)
    ours = {name: n for name, n in files.items() if name not in ("card.json", "README.md")}
    record = {
        "python": platform.python_version(),
        "training_files": len(data.training_files()),
        "training_bytes": sum(len(t.encode()) for t in data.training_files().values()),
        "held_out": list(data.HELD_OUT),
        "recipe": _recipe(work),
        "parameters": {n: measure.parameters(bundle / f"{n}.gguf") for n in names},
        "bytes": ours,
        "held_out_loss": {n: _loss(pair[n], held, size) for n in names},
        "fidelity": {n: fidelity(pair[n], engines[n], probe) for n in names},
        "settings": measure.settings_record(settings),
        "greedy": _rounded(
            measure.greedy_report(engines["target"], engines["drafter"], prompts, settings)
        ),
        "agreement_on_held_out_text": round(
            measure.real_text_agreement(engines["target"], engines["drafter"], held), 4
        ),
        "sampled": _rounded(
            measure.sampled_report(engines["target"], engines["drafter"], prompts, settings)
        ),
    }
    text = json.dumps(record, indent=2) + "\n"
    (bundle / "card.json").write_text(text, encoding="utf-8")
    train.say(text)
