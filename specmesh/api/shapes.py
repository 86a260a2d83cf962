"""What OpenAI's clients expect: a completion, a chat, their chunks and log-probabilities, errors."""

import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from starlette.responses import JSONResponse

from specmesh import __version__, errors
from specmesh.core.fields import Json
from specmesh.core.requests import CHAT
from specmesh.core.sampling.logprobs import Logprob
from specmesh.core.vocabulary.vocabulary import Vocabulary
from specmesh.errors import SpecmeshError

SCHEMA_VERSION = 1

written = json.JSONEncoder(ensure_ascii=False).encode
_MARK = "\0"


@dataclass(frozen=True, slots=True)
class AnswerToken:
    """A token of an answer. begin: where its text begins there. logprob: None if unknown."""

    id: int
    begin: int
    logprob: Logprob | None
    vocabulary: Vocabulary

    def entry(self) -> Json:
        """Return the token and the likeliest ones in its place: llama-server's form, which is OpenAI's with ids."""
        chosen = self.logprob.chosen if self.logprob is not None else None
        return self._one(self.id, chosen) | {
            "top_logprobs": [self._one(token, value) for token, value in self._top()]
        }

    def by_text(self) -> dict[str, float] | None:
        """Return log-probabilities by text, the chosen token's among them; the likeliest of ids with the same text."""
        if self.logprob is None:
            return None
        top: dict[str, float] = {}
        for token, value in (*self._top(), (self.id, self.logprob.chosen)):
            top.setdefault(self.spelled(token), value)
        return top

    def spelled(self, token: int) -> str:
        """Return a token's text, or its bytes if it is a part of a character, as OpenAI's completions have them."""
        piece = self.vocabulary.pieces[token]
        try:
            return piece.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)

    def _top(self) -> list[tuple[int, float]]:
        return (
            list(zip(self.logprob.ids, self.logprob.top, strict=True))
            if self.logprob is not None
            else []
        )

    def _one(self, token: int, value: float | None) -> Json:
        piece = self.vocabulary.pieces[token]
        return {
            "id": token,
            "token": piece.decode("utf-8", "replace"),
            "logprob": value,
            "bytes": list(piece),
        }


def _completion_logprobs(tokens: Sequence[AnswerToken]) -> Json:
    return {
        "tokens": [one.spelled(one.id) for one in tokens],
        "token_logprobs": [
            one.logprob.chosen if one.logprob is not None else None for one in tokens
        ],
        "top_logprobs": [one.by_text() for one in tokens],
        "text_offset": [one.begin for one in tokens],
    }


@dataclass(frozen=True, slots=True)
class Shape:
    """The form of one choice of an answer, of a chat or a completion, under the id of its request. `extra` is
    specmesh's own part, `tokens` those whose log-probabilities are wanted: of an answer at once None where none are. A
    completion's are also given as a chat's are, under `specmesh`."""

    chat: bool
    id: str
    created: int
    model: str
    index: int = 0

    def chunk(
        self, part: str | Json, finish: str | None, extra: Json, tokens: Sequence[AnswerToken] = ()
    ) -> Json:
        """A part of a streamed answer: of its text, or a chat's delta. The last one has a reason to `finish`, a chat's
        first says who speaks."""
        begins = "session" in extra and not extra.get("known_tokens")
        delta = part if isinstance(part, dict) else {"content": part} if part else {}
        content: Json = {"delta": {"role": "assistant", "content": ""} if begins else delta}
        content = content if self.chat else {"text": part}
        return self._answer("chat.completion.chunk", content, finish, extra, tokens or None)

    def frame(self) -> tuple[str, str]:
        """Return what stands before the text, and before `extra`, in every chunk of text alone."""
        same = written(self.chunk(_MARK, None, {})).removesuffix("{}}")
        before, between = same.split(written(_MARK))
        return before, between

    def whole(
        self, said: str | Json, finish: str, extra: Json, tokens: Sequence[AnswerToken] | None
    ) -> Json:
        """An answer at once: its text, or a chat's message where that has more."""
        message = {"role": "assistant", "refusal": None} | (
            said if isinstance(said, dict) else {"content": said}
        )
        content: Json = {"message": message} if self.chat else {"text": said}
        return self._answer("chat.completion", content, finish, extra, tokens)

    def _answer(
        self,
        kind: str,
        content: Json,
        finish: str | None,
        extra: Json,
        tokens: Sequence[AnswerToken] | None,
    ) -> Json:
        logprobs = None
        if tokens is not None:
            entries = [one.entry() for one in tokens]
            logprobs = (
                {"content": entries, "refusal": None} if self.chat else _completion_logprobs(tokens)
            )
            extra = extra if self.chat else extra | {"logprobs": entries}
        return {
            "id": self.id,
            "object": kind if self.chat else "text_completion",
            "created": self.created,
            "model": self.model,
            "system_fingerprint": f"specmesh-{__version__}",
            "choices": [
                {"index": self.index, **content, "logprobs": logprobs, "finish_reason": finish}
            ],
            "specmesh": extra,
        }


def new_id(chat: bool) -> str:
    """Return a request's name, which cannot be guessed: who has it can have the text."""
    return (CHAT if chat else "cmpl-") + secrets.token_hex(16)


def server_sent(value: Json) -> str:
    return f"data: {written(value)}\n\n"


RETRY_AFTER = "1"  # seconds

_STATUS: dict[type[SpecmeshError], int] = {
    **dict.fromkeys((errors.RequestError, errors.PromptTooLong, errors.MissingField), 400),
    **dict.fromkeys((errors.NoSuchModel, errors.NoSuchText), 404),
    **dict.fromkeys((errors.Busy, errors.Starting, errors.WentAway), 503),
    errors.DaemonUnreachable: 502,
    errors.NotOffered: 501,
}


def refusal(error: SpecmeshError) -> JSONResponse:
    status = _STATUS.get(type(error), 500)
    return JSONResponse(
        error_body(error), status, {"Retry-After": RETRY_AFTER} if status == 503 else None
    )


def error_body(error: SpecmeshError, kind: str = "", code: str | None = None) -> Json:
    """OpenAI's error object; under `specmesh` is what lets our own client raise the same error again."""
    ours = {"error": type(error).__name__, "exit_code": error.exit_code}
    kind = kind or ("invalid_request_error" if error.exit_code == 2 else "server_error")
    fields = {
        "message": str(error),
        "type": kind,
        "param": getattr(error, "param", None),
        "code": code or error.code,
    }
    return {"error": fields | {"specmesh": ours}}
