"""Bodies of /v1/completions and /v1/chat/completions -> requests, every field checked."""

import re
import secrets
from collections.abc import Collection
from dataclasses import dataclass, replace

from specmesh.api.fields import grammar_of, ignored, prompts_of
from specmesh.core.fields import Fields, are_ids
from specmesh.core.requests import Request
from specmesh.core.sampling.logprobs import MAX_LOGPROBS
from specmesh.core.sampling.sampler import FORBIDDEN
from specmesh.core.session_params import (
    MAX_TOKENS,
    ChatMessage,
    SessionParams,
    check_biases,
    message_of,
    session_params,
)
from specmesh.errors import RequestError

RECONNECT_TIMEOUT, LONGEST_TIMEOUT = 30.0, 86_400.0
"""Seconds that a text waits for a verifier that went away, where nothing is said; and at most."""

MAX_CHOICES = 8
MAX_TEXTS = 128
"""Of one request: prompts times choices."""

_NAME = re.compile(r"(chat)?cmpl-[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class Body:
    """A parsed body. requests: one for each prompt, or that of a chat or a resumed text."""

    requests: tuple[Request, ...]
    began: str  # the model that began a resumed text
    model: str  # the model asked for
    choices: int  # answers per request
    ignore_eos: bool
    resumable: bool  # say what is needed to resume the text
    stream: bool
    tells_usage: bool  # in a chunk of its own
    ignored: tuple[str, ...]  # names of fields that nobody reads
    splits: bool  # thoughts are told apart from the answer


def parse_body(value: object, *, chat: bool) -> Body:
    """Check the body of a chat or a completion. Raise RequestError that names the field. Defaults are OpenAI's
    (temperature 1, top_p 1) except for a completion's max_tokens, 128; a chat ends with the context. docs/http-api.md
    says whose each field is."""
    fields = Fields(value)
    requests, began = _requests(fields, chat=chat)
    body = Body(
        requests,
        began,
        model=fields.text("model"),
        choices=fields.integer("n", 1, 1, MAX_CHOICES),
        ignore_eos=fields.flag("ignore_eos"),
        resumable=fields.flag("resumable"),
        stream=fields.flag("stream"),
        tells_usage=Fields(fields.mapping("stream_options")).flag("include_usage"),
        splits=_splits(fields),
        ignored=ignored(fields),
    )
    texts, resumes = len(requests) * body.choices, bool(requests[0].id)
    if texts > MAX_TEXTS:
        raise RequestError(f"one request has {MAX_TEXTS} texts at most: send fewer prompts at once", "prompt")
    if texts > 1 and (body.resumable or resumes):
        field = "n" if body.choices > 1 else "prompt"
        raise RequestError("only one text at a time can be gone on with: leave n out, and send one prompt", field)
    return body


def _requests(fields: Fields, *, chat: bool) -> tuple[tuple[Request, ...], str]:
    """Return what is asked for, and the model that began it where it is a resumed text."""
    logprobs = _logprobs(fields, chat=chat)
    grammar = grammar_of(fields, chat=chat)
    params = session_params(fields, _seed(fields), _max_tokens(fields, chat=chat), logprobs, grammar)
    request = Request(
        None,
        None,
        params,
        fields.flag("rounds"),
        reconnect_timeout=fields.number("reconnect_timeout", RECONNECT_TIMEOUT, 0.0, LONGEST_TIMEOUT),
    )
    resume, said = fields.get("resume"), fields.get("messages" if chat else "prompt")
    if params.echo and (chat or resume is not None):
        raise RequestError("only a completion's prompt can be echoed, not a chat or a resumed text", "echo")
    if resume is not None:
        request, began = _resumed(resume, request)
        return (request,), began
    if chat:
        if not isinstance(said, list) or not said:
            raise RequestError("messages must be a list with at least one message", "messages")
        messages = tuple(_message(item, f"messages[{index}]") for index, item in enumerate(said))
        continued, variables = _continues(fields, messages), fields.mapping("chat_template_kwargs")
        if not continued and not fields.flag("add_generation_prompt", True):
            variables["add_generation_prompt"] = False
        if effort := fields.text("reasoning_effort"):
            variables = {"reasoning_effort": effort} | variables
        return (replace(request, messages=messages, continued=continued, template=variables),), ""
    return tuple(replace(request, prompt=text, prompt_ids=ids) for text, ids in prompts_of(said)), ""


def _resumed(value: object, request: Request) -> tuple[Request, str]:
    """What goes on with a text, and its model: its `id`, and where known its prompt's ids and those it has so far."""
    if not isinstance(value, dict) or value.keys() - {"id", "model", "prompt_token_ids", "token_ids"}:
        why = "resume must be an object with id, model, prompt_token_ids, token_ids, or id alone"
        raise RequestError(why, "resume")
    name, model = value.get("id"), value.get("model", "")
    if not isinstance(model, str):
        raise RequestError("resume.model must be a text", "resume")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise RequestError("resume.id must be the id of an answer, cmpl- or chatcmpl- and 32 digits", "resume")
    if "prompt_token_ids" not in value:
        return replace(request, id=name, named_only=True), model
    prompt, said = value["prompt_token_ids"], value.get("token_ids", [])
    if not prompt or not are_ids(prompt) or not are_ids(said):
        why = "resume.prompt_token_ids and token_ids must be lists of token ids, each from 0 to 2147483647"
        raise RequestError(f"{why}, the first not empty", "resume")
    return replace(request, id=name, prompt_ids=tuple(prompt), generated=tuple(said), known=len(said)), model


def _splits(fields: Fields) -> bool:
    form = fields.text("reasoning_format", "auto")
    if form not in ("auto", "none", "deepseek"):  # deepseek: llama-server's name for what auto does
        raise RequestError("reasoning_format must be auto or none", "reasoning_format")
    return form != "none"


def _max_tokens(fields: Fields, *, chat: bool) -> int:
    most = fields.integer("max_tokens", MAX_TOKENS if chat else 128, -1, MAX_TOKENS)
    if chat:
        most = fields.integer("max_completion_tokens", most, -1, MAX_TOKENS)
    return MAX_TOKENS if most < 0 else most


def _seed(fields: Fields) -> int:
    """A seed of 32 bits, which the wire carries: the lowest of a longer one; -1 is a random one."""
    seed = fields.integer("seed", -1, -(2**63), 2**64 - 1)
    return secrets.randbits(32) if seed == -1 else seed % 2**32


def endless(params: SessionParams, end_ids: Collection[int]) -> SessionParams:
    """The same of a text that does not end by itself: as llama.cpp's ignore_eos, none of these ids is ever chosen. A
    bias does that, so the drafter learns of it, and whoever goes on with the text."""
    others = (bias for bias in params.sampling.logit_bias if bias[0] not in end_ids)
    biases = (*others, *((token, FORBIDDEN) for token in sorted(end_ids)))
    return replace(params, sampling=replace(params.sampling, logit_bias=check_biases(biases)))


def _logprobs(fields: Fields, *, chat: bool) -> int | None:
    """How many of the likeliest tokens are told with each one, None where no log-probability is."""
    if not chat:
        return None if fields.get("logprobs", False) is False else fields.integer("logprobs", 0, 0, MAX_LOGPROBS)
    wanted, top = fields.flag("logprobs"), fields.integer("top_logprobs", 0, 0, MAX_LOGPROBS)
    if top and not wanted:
        raise RequestError("top_logprobs needs logprobs: set it to true", "top_logprobs")
    return top if wanted else None


_CONTENT = ("audio", "function_call", "images", "refusal")
"""Fields of a message that say something, which would be lost; what else it has besides a text is left out."""


def _continues(fields: Fields, messages: tuple[ChatMessage, ...]) -> bool:
    """Whether the last message is to be continued, which only an assistant's can."""
    if fields.flag("add_generation_prompt") and fields.flag("continue_final_message"):
        why = "add_generation_prompt begins an answer, continue_final_message goes on with one: choose"
        raise RequestError(why, "continue_final_message")
    own = messages[-1].role == "assistant" and not messages[-1].tool_calls
    asked = fields.flag("continue_final_message", own)
    if asked and not own:
        raise RequestError("only an assistant's message at the end can be continued", "messages")
    wanted = own and not fields.flag("add_generation_prompt", not asked)
    if wanted and "assistant" in [message.role for message in messages[-2:-1]]:
        raise RequestError("two assistant messages at the end cannot be continued: join them", "messages")
    return wanted


def _message(value: object, where: str) -> ChatMessage:
    if not isinstance(value, dict) or not isinstance(value.get("role"), str):
        raise RequestError(f"{where} must be an object with a role", where)
    role, content = value["role"], value.get("content")
    for key in _CONTENT:
        if value.get(key) not in (None, [], ""):
            raise RequestError(f"{where}.{key} is not supported yet", where)
    if content is None and role == "assistant":
        content = ""
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if not isinstance(parts, list):
        raise RequestError(f"{where}.content must be a text, or a list of text parts", where)
    texts = (_part(part, f"{where}.content[{index}]") for index, part in enumerate(parts))
    return message_of({**value, "content": "".join(texts)}, where)


_MEDIA = re.compile("image|audio|video|file")


def _part(part: object, where: str) -> str:
    match part:
        case {"text": str(text), **more} if more.get("type", "text") == "text":
            if not any(_MEDIA.search(str(name)) for name, value in more.items() if value is not None):
                return text
    raise RequestError(f"{where} must be a text part: images, audio and files are not supported", where)
