"""The target's own texts, by its engine, and their comparison with a client's."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from harness.truth import continued

from specmesh.core.sampling.sampler import SamplingParams
from specmesh.engines.base import VerifyEngine


@dataclass(frozen=True, slots=True)
class Text:
    """A prompt and its continuation by the target."""

    prompt: str
    sampling: SamplingParams
    ids: tuple[int, ...]  # of the continuation, without an end id
    ended: bool  # by an end id


@dataclass(kw_only=True, slots=True)
class Told:
    """An answer as its client received it, and its end: a finish reason, an error, or neither."""

    begun: float = 0.0  # seconds after the start of the soak
    ended: float = 0.0
    ids: list[int] = field(default_factory=list)
    text: str = ""
    finish: str | None = None
    error: str | None = None
    left: bool = False  # the client closed the connection
    opened: bool = False  # a session was opened


class Verdict(StrEnum):
    COMPLETE = "complete"
    EXCUSED = "excused"
    MISMATCH = "mismatch"
    INCOMPLETE = "incomplete"


BAD = frozenset({Verdict.MISMATCH, Verdict.INCOMPLETE})


def first_difference(ids: Sequence[int], others: Sequence[int]) -> int | None:
    """Return the first position at which two sequences differ, None if one begins the other."""
    for at, (own, other) in enumerate(zip(ids, others, strict=False)):
        if own != other:
            return at
    return None


class Alone:
    """The verifier alone."""

    def __init__(self, engine: VerifyEngine) -> None:
        self._engine = engine

    def text(self, prompt: str, sampling: SamplingParams, tokens: int) -> Text:
        prompt_ids = tuple(self._engine.tokenizer.encode(prompt))
        ids = tuple(continued(self._engine, prompt_ids, tokens, sampling))
        return Text(prompt, sampling, ids, len(ids) < tokens)

    def shown(self, ids: Sequence[int]) -> str:
        """Return the text of ids."""
        pieces = self._engine.tokenizer.vocabulary.pieces
        return b"".join(pieces[token] for token in ids).decode("utf-8", "replace")


def judge(
    told: Told, text: Text, max_tokens: int, shown: str, *, excused: bool, waits: bool
) -> Verdict:
    """Compare an answer with the first `max_tokens` of the verifier's text.

    shown: the text of the answer's ids.
    excused: a fault may have ended the answer.
    waits: the client waits for daemons that go away, so an opened session must be complete.
    """
    expected = list(text.ids[:max_tokens])
    if told.ids != expected[: len(told.ids)] or not shown.startswith(told.text):
        return Verdict.MISMATCH
    if told.finish is not None and told.text != shown:
        return Verdict.MISMATCH
    ends_itself = text.ended and max_tokens > len(text.ids)
    finish = "stop" if ends_itself else "length"
    if told.ids == expected and told.finish == finish:
        return Verdict.COMPLETE
    must_recover = waits and told.opened
    may_lack = told.left or (excused and not must_recover)
    if may_lack and told.finish is None:
        return Verdict.EXCUSED
    return Verdict.INCOMPLETE
