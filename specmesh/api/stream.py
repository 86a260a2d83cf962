"""The typed stream of an answer, which every dialect renders.

An answer is `Started`, perhaps `PromptRead` while a long prompt is read, then texts, thoughts and
calls of tools as the model writes them, then `Finished`. A completion has texts only. `Started`,
`PromptRead` and `Finished` are the daemon's own events. The others are not frozen: that would take
a fifth of a token's time.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from specmesh.core.requests import Finished, PromptRead, SourceRun, Started
from specmesh.core.sampling.logprobs import Logprob
from specmesh.core.vocabulary.vocabulary import Vocabulary

TOOL_CALLS = "tool_calls"
"""The reason of `Finished` where the model ended its turn with calls of tools."""


@dataclass(frozen=True, slots=True)
class ScoredToken:
    """A token of an answer with its log-probability.

    begin: the character at which its text begins in the answer.
    logprob: None if unknown.
    """

    id: int
    begin: int
    logprob: Logprob | None
    vocabulary: Vocabulary

    @property
    def chosen(self) -> float | None:
        """Return its log-probability."""
        return None if self.logprob is None else self.logprob.chosen

    def likeliest(self) -> list[tuple[int, float]]:
        """Return the likeliest ids in its place with their log-probabilities."""
        if self.logprob is None:
            return []
        return list(zip(self.logprob.ids, self.logprob.top, strict=True))


@dataclass(slots=True, kw_only=True)
class NewTokens:
    """The tokens that came since the last event with tokens.

    ids: those whose text is whole.
    accepted: accepted drafts among the tokens.
    accepted_text: text of the round's accepted drafts; None unless each round is an event.
    scored: tokens with log-probabilities; None if they are not wanted.
    sources: of `ids`; None if they are not wanted.
    """

    ids: list[int] = field(kw_only=False)
    accepted: int = 0
    accepted_text: str | None = None
    scored: list[ScoredToken] | None = None
    sources: Sequence[SourceRun] | None = None


@dataclass(slots=True)
class Text:
    """More of the text. tokens: on the last of the events that came together."""

    text: str
    tokens: NewTokens | None = None


@dataclass(slots=True)
class Thought:
    """More of a thought of the model."""

    text: str
    tokens: NewTokens | None = None


@dataclass(slots=True, kw_only=True)
class Call:
    """The beginning of a call of a tool, or more of its arguments.

    index: number of the call in the answer.
    id, name: of a call that begins, else empty.
    arguments: a part of the text of a JSON object.
    """

    index: int
    arguments: str = ""
    id: str = ""
    name: str = ""
    tokens: NewTokens | None = None


Content = Text | Thought | Call
Event = Started | PromptRead | Content | Finished


@dataclass(frozen=True, slots=True)
class Turn:
    """The content of a whole answer. calls: each with all of its arguments."""

    text: str
    thought: str
    calls: Sequence[Call]
    tokens: NewTokens


def whole_turn(events: Sequence[Event]) -> Turn:
    """Return the content of all events of an answer."""
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[Call] = []
    arguments: list[list[str]] = []  # the pieces of each call's
    tokens = NewTokens([])
    for event in events:
        match event:
            case Text(text):
                texts.append(text)
            case Thought(text):
                thoughts.append(text)
            case Call():
                if event.id:
                    calls.append(event)
                    arguments.append([])
                arguments[-1].append(event.arguments)
            case Started() | PromptRead() | Finished():
                continue
        tokens = event.tokens or tokens
    whole_calls: list[Call] = []
    for call, parts in zip(calls, arguments, strict=True):
        whole_calls.append(replace(call, arguments="".join(parts)))
    return Turn("".join(texts), "".join(thoughts), whole_calls, tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """The tokens of an answer, of all its choices together.

    prompt: of each prompt once, however many answers it has.
    cached: of the prompts, those that were computed before.
    generated: of the answers, without those of stop strings.
    accepted, rejected: drafts of the prediction.
    """

    prompt: int
    cached: int
    generated: int
    accepted: int
    rejected: int

    @property
    def total(self) -> int:
        """Return the tokens of prompts and answers."""
        return self.prompt + self.generated
