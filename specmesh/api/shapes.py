"""What OpenAI's clients expect answers to look like: a completion, a chat, and their chunks."""

import secrets
from dataclasses import dataclass
from typing import Protocol

from specmesh.requests import Finished

Json = dict[str, object]

SCHEMA_VERSION = 1


class Shape(Protocol):
    """One answer's form, under the id of its request; `extra` is specmesh's own part."""

    @property
    def id(self) -> str:
        """The request's, for its client and for the log."""
        ...

    def chunk(self, text: str, finish: str | None, extra: Json) -> Json:
        """A part of a streamed answer; the last one has a reason to `finish`."""
        ...

    def whole(self, text: str, finish: str, extra: Json) -> Json:
        """The answer at once."""
        ...


@dataclass(frozen=True, slots=True)
class Completion:
    """/v1/completions."""

    id: str
    created: int
    model: str

    def chunk(self, text: str, finish: str | None, extra: Json) -> Json:
        """A part of the text."""
        choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish}
        return _head(self, "text_completion") | {"choices": [choice], "specmesh": extra}

    def whole(self, text: str, finish: str, extra: Json) -> Json:
        """The text."""
        return self.chunk(text, finish, extra)


@dataclass(frozen=True, slots=True)
class Chat:
    """/v1/chat/completions."""

    id: str
    created: int
    model: str

    def chunk(self, text: str, finish: str | None, extra: Json) -> Json:
        """A part of the assistant's message; the first, before any text, says who speaks."""
        begins = "session" in extra and not extra.get("known_tokens")
        delta: Json = {"role": "assistant", "content": ""} if begins else {"content": text} if text else {}
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return _head(self, "chat.completion.chunk") | {"choices": [choice], "specmesh": extra}

    def whole(self, text: str, finish: str, extra: Json) -> Json:
        """The assistant's message."""
        message = {"role": "assistant", "content": text, "refusal": None}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish}
        return _head(self, "chat.completion") | {"choices": [choice], "specmesh": extra}


def shape(chat: bool, created: float, model: str, name: str = "") -> Shape:
    """The form of an answer, a new one unless it has a name. A name cannot be guessed: who has it can have the text."""
    name = name or ("chatcmpl-" if chat else "cmpl-") + secrets.token_hex(16)
    return (Chat if chat else Completion)(name, int(created), model)


def _head(answer: Completion | Chat, kind: str) -> Json:
    return {"id": answer.id, "object": kind, "created": answer.created, "model": answer.model}


def usage(end: Finished, generated: int) -> Json:
    """Tokens of prompt and answer; drafts that stood and that did not, where OpenAI has predicted ones."""
    prompt, report = len(end.prompt_ids), end.report
    drafted, accepted = (value if isinstance(value := report.get(name), int) else 0 for name in ("drafted", "accepted"))
    return {
        "prompt_tokens": prompt,
        "completion_tokens": generated,
        "total_tokens": prompt + generated,
        "completion_tokens_details": {
            "accepted_prediction_tokens": accepted,
            "rejected_prediction_tokens": drafted - accepted,
        },
    }


def result(end: Finished) -> Json:
    """specmesh's part of the end of an answer."""
    return {"schema_version": SCHEMA_VERSION, "prompt_token_ids": list(end.prompt_ids), "report": end.report}


def error(message: str, kind: str, code: str, param: str | None = None, exit_code: int = 1) -> Json:
    """OpenAI's error object; `code` and `exit_code` let our own client raise the same error again."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code, "exit_code": exit_code}}
