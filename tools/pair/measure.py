"""Measures the exported pair as llama.cpp runs it: acceptance, variety, tokenizer identity.

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
        """Token ids of raw bytes; markers in the text are not taken for special tokens."""
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
        for i in ids:
            size = llama_cpp.llama_token_to_piece(vocab, i, *into)
            out += buffer.raw[:size]
        return out

    def feed(self, ids: list[int]) -> Logits:
        """Appends ids and returns their logits, (len(ids), V)."""
        before = self.model.n_tokens
        self.model.eval(ids)
        out: Logits = np.array(self.model.scores[before : self.model.n_tokens])
        return out

    def reset(self) -> None:
        """Forgets everything fed so far."""
        self.model.reset()


def spots(files: list[list[int]], length: int, each: int = 1) -> list[list[int]]:
    """Prompts of `length` ids: `each` evenly spaced places in every file long enough."""
    found = []
    for ids in files:
        for k in range(each):
            start = len(ids) * (k + 1) // (each + 2)
            if start + length < len(ids):
                found.append(ids[start : start + length])
    return found


def greedy(engine: Engine, prompt: list[int], count: int) -> list[int]:
    """`count` likeliest ids after the prompt."""
    engine.reset()
    row = engine.feed(prompt)[-1]
    out = [int(row.argmax())]
    while len(out) < count:
        out.append(int(engine.feed(out[-1:])[-1].argmax()))
    return out


def nucleus(row: Logits, temperature: float, top_p: float) -> NDArray[np.float64]:
    """Probabilities (V,) after temperature and top-p."""
    scaled = row.astype(np.float64) / temperature
    weights = np.exp(scaled - scaled.max())
    weights /= weights.sum()
    order = np.argsort(-weights, kind="stable")
    before = np.cumsum(weights[order]) - weights[order]
    weights[order[before >= top_p]] = 0.0
    kept: NDArray[np.float64] = weights / weights.sum()
    return kept


def sample(
    engine: Engine, prompt: list[int], settings: Settings, random: np.random.Generator
) -> tuple[list[int], list[NDArray[np.float64]]]:
    """Sampled ids after the prompt, with the distribution that each was drawn from."""
    engine.reset()
    row = engine.feed(prompt)[-1]
    out: list[int] = []
    seen = []
    while len(out) < settings.sampled:
        weights = nucleus(row, settings.temperature, settings.top_p)
        out.append(int(random.choice(len(weights), p=weights)))
        seen.append(weights)
        row = engine.feed(out[-1:])[-1]
    return out, seen


def agreement(drafter: Engine, prompt: list[int], text: list[int]) -> NDArray[np.bool_]:
    """Where along the target's greedy text the drafter's likeliest id is the same, (len(text),)."""
    drafter.reset()
    logits = drafter.feed(prompt + text[:-1])[len(prompt) - 1 :]
    same: NDArray[np.bool_] = logits.argmax(axis=1) == np.array(text)
    return same


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
        good = drafts if window.all() else int(window.argmin())
        accepted += good
        verified += min(drafts, good + 1)
        drafted += drafts
        at += good + 1
    return accepted, verified, drafted


def distinct(ids: list[int], n: int = 4) -> float:
    """Share of different n-grams among all."""
    grams = [tuple(ids[i : i + n]) for i in range(len(ids) - n + 1)]
    return len(set(grams)) / len(grams)


def greedy_report(
    target: Engine, drafter: Engine, prompts: list[list[int]], settings: Settings
) -> dict[str, float]:
    """Greedy acceptance and variety over the prompts."""
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
    """Share of positions of real text where both models' likeliest ids are the same."""
    same = []
    for ids in files:
        target.reset()
        drafter.reset()
        part = ids[:512]
        same.append(target.feed(part).argmax(axis=1) == drafter.feed(part).argmax(axis=1))
    return float(np.concatenate(same).mean())


def sampled_report(
    target: Engine, drafter: Engine, prompts: list[list[int]], settings: Settings
) -> dict[str, float]:
    """Return the variety of sampled text, and the overlap of both models' distributions along it.

    The overlap, the sum of min(p, q), is the chance that a sampled draft is accepted under the best
    coupling (Leviathan et al. 2023, arXiv:2211.17192).
    """
    random = np.random.default_rng(settings.seed)
    grams, overlaps = [], []
    for prompt in prompts:
        text, seen = sample(target, prompt, settings, random)
        drafter.reset()
        rows = drafter.feed(prompt + text[:-1])[len(prompt) - 1 :]
        for p, row in zip(seen, rows, strict=True):
            q = nucleus(row, settings.temperature, settings.top_p)
            overlaps.append(float(np.minimum(p, q).sum()))
        grams.append(distinct(text))
    return {
        "prompts": float(len(prompts)),
        "distinct_4grams": float(np.mean(grams)),
        "overlap": float(np.mean(overlaps)),
    }


def parameters(path: Path) -> int:
    """Number of weights in a GGUF file."""
    return sum(int(t.n_elements) for t in gguf.GGUFReader(path).tensors)


def bundle_bytes(folder: Path) -> dict[str, int]:
    """Size of every bundled model file."""
    files = sorted(p for p in folder.rglob("*") if p.is_file() and "__pycache__" not in p.parts)
    return {p.relative_to(folder).as_posix(): p.stat().st_size for p in files}


def settings_record(settings: Settings) -> dict[str, object]:
    """The settings as plain data."""
    return asdict(settings)
