"""What OpenAI's clients expect answers to look like: a completion, a chat, and their chunks."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from specmesh import __version__
from specmesh.api.logprobs import Said, chat_logprobs, completion_logprobs
from specmesh.api.requests import Finished
from specmesh.errors import SpecmeshError

Json = dict[str, object]

SCHEMA_VERSION = 1
FINGERPRINT = f"specmesh-{__version__}"
"""What answered, as OpenAI's clients log it."""

_COUNTS = ("drafted", "accepted", "cached_tokens")


@dataclass(frozen=True, slots=True)
class Shape:
    """The form of one answer, of a chat or a completion, under the id of its request.

    `extra` is specmesh's own part, `index` the choice's, `said` the ids of which more is to be told. Log-probabilities
    of a completion are also told as those of chats are, under `specmesh`.
    """

    chat: bool
    id: str
    created: int
    model: str

    def chunk(self, text: str, finish: str | None, extra: Json, said: Sequence[Said] = (), index: int = 0) -> Json:
        """A part of a streamed answer; the last one has a reason to `finish`, a chat's first says who speaks."""
        if not self.chat:
            return self._completion(text, finish, extra, said or None, index)
        begins = "session" in extra and not extra.get("known_tokens")
        delta: Json = {"role": "assistant", "content": ""} if begins else {"content": text} if text else {}
        choice: Json = {"delta": delta, "logprobs": chat_logprobs(said) if said else None}
        return self._answer("chat.completion.chunk", choice, finish, extra, index)

    def whole(self, text: str, finish: str, extra: Json, said: Sequence[Said] | None = None, index: int = 0) -> Json:
        """The answer at once; said: None where that was not asked for."""
        if not self.chat:
            return self._completion(text, finish, extra, said, index)
        message = {"role": "assistant", "content": text, "refusal": None}
        choice: Json = {"message": message, "logprobs": None if said is None else chat_logprobs(said)}
        return self._answer("chat.completion", choice, finish, extra, index)

    def _completion(self, text: str, finish: str | None, extra: Json, said: Sequence[Said] | None, index: int) -> Json:
        choice: Json = {"text": text, "logprobs": None}
        if said is not None:
            choice["logprobs"] = completion_logprobs(said)
            extra = extra | {"logprobs": [one.entry() for one in said if not one.echoed]}
        return self._answer("text_completion", choice, finish, extra, index)

    def _answer(self, kind: str, choice: Json, finish: str | None, extra: Json, index: int) -> Json:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": FINGERPRINT,
            "choices": [{"index": index, **choice, "finish_reason": finish}],
            "specmesh": extra,
        }


def new_id(chat: bool) -> str:
    """A name for a request, which cannot be guessed: who has it can have the text."""
    return ("chatcmpl-" if chat else "cmpl-") + secrets.token_hex(16)


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of prompt and answer; drafts that stood and that did not, where OpenAI has predicted ones; tokens of the
    prompt that were in memory."""

    prompt: int
    generated: int
    accepted: int
    rejected: int
    cached: int = 0

    def __add__(self, other: "Usage") -> "Usage":
        accepted, rejected = self.accepted + other.accepted, self.rejected + other.rejected
        generated, cached = self.generated + other.generated, self.cached + other.cached
        return Usage(self.prompt + other.prompt, generated, accepted, rejected, cached)

    def as_json(self) -> Json:
        return {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.generated,
            "total_tokens": self.prompt + self.generated,
            "prompt_tokens_details": {"cached_tokens": self.cached},
            "completion_tokens_details": {
                "accepted_prediction_tokens": self.accepted,
                "rejected_prediction_tokens": self.rejected,
            },
        }


NO_USAGE = Usage(0, 0, 0, 0)


def usage(end: Finished, generated: int, *, repeats: bool = False) -> Usage:
    """The usage of an answer with so many ids; without its prompt where that of another has it (`repeats`)."""
    counts = (value if isinstance(value := end.report.get(name), int) else 0 for name in _COUNTS)
    drafted, accepted, cached = counts
    prompt, cached = (0, 0) if repeats else (len(end.prompt_ids), cached)
    return Usage(prompt, generated, accepted, drafted - accepted, cached)


def result(end: Finished, generated: int) -> Json:
    """specmesh's part of the end of an answer. Ids of a stop string are none of those generated."""
    report = end.report | ({"generated_tokens": generated} if "generated_tokens" in end.report else {})
    return {"schema_version": SCHEMA_VERSION, "prompt_token_ids": list(end.prompt_ids), "report": report}


def error(message: str, kind: str, code: str | None, param: str | None, own: SpecmeshError) -> Json:
    """OpenAI's error object; under `specmesh` is what lets our own client raise the same error again."""
    ours = {"error": type(own).__name__, "exit_code": own.exit_code}
    return {"error": {"message": message, "type": kind, "param": param, "code": code, "specmesh": ours}}
