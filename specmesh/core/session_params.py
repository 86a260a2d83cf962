"""What a client asked for, and what the target allows."""

from collections.abc import Sequence
from dataclasses import dataclass

from specmesh.core.sampling import Strategy
from specmesh.core.sampling.constraint import Grammar
from specmesh.core.sampling.sampler import SamplingParams


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """Who says what. role: system, user, assistant, or what else the model's template knows; name: of who says it,
    which some templates know; empty for none."""

    role: str
    content: str
    name: str = ""

    def fields(self) -> dict[str, str]:
        """As templates and the wire have it."""
        return {"role": self.role, "content": self.content} | ({"name": self.name} if self.name else {})


MAX_DRAFTS = 16
"""Most drafts of one step."""

MAX_TOKENS = 2**31 - 1
"""The largest max_tokens of a request; the least is 0, the prompt only."""


@dataclass(frozen=True, slots=True)
class SessionParams:
    """What a client asked for.

    draft_n:  None adapts, 0 never drafts, N takes N drafts in every step.
    stop:     texts with which the text ends.
    logprobs: how many of the likeliest ids are told with each of the text; None for no log-probabilities at all.
    grammar:  what the text must be, as far as it comes: max_tokens may cut it.
    cache_prompt: what earlier sessions left in memory may be gone on from, and this one leaves its own.
    """

    sampling: SamplingParams
    max_tokens: int
    draft_n: int | None = None
    stop: tuple[str, ...] = ()
    logprobs: int | None = None
    grammar: Grammar | None = None
    cache_prompt: bool = True

    @property
    def drafts(self) -> int | None:
        """draft_n, as the strategy allows it."""
        return 0 if self.sampling.strategy == Strategy.GREEDY else self.draft_n


@dataclass(frozen=True, slots=True)
class TargetLimits:
    """What the target allows.

    max_drafts: 0 for a model that cannot trim. pieces: the bytes of each id. width: rows of every step, where constant.
    """

    n_ctx: int
    n_vocab: int
    end_ids: frozenset[int]
    max_drafts: int = MAX_DRAFTS
    pieces: Sequence[bytes] = ()
    width: int | None = None
