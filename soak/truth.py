"""What the verifier alone says, by its own engine; and whether what a client got is that."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from harness.truth import continued

from specmesh.core.sampling.sampler import SamplingParams
from specmesh.engines.base import VerifyEngine


@dataclass(frozen=True, slots=True)
class Text:
    """A prompt, how it is continued, and the continuation: ids without an end id, and whether it ended by one."""

    prompt: str
    sampling: SamplingParams
    prompt_ids: tuple[int, ...]
    ids: tuple[int, ...]
    ended: bool


@dataclass(slots=True)
class Told:
    """What a client got: ids, their text, and how it ended: a finish reason, an error, or its own leaving. begun,
    ended: seconds after the start of the soak. opened: a session was."""

    begun: float = 0.0
    ended: float = 0.0
    ids: list[int] = field(default_factory=list)
    text: str = ""
    finish: str | None = None
    error: str | None = None
    left: bool = False
    opened: bool = False


class Verdict(StrEnum):
    COMPLETE = "complete"
    EXCUSED = "excused"
    MISMATCH = "mismatch"
    INCOMPLETE = "incomplete"


BAD = frozenset({Verdict.MISMATCH, Verdict.INCOMPLETE})


def first_difference(ids: Sequence[int], others: Sequence[int]) -> int | None:
    return next((at for at, (a, b) in enumerate(zip(ids, others, strict=False)) if a != b), None)


class Alone:
    def __init__(self, engine: VerifyEngine) -> None:
        self._engine = engine

    def text(self, prompt: str, sampling: SamplingParams, tokens: int) -> Text:
        prompt_ids = tuple(self._engine.tokenizer.encode(prompt))
        said = tuple(continued(self._engine, prompt_ids, tokens, sampling))
        return Text(prompt, sampling, prompt_ids, said, len(said) < tokens)

    def shown(self, ids: Sequence[int]) -> str:
        return b"".join(self._engine.tokenizer.vocabulary.pieces[one] for one in ids).decode(
            "utf-8", "replace"
        )


def judge(
    told: Told, text: Text, max_tokens: int, shown: str, *, excused: bool, waits: bool
) -> Verdict:
    """Compare an answer with the first `max_tokens` of what the verifier alone says. shown: the text of the ids that
    came; excused: a fault may have ended it; waits: whether its client waits for daemons that went away, so that what
    was opened must be complete."""
    shall = list(text.ids[:max_tokens])
    if told.ids != shall[: len(told.ids)] or not shown.startswith(told.text):
        return Verdict.MISMATCH
    if told.finish is not None and told.text != shown:
        return Verdict.MISMATCH
    ends = "stop" if text.ended and max_tokens > len(text.ids) else "length"
    if (told.ids, told.finish) == (shall, ends):
        return Verdict.COMPLETE
    may_lack = told.left or (excused and not (waits and told.opened))
    return Verdict.EXCUSED if told.finish is None and may_lack else Verdict.INCOMPLETE
