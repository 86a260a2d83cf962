"""Bodies of /v1/completions and /v1/chat/completions -> a Request, every field checked."""

import re
import secrets
import zlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from specmesh.api.fields import BodyFields, Prompt, are_ids, biases_of, grammar_of, prompts_of, stops_of
from specmesh.core.requests import Request
from specmesh.core.sampling import THRESHOLD, Strategy
from specmesh.core.sampling.logprobs import MAX_LOGPROBS
from specmesh.core.sampling.sampler import FORBIDDEN, MOST, WINDOW, Penalties, SamplingParams, check_sampling
from specmesh.core.session_params import MAX_DRAFTS, MAX_TOKENS, ChatMessage, SessionParams
from specmesh.errors import RequestError

RECONNECT_TIMEOUT, LONGEST_TIMEOUT = 30.0, 86_400.0
"""Seconds that a text waits for a verifier that went away, where nothing is said; and at most."""

MAX_SEED = 2**32 - 1
MAX_CHOICES = 8
MAX_TEXTS = 128
"""Of one request: prompts times choices."""
MAX_PRIORITY = 100

DEFAULTS = (
    *("max_tokens", "temperature", "top_k", "top_p", "min_p"),
    *("repeat_penalty", "repeat_last_n", "frequency_penalty", "presence_penalty"),
)
"""Fields of a body that a daemon may have defaults for."""

_NAME = re.compile(r"(chat)?cmpl-[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class Body:
    """A parsed body."""

    request: Request
    stream: bool
    usage_apart: bool = False  # the usage has a chunk of its own
    resumable: bool = False  # say what is needed to resume the text
    model: str = ""  # that began a resumed text
    ignore_eos: bool = False
    choices: int = 1  # answers per prompt
    echo: bool = False  # answers begin with the prompt
    named: str = ""  # the model asked for
    prompts: tuple[Prompt, ...] = ()  # none for a chat
    ignored: tuple[str, ...] = ()  # fields that nobody reads


def parse_completion(body: object) -> Body:
    """Check a completion's body. Raise RequestError that names the field.

    Defaults are OpenAI's (temperature 1, top_p 1) except max_tokens, 128. docs/http-api.md says whose each field is.
    """
    fields = BodyFields(body)
    resumes, prompt = fields.get("resume") is not None, fields.get("prompt")
    prompts = prompts_of(prompt) if not resumes else ((None, None),)
    params = _params(fields, _most_tokens(fields, "max_tokens", 128), _completion_logprobs(fields))
    parsed = _body(fields, Request(*prompts[0], params, fields.flag("rounds")))
    if len(prompts) * parsed.choices > MAX_TEXTS:
        raise RequestError(f"one request has {MAX_TEXTS} texts at most: send fewer prompts at once", "prompt")
    if len(prompts) > 1 and parsed.resumable:
        raise RequestError("only one text at a time can be gone on with: send one prompt", "prompt")
    echo = fields.flag("echo")
    if echo and resumes:
        raise RequestError("echo is of the beginning of a text, and resume is not: leave one out", "echo")
    return replace(parsed, echo=echo, prompts=prompts, ignored=fields.unread())


def parse_chat(body: object) -> Body:
    """Check a chat's body. Raise RequestError that names the field. Without max_tokens the context is the end.

    An assistant's message at the end is continued, as llama-server does, unless vLLM's add_generation_prompt, or where
    that is left out its continue_final_message, says otherwise.
    """
    fields = BodyFields(body)
    most = _most_tokens(fields, "max_completion_tokens", _most_tokens(fields, "max_tokens", MAX_TOKENS))
    params, said = _params(fields, most, _chat_logprobs(fields)), fields.get("messages")
    messages = parse_messages(said) if fields.get("resume") is None else ()
    request = Request(None, None, params, fields.flag("rounds"), messages, _continues(fields, messages))
    return replace(_body(fields, request), ignored=fields.unread())


def _most_tokens(fields: BodyFields, name: str, default: int) -> int:
    most = fields.integer(name, default, -1, MAX_TOKENS)
    return MAX_TOKENS if most < 0 else most


def _body(fields: BodyFields, request: Request) -> Body:
    """Read what both APIs have, besides what a text is sampled with."""
    options, resume, named = fields.get("stream_options") or {}, fields.get("resume"), fields.get("model")
    if not isinstance(options, dict):
        raise RequestError("stream_options must be an object", "stream_options")
    wait = fields.number("reconnect_timeout", RECONNECT_TIMEOUT, 0.0, LONGEST_TIMEOUT)
    request, model = (
        replace(request, reconnect_timeout=wait, priority=fields.integer("priority", 0, 0, MAX_PRIORITY)),
        "",
    )
    if resume is not None:
        request, model = _resumed(resume, request)
    choices, resumable = fields.integer("n", 1, 1, MAX_CHOICES), fields.flag("resumable")
    if choices > 1 and (resumable or resume is not None):
        raise RequestError("only one text at a time can be gone on with: leave n out", "n")
    return Body(
        request,
        fields.flag("stream"),
        BodyFields(options).flag("include_usage"),
        resumable,
        model,
        fields.flag("ignore_eos"),
        choices,
        named=named if isinstance(named, str) else "",
    )


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
    prompt, said = _ids(value["prompt_token_ids"], "prompt_token_ids"), _ids(value.get("token_ids", []), "token_ids")
    if not prompt:
        raise RequestError("resume.prompt_token_ids are none", "resume")
    return replace(request, id=name, prompt_ids=prompt, generated=said, known=len(said)), model


def _ids(value: object, name: str) -> tuple[int, ...]:
    if are_ids(value):
        return tuple(value)
    raise RequestError(f"resume.{name} must be a list of token ids, each from 0 to 2147483647", "resume")


def _params(fields: BodyFields, max_tokens: int, logprobs: int | None) -> SessionParams:
    strategy = fields.get("strategy")
    sampling = SamplingParams(
        temperature=fields.number("temperature", 1.0, 0.0, MOST),
        top_k=max(fields.integer("top_k", 0, -1, 2**31 - 1), 0),
        top_p=fields.number("top_p", 1.0, 0.0, 1.0),
        seed=_seed(fields),
        min_p=fields.number("min_p", 0.0, 0.0, 1.0),
        penalties=Penalties(
            fields.number("repeat_penalty", 1.0, -MOST, MOST),
            fields.number("frequency_penalty", 0.0, -MOST, MOST),
            fields.number("presence_penalty", 0.0, -MOST, MOST),
            fields.integer("repeat_last_n", WINDOW, -1, 2**31 - 1),
        ),
        logit_bias=biases_of(fields.get("logit_bias")),
        strategy=Strategy.DETERMINISTIC if strategy is None else strategy,  # `check_sampling` looks
        threshold=fields.number("threshold", THRESHOLD, 0.0, 1.0),
    )
    draft_n = None if fields.get("draft_n") in (None, "auto") else fields.integer("draft_n", 0, 0, MAX_DRAFTS)
    stops, cached = stops_of(fields.get("stop")), fields.flag("cache_prompt", True)
    return SessionParams(check_sampling(sampling), max_tokens, draft_n, stops, logprobs, grammar_of(fields), cached)


def _seed(fields: BodyFields) -> int:
    """A seed of 32 bits, which the wire carries: a longer or negative one is its checksum; -1 is a random one."""
    seed = fields.integer("seed", -1, -(2**63), 2**64 - 1)
    if seed == -1:
        return secrets.randbits(32)
    return seed if 0 <= seed <= MAX_SEED else zlib.crc32(seed.to_bytes(9, "little", signed=True))


def endless(params: SessionParams, end_ids: Collection[int]) -> SessionParams:
    """The same of a text that does not end by itself: as llama.cpp's ignore_eos, none of these ids is ever chosen.

    A bias does that, so the drafter learns of it, and whoever goes on with the text.
    """
    others = (bias for bias in params.sampling.logit_bias if bias[0] not in end_ids)
    biases = (*others, *((token, FORBIDDEN) for token in sorted(end_ids)))
    return replace(params, sampling=check_sampling(replace(params.sampling, logit_bias=biases)))


def _completion_logprobs(fields: BodyFields) -> int | None:
    wanted = fields.get("logprobs")
    return None if wanted is None or wanted is False else fields.integer("logprobs", 0, 0, MAX_LOGPROBS)


def _chat_logprobs(fields: BodyFields) -> int | None:
    wanted, top = fields.flag("logprobs"), fields.integer("top_logprobs", 0, 0, MAX_LOGPROBS)
    if top and not wanted:
        raise RequestError("top_logprobs needs logprobs: set it to true", "top_logprobs")
    return top if wanted else None


_CONTENT = frozenset({"tool_calls", "function_call", "tool_call_id", "audio", "images", "refusal"})
"""Fields of a message that say something, which would be lost; what else it has besides a text is left out."""

_MEDIA = ("image", "audio", "video", "file")


def parse_messages(value: object) -> tuple[ChatMessage, ...]:
    if not isinstance(value, list) or not value:
        raise RequestError("messages must be a list with at least one message", "messages")
    return tuple(_message(item, f"messages[{index}]") for index, item in enumerate(value))


def _continues(fields: BodyFields, messages: tuple[ChatMessage, ...]) -> bool:
    """Whether the last message is to be continued, which only an assistant's can."""
    own = bool(messages) and messages[-1].role == "assistant"
    wanted = not fields.flag("add_generation_prompt", not fields.flag("continue_final_message", own))
    if wanted and messages and not own:
        raise RequestError("only an assistant's message at the end can be continued", "messages")
    if wanted and len(messages) > 1 and messages[-2].role == "assistant":
        raise RequestError("two assistant messages at the end cannot be continued: join them", "messages")
    return wanted


def _message(value: object, where: str) -> ChatMessage:
    if not isinstance(value, dict) or not isinstance(value.get("role"), str):
        raise RequestError(f"{where} must be an object with a role", where)
    role, name, content = value["role"], value.get("name"), value.get("content")
    if not isinstance(name, str | None):
        raise RequestError(f"{where}.name must be a text", where)
    for key in sorted(_CONTENT & value.keys()):
        if value[key] not in (None, [], ""):
            raise RequestError(f"{where}.{key} is not supported yet", where)
    if content is None and role == "assistant":
        content = ""
    return ChatMessage(role, _content(content, f"{where}.content"), name or "")


def _content(value: object, where: str) -> str:
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise RequestError(f"{where} must be a text, or a list of text parts", where)
    return "".join(_part(part, f"{where}[{index}]") for index, part in enumerate(value))


def _part(part: object, where: str) -> str:
    if not isinstance(part, dict):
        raise RequestError(f"{where} must be an object with a type", where)
    kind = part.get("type", "text")
    names = [str(kind), *(name for name, value in part.items() if value is not None)]
    for medium in _MEDIA:
        if any(medium in name for name in names):
            raise RequestError(f"{medium} input is not supported by this model", where)
    if kind != "text" or not isinstance(part.get("text"), str):
        raise RequestError(f"{where} is no text part, and nothing else is supported", where)
    return str(part["text"])


def filled(body: object, defaults: Mapping[str, object]) -> object:
    """A body with what it leaves out: the daemon's defaults, then its own `fallback`.

    fallback: a client's own defaults, some of DEFAULTS, which the daemon's come before. Raises RequestError where it is
    something else.
    """
    if not isinstance(body, dict):
        return body
    fallback = body.get("fallback")
    if not isinstance(fallback, dict | None) or not set(fallback or {}) <= set(DEFAULTS):
        raise RequestError(f"fallback must be an object with some of {', '.join(DEFAULTS)}", "fallback")
    used = {**(fallback or {}), **defaults}
    given = {name: value for name, value in body.items() if name != "fallback"}
    return given | {name: value for name, value in used.items() if given.get(name) is None}
