"""Measure the source `suffix`: its look-ups, its memory, and how often its drafts are accepted.

    python bench/suffix.py [--sizes N,...] [--target FILE] [--tokens N] [--threads N] [--json]

Look-ups are timed as processor time, in texts of so many ids, half of which repeat earlier ones: of
an end that occurred before, and of one that did not. So are the building of the index and its
longest part, and a round's two new ids.

With --target, that model answers edits, orders for code and for prose, and an agent's turns,
greedily. Each answer is gone through as a verifier would, with 16 drafts a step. Printed are its
tokens a step, and the acceptance of single drafts by the length of the match before them. That is
where the rates of `core/draft_length/match_acceptance.py` come from.
"""

import json
import random
import sysconfig
import time
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from command_line import Options, numbers
from windows import continued

from specmesh import logs
from specmesh.config import ModelSettings
from specmesh.core.draft_length.match_acceptance import LENGTHS
from specmesh.core.text.chat_message import ChatMessage
from specmesh.core.verifier.sources.suffix_index import LONGEST, SuffixIndex
from specmesh.engines.llama.engine import LlamaVerifier

VOCABULARY = 50_000
LOOK_UPS = 2_000
DRAFTS = 16  # of a step
ROUND = 2  # new ids of a round

# --- times


def repeating(count: int) -> "array[int]":
    """Return a text of `count` ids, half of which repeat what was before."""
    rng = random.Random(count)
    ids = array("i")
    while len(ids) < count:
        if len(ids) > 100 and rng.random() < 0.5:
            begin = rng.randrange(len(ids) - 40)
            ids.extend(ids[begin : begin + 40])
        else:
            ids.extend(rng.randrange(VOCABULARY) for _ in range(40))
    return ids[:count]


def seconds(work: Iterator[object]) -> list[float]:
    """Return the processor time of each step of `work`."""
    taken: list[float] = []
    begun = time.process_time()
    for _ in work:
        ended = time.process_time()
        taken.append(ended - begun)
        begun = time.process_time()
    return taken


def taken_in(index: SuffixIndex) -> Iterator[None]:
    """Build an index, one portion a step."""
    while not index.complete:
        index.update()
        yield


def rounds(index: SuffixIndex, ids: "array[int]") -> Iterator[None]:
    """Let a text grow by a round a step, and its index with it."""
    for number in range(LOOK_UPS):
        ids.extend([number] * ROUND)
        index.update()
        yield


def looked_up(index: SuffixIndex, tails: Sequence["array[int]"]) -> Iterator[None]:
    """Look up the end of a text a step."""
    for tail in tails:
        index.find(tail)
        yield


def times_of(count: int) -> dict[str, float]:
    """Return the times and the memory of the index of a text."""
    ids = repeating(count)
    rng = random.Random(1)
    index = SuffixIndex(ids)
    building = seconds(taken_in(index))
    found: list[array[int]] = []
    missed: list[array[int]] = []
    for _ in range(LOOK_UPS):
        end = rng.randrange(LONGEST, count)
        found.append(ids[end - LONGEST : end])
        missed.append(array("i", rng.choices(range(VOCABULARY), k=LONGEST)))
    hits = seconds(looked_up(index, found))
    misses = seconds(looked_up(index, missed))
    growing = seconds(rounds(index, ids))
    return {
        "build_ms": 1e3 * sum(building),
        "longest_part_ms": 1e3 * max(building),
        "found_us": 1e6 * sum(hits) / LOOK_UPS,
        "not_found_us": 1e6 * sum(misses) / LOOK_UPS,
        "round_us": 1e6 * sum(growing) / LOOK_UPS,
        "bytes_per_id": SuffixIndex.bytes_for(count) / count,
    }


# --- acceptance

EDITS = ("bisect", "heapq", "colorsys", "string", "copy", "textwrap")
CODE = (
    "Write a Python class for a binary search tree with insert, delete and find.",
    "Write a C program with a hash map from strings to ints.",
    "Write unit tests in Python for a stack class.",
)
PROSE = (
    "Tell me a story about a lighthouse keeper.",
    "Explain how vaccines work.",
    "Describe the causes of the First World War.",
)
TURNS = 5
PART = 1800  # letters of a file


def source(name: str) -> str:
    """Return the beginning of a module of the standard library."""
    folder = Path(sysconfig.get_path("stdlib"))
    return (folder / f"{name}.py").read_text(encoding="utf-8")[:PART]


@dataclass(slots=True)
class Counts:
    """What the answers of one kind came to.

    tested, accepted: single drafts, by the class of the match before them.
    """

    tokens: int = 0
    steps: int = 0
    tested: Counter[int] = field(default_factory=Counter[int])
    accepted: Counter[int] = field(default_factory=Counter[int])

    def go_through(self, prompt: Sequence[int], answer: Sequence[int]) -> None:
        """Count the steps of an answer that is drafted from its repeats."""
        ids = array("i", prompt)
        index = SuffixIndex(ids)
        left = list(answer)
        behind: list[int] = []  # the wrong draft of the round before
        while left:
            for _ in taken_in(index):
                pass
            right = 0
            length = 0
            drafts = behind
            match = index.find(ids[-LONGEST:])
            if match is not None:
                length = match.length
                period = len(ids) - match.place
                drafts = [ids[match.place + at % period] for at in range(DRAFTS)]
            if drafts:
                right = self._test(length, drafts, left)
            # One wrong draft after the other shows that the text has left the place.
            behind = drafts[right + 1 :] if length + right else []
            ids.extend(left[: right + 1])
            self.tokens += len(left[: right + 1])
            self.steps += 1
            del left[: right + 1]

    def _test(self, length: int, drafts: Sequence[int], text: Sequence[int]) -> int:
        """Compare drafts behind a match with the text; return how many are right."""
        for at, (draft, token) in enumerate(zip(drafts, text, strict=False)):
            number = sum(least <= length + at for least in LENGTHS) - 1
            self.tested[number] += 1
            if draft != token:
                return at
            self.accepted[number] += 1
        return min(len(drafts), len(text))

    def as_json(self) -> dict[str, object]:
        """Return tokens a step and the rates by length."""
        rates: dict[str, str] = {}
        for number, tested in sorted(self.tested.items()):
            rates[str(LENGTHS[number])] = f"{self.accepted[number]}/{tested}"
        return {"tokens_per_step": round(self.tokens / self.steps, 2), "accepted": rates}


def answers(target: LlamaVerifier, tokens: int) -> Iterator[tuple[str, list[int], list[int]]]:
    """Yield the kind, the prompt and the answer of each request."""

    def answer(messages: Sequence[ChatMessage]) -> tuple[list[int], list[int]]:
        prompt = target.tokenizer.encode(target.tokenizer.chat_text(messages, {}))
        generated = continued(target, prompt, tokens)
        for end in target.tokenizer.vocabulary.end_ids:
            if end in generated:
                del generated[generated.index(end) :]
        return prompt, generated

    for name in EDITS:
        order = "Add a comment to the first function of this file, and write out the whole file:\n"
        yield "edit", *answer([ChatMessage("user", f"{order}```python\n{source(name)}\n```")])
    for kind, orders in (("code", CODE), ("prose", PROSE)):
        for order in orders:
            yield kind, *answer([ChatMessage("user", order)])
    messages = [ChatMessage("system", "You are a coding agent. Quote what you talk about.")]
    for turn in range(TURNS):
        name = EDITS[turn % 2]
        result = (
            f"Result of read_file {name}.py:\n{source(name)}\nWhich function needs a docstring?"
        )
        messages.append(ChatMessage("user", result))
        prompt, generated = answer(messages)
        yield "agent", prompt, generated
        pieces = [target.tokenizer.vocabulary.pieces[token] for token in generated]
        text = b"".join(pieces).decode(errors="replace")
        messages.append(ChatMessage("assistant", text))


def accepted(target: LlamaVerifier, tokens: int) -> dict[str, dict[str, object]]:
    """Return the counts of each kind, and of all."""
    counts = defaultdict[str, Counts](Counts)
    for kind, prompt, generated in answers(target, tokens):
        counts[kind].go_through(prompt, generated)
        counts["all"].go_through(prompt, generated)
    return {kind: found.as_json() for kind, found in counts.items()}


def main() -> None:
    """Print times by size, then what a target's answers came to."""
    parser = Options(__doc__)
    parser.option("--sizes", "1000,10000,100000")
    parser.add_argument("--target")
    parser.option("--tokens", 250)
    parser.option("--threads", 1)
    parser.switch("--json")
    given = parser.parse_args()
    logs.configure("error")
    result: dict[str, object] = {}
    for count in numbers(given.sizes):
        times = {name: round(value, 2) for name, value in times_of(count).items()}
        result[str(count)] = times
        if not given.json:
            print(f"{count} ids: {times}")
    if given.target:
        settings = ModelSettings(
            engine="llama",
            model=given.target,
            ctx=8192,
            max_sessions=1,
            threads=given.threads,
        )
        kinds = accepted(LlamaVerifier(settings), given.tokens)
        result |= kinds
        if not given.json:
            for kind, found in kinds.items():
                print(f"{kind}: {found}")
    if given.json:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
