"""What a grammar costs between two steps: the mask of a row and its use, for a vocabulary of 128,000 made-up tokens.

python bench/masks.py
"""

import argparse
import json
import random
import string
import time
from statistics import median

import numpy as np

from specmesh.core.sampling.constraint import Grammar, GrammarKind, masked
from specmesh.core.sampling.sampler import Sampler, SamplingParams
from specmesh.core.vocabulary.vocabulary import Vocabulary
from specmesh.engines.grammar import Grammars

N_VOCAB = 128_000

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 4},
        "day": {"type": "string", "format": "date"},
    },
    "required": ["name", "age", "tags", "day"],
}
GBNF = r"""
root   ::= value
value  ::= "{" ws (string ":" ws value ("," ws string ":" ws value)*)? "}" ws
         | string | [0-9]+ ws
string ::= "\"" ([^"\\\x00-\x1f] | "\\" ["\\/bfnrt])* "\"" ws
ws     ::= [ \n]?
""".replace("\n         |", " |")
TEXT = '{"name": "Anna of the seven seas and others", "age": 42, "tags": ["red", "blue"], "day": "2026-11-22"}'
TREE = '{"name": "Anna of the seven seas and others", "age": {"in years": 42}}'


def vocabulary() -> Vocabulary:
    """Bytes, numbers, signs in twos and threes, and words with and without a blank or capital before them."""
    luck = random.Random(1)
    pieces = {bytes([byte]) for byte in range(256)} | {
        str(number).encode() for number in range(1000)
    }
    signs = string.punctuation + " \n"
    pieces |= {(a + b).encode() for a in signs for b in signs}
    while len(pieces) < N_VOCAB - 1:
        word = "".join(
            luck.choices("etaoinshrdlucmfwypvbgkqjxz", range(26, 0, -1), k=luck.randint(2, 9))
        )
        pieces.add(
            luck.choice(["", " ", " "]).encode()
            + (word.capitalize() if luck.random() < 0.2 else word).encode()
        )
    return Vocabulary((*sorted(pieces), b""), frozenset({N_VOCAB - 1}))


def spelt(known: Vocabulary, text: str) -> list[int]:
    """A text, the longest token first."""
    ids = {piece: token for token, piece in enumerate(known.pieces)}
    raw, found = text.encode(), list[int]()
    while raw:
        size = next(size for size in range(12, 0, -1) if raw[:size] in ids)
        found.append(ids[raw[:size]])
        raw = raw[size:]
    return found


def main() -> None:
    """Print a table."""
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    known = vocabulary()
    grammars = Grammars(known)
    row = np.random.default_rng(1).normal(0, 4, N_VOCAB).astype(np.float32)
    sampler = Sampler(SamplingParams(temperature=0.8, top_k=40, top_p=0.95))
    print(
        f"{'':<8}{'compiled':>12}{'again':>10}{'mask, median':>14}{'the longest':>13}{'masked':>9}{'sampled':>9}"
    )
    for grammar, text in (
        (Grammar(GrammarKind.JSON_SCHEMA, json.dumps(SCHEMA)), TEXT),
        (Grammar(GrammarKind.GBNF, GBNF), TREE),
    ):
        compiling = []
        for _ in range(2):
            begun = time.perf_counter()
            constraint = grammars.compile(grammar)
            compiling.append(time.perf_counter() - begun)
        masks, uses, samples = [], [], []
        for token in spelt(known, text):
            begun = time.perf_counter()
            allowed = constraint.allowed()
            masks.append(time.perf_counter() - begun)
            left = masked(row, allowed)
            uses.append(time.perf_counter() - begun - masks[-1])
            sampler.choose(left, 5)
            samples.append(time.perf_counter() - begun - masks[-1] - uses[-1])
            assert allowed[token], (text, token)
            constraint.accept(token)
        times = (*compiling, median(masks), max(masks), median(uses), median(samples))
        print(f"{grammar.kind:<12}" + "".join(f"{1e3 * one:>8.2f} ms" for one in times))
    grammars.close()


if __name__ == "__main__":
    main()
