"""Log-probabilities as OpenAI's answers have them: those of completions, and those of chats."""

from collections.abc import Sequence
from dataclasses import dataclass

from specmesh.core.sampling.logprobs import Logprob
from specmesh.core.vocabulary.vocabulary import Vocabulary

Json = dict[str, object]


@dataclass(frozen=True, slots=True)
class Said:
    """An id of an answer: where its text begins there, and how likely it was; None where that is not known.

    echoed: it is of the prompt.
    """

    id: int
    begin: int
    logprob: Logprob | None
    vocabulary: Vocabulary
    echoed: bool = False

    def entry(self) -> Json:
        """The id, its token, and the likeliest ones in its place; llama-server's form, which is OpenAI's with ids."""
        chosen = self.logprob.chosen if self.logprob is not None else None
        return self._one(self.id, chosen) | {"top_logprobs": [self._one(token, value) for token, value in self.top()]}

    def top(self) -> Sequence[tuple[int, float]]:
        return list(zip(self.logprob.ids, self.logprob.top, strict=True)) if self.logprob is not None else []

    def spelled(self, token: int) -> str:
        """A token's text; of one that is part of a character its bytes, as OpenAI's completions have them."""
        piece = self.vocabulary.pieces[token]
        try:
            return piece.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)

    def _one(self, token: int, value: float | None) -> Json:
        piece = self.vocabulary.pieces[token]
        return {"id": token, "token": piece.decode("utf-8", "replace"), "logprob": value, "bytes": list(piece)}


def chat_logprobs(said: Sequence[Said]) -> Json:
    """`logprobs` of a chat's choice."""
    return {"content": [one.entry() for one in said], "refusal": None}


def completion_logprobs(said: Sequence[Said]) -> Json:
    """`logprobs` of a completion's choice. The token that was said is among its top_logprobs, however unlikely."""
    return {
        "tokens": [one.spelled(one.id) for one in said],
        "token_logprobs": [one.logprob.chosen if one.logprob is not None else None for one in said],
        "top_logprobs": [_by_token(one) for one in said],
        "text_offset": [one.begin for one in said],
    }


def _by_token(said: Said) -> dict[str, float] | None:
    """Tokens and their logarithms; of several ids with the same text the likeliest counts."""
    if said.logprob is None:
        return None
    top: dict[str, float] = {}
    for token, value in said.top():
        top.setdefault(said.spelled(token), value)
    top.setdefault(said.spelled(said.id), said.logprob.chosen)
    return top
