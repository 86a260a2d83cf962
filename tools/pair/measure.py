"""Measure the exported pair as llama.cpp runs it: acceptance, variety, tokenizer identity.

Needs `llama_cpp`, `numpy` and `gguf`, and no torch, so the project's tests use it too.
"""

from __future__ import annotations

import ctypes
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import gguf
import llama_cpp
import numpy as np
from numpy.typing import NDArray

Logits = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The sampling and the amount of the measured text."""

    temperature: float = 0.8
    top_p: float = 0.95
    seed: int = 1
    prompt: int = 96
    count: int = 200
    drafts: int = 4
    sampled: int = 120


class Engine:
    """One GGUF model that gives the logits of every position."""

    def __init__(self, path: Path, threads: int = 1) -> None:
        self.model: Any = llama_cpp.Llama(
            str(path),
            n_ctx=1024,
            n_batch=1024,
            n_threads=threads,
            n_threads_batch=threads,
            logits_all=True,
            verbose=False,
        )

    def encode(self, data: bytes) -> list[int]:
        """Return token ids of raw bytes; markers in the text are no special tokens."""
        ids: list[int] = self.model.tokenize(data, add_bos=False, special=False)
        return ids

    def decode(self, ids: list[int]) -> bytes:
        """Return the raw bytes of token ids, from llama.cpp itself.

        `Llama.detokenize` of llama-cpp-python drops tokens of more than 32 bytes, and deep
        indentation is such a token.
        """
        vocab = llama_cpp.llama_model_get_vocab(self.model.model)
        buffer = ctypes.create_string_buffer(256)
        into = (buffer, len(buffer), 0, False)  # nothing is stripped, no special token is written
        out = b""
        for token in ids:
            size = llama_cpp.llama_token_to_piece(vocab, token, *into)
            out += buffer.raw[:size]
        return out

    def feed(self, ids: list[int]) -> Logits:
        """Append ids and return their logits, (len(ids), V)."""
        before = self.model.n_tokens
        self.model.eval(ids)
        out: Logits = np.array(self.model.scores[before : self.model.n_tokens])
        return out

    def reset(self) -> None:
        """Forget everything fed so far."""
        self.model.reset()


def spots(files: list[list[int]], length: int, each: int = 1) -> list[list[int]]:
    """Return prompts of `length` ids, from `each` evenly spaced places of each long file."""
    found: list[list[int]] = []
    for ids in files:
        for number in range(1, each + 1):
            start = len(ids) * number // (each + 2)
            end = start + length
            if end < len(ids):
                found.append(ids[start:end])
    return found


def greedy(engine: Engine, prompt: list[int], count: int) -> list[int]:
    """Return the `count` likeliest ids after the prompt."""
    engine.reset()
    out: list[int] = []
    row = engine.feed(prompt)[-1]
    while True:
        out.append(int(row.argmax()))
        if len(out) >= count:
            return out
        row = engine.feed(out[-1:])[-1]


def nucleus(row: Logits, temperature: float, top_p: float) -> NDArray[np.float64]:
    """Return probabilities (V,) after temperature and top-p."""
    scaled = row.astype(np.float64) / temperature
    weights = np.exp(scaled - scaled.max())
    weights /= weights.sum()
    order = np.argsort(-weights, kind="stable")
    ranked = weights[order]
    before = np.cumsum(ranked) - ranked
    dropped = order[before >= top_p]
    weights[dropped] = 0.0
    kept: NDArray[np.float64] = weights / weights.sum()
    return kept


def sample(
    engine: Engine, prompt: list[int], settings: Settings, random: np.random.Generator
) -> tuple[list[int], list[NDArray[np.float64]]]:
    """Return sampled ids after the prompt, and the distribution of each."""
    engine.reset()
    row = engine.feed(prompt)[-1]
    out: list[int] = []
    seen = []
    while len(out) < settings.sampled:
        weights = nucleus(row, settings.temperature, settings.top_p)
        token = random.choice(len(weights), p=weights)
        out.append(int(token))
        seen.append(weights)
        row = engine.feed(out[-1:])[-1]
    return out, seen


def agreement(drafter: Engine, prompt: list[int], text: list[int]) -> NDArray[np.bool_]:
    """Return for each id of the target's greedy text if the drafter's likeliest is the same."""
    logits = _rows_of(drafter, prompt, text)
    same: NDArray[np.bool_] = logits.argmax(axis=1) == np.array(text)
    return same


def _rows_of(engine: Engine, prompt: list[int], text: list[int]) -> Logits:
    """Return the logits for each id of a text after a prompt, (len(text), V)."""
    engine.reset()
    return engine.feed(prompt + text[:-1])[len(prompt) - 1 :]


def windows(same: NDArray[np.bool_], drafts: int) -> tuple[int, int, int]:
    """Return (accepted, verified, drafted) of greedy speculation with windows of `drafts` ids.

    A draft is verified if all drafts before it in its window were accepted. Until the first
    mismatch a window's context is the target's text, so `same` is enough. After a window the
    target's own id follows, as in speculative decoding.
    """
    at = 0
    accepted = 0
    verified = 0
    drafted = 0
    while at + drafts < len(same):
        window = same[at : at + drafts]
        good = drafts
        if not window.all():
            good = int(window.argmin())
        accepted += good
        verified += min(drafts, good + 1)
        drafted += drafts
        at += good + 1
    return accepted, verified, drafted


def distinct(ids: list[int], n: int = 4) -> float:
    """Return the share of different n-grams among all."""
    count = len(ids) - n + 1
    grams = {tuple(ids[start : start + n]) for start in range(count)}
    return len(grams) / count


def greedy_report(
    target: Engine, drafter: Engine, prompts: list[list[int]], settings: Settings
) -> dict[str, float]:
    """Return greedy acceptance and variety over the prompts."""
    agree: list[float] = []
    early: list[float] = []
    grams: list[float] = []
    totals = np.zeros(3)
    for prompt in prompts:
        text = greedy(target, prompt, settings.count)
        same = agreement(drafter, prompt, text)
        agree.append(float(same.mean()))
        # Greedy text of a small model soon repeats itself, and repeats are easy to draft.
        early.append(float(same[:32].mean()))
        totals += windows(same, settings.drafts)
        grams.append(distinct(text[: settings.sampled]))
    return {
        "prompts": float(len(prompts)),
        "agreement": float(np.mean(agree)),
        "agreement_first_32": float(np.mean(early)),
        "accepted_of_verified": float(totals[0] / totals[1]),
        "accepted_of_drafted": float(totals[0] / totals[2]),
        "distinct_4grams": float(np.mean(grams)),
    }


def real_text_agreement(target: Engine, drafter: Engine, files: list[list[int]]) -> float:
    """Return the share of positions of real text at which both models' likeliest ids agree."""
    same = []
    for ids in files:
        target.reset()
        drafter.reset()
        part = ids[:512]
        choices = target.feed(part).argmax(axis=1)
        guesses = drafter.feed(part).argmax(axis=1)
        same.append(choices == guesses)
    return float(np.concatenate(same).mean())


def sampled_report(
    target: Engine, drafter: Engine, prompts: list[list[int]], settings: Settings
) -> dict[str, float]:
    """Return the variety of sampled text, and the overlap of both models' distributions along it.

    The overlap, the sum of min(p, q), is the chance that a sampled draft is accepted under the best
    coupling (Leviathan et al. 2023, arXiv:2211.17192).
    """
    random = np.random.default_rng(settings.seed)
    grams: list[float] = []
    overlaps: list[float] = []
    for prompt in prompts:
        text, seen = sample(target, prompt, settings, random)
        rows = _rows_of(drafter, prompt, text)
        for p, row in zip(seen, rows, strict=True):
            q = nucleus(row, settings.temperature, settings.top_p)
            overlap = np.minimum(p, q).sum()
            overlaps.append(float(overlap))
        grams.append(distinct(text))
    return {
        "prompts": float(len(prompts)),
        "distinct_4grams": float(np.mean(grams)),
        "overlap": float(np.mean(overlaps)),
    }


def parameters(path: Path) -> int:
    """Return the number of weights in a GGUF file."""
    return sum(int(tensor.n_elements) for tensor in gguf.GGUFReader(path).tensors)


def bundle_bytes(folder: Path) -> dict[str, int]:
    """Return the size of each bundled model file."""
    sizes: dict[str, int] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            sizes[path.relative_to(folder).as_posix()] = path.stat().st_size
    return sizes


def settings_record(settings: Settings) -> dict[str, object]:
    """Return the settings as plain data."""
    return asdict(settings)
