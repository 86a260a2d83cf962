"""The requests of the Python API: their options, and the bodies that they become."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, TypedDict, cast

from specmesh.core.fields import Json
from specmesh.errors import RequestError

COMPLETIONS = "/v1/completions"
CHATS = "/v1/chat/completions"

Prompt = str | Sequence[int]
"""A text, or token ids of the target's vocabulary."""

Message = Mapping[str, object]
"""A message of a chat as OpenAI's API has it: {"role": "user", "content": "Hi"}."""


class TextOptions(TypedDict, total=False):
    """Options of a text. What is not given, or is None, has the daemon's default.

    docs/http-api.md explains each; it has the same name there.

    max_tokens: tokens to generate at most: 128, for a chat the rest of the context.
    temperature: 1; 0 always takes the likeliest token.
    seed: 0 to 2**32 - 1; random.
    stop: texts before which the answer ends, at most 64.
    logprobs: log-probabilities of each token and of so many of the likeliest, 0 to 20.
    draft_n: drafts per step; "auto" adapts it, 0 is the verifier alone.
    draft_sources: names of sources that may draft, as reports have them; all. [] drafts nothing.
    sources: whether pieces name the sources of their tokens.
    prediction: a text that the answer is expected to be close to, such as a file to edit.
    json_schema, grammar: the form of the text, as a JSON schema or in GBNF; give one.
    """

    model: str | None
    max_tokens: int | None
    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    repeat_penalty: float | None
    repeat_last_n: int | None
    frequency_penalty: float | None
    presence_penalty: float | None
    logit_bias: Mapping[str, float] | None
    seed: int | None
    stop: str | Sequence[str] | None
    ignore_eos: bool | None
    logprobs: int | None
    json_schema: Mapping[str, object] | None
    grammar: str | None
    strategy: Literal["deterministic", "probabilistic", "threshold", "greedy"] | None
    threshold: float | None
    draft_n: int | Literal["auto"] | None
    draft_sources: Sequence[str] | None
    sources: bool | None
    prediction: str | Mapping[str, object] | None
    cache_prompt: bool | None


class ChatOptions(TextOptions, total=False):
    """Options of an answer in a chat: those of a text, and OpenAI's for tools and thoughts."""

    tools: Sequence[Mapping[str, object]] | None
    tool_choice: str | Mapping[str, object] | None
    parallel_tool_calls: bool | None
    reasoning_effort: str | None
    reasoning_format: Literal["auto", "none"] | None
    chat_template_kwargs: Mapping[str, object] | None
    add_generation_prompt: bool | None


def text_body(prompt: Prompt, options: TextOptions, *, progress: bool) -> Json:
    """Return the body of a completion. Raises RequestError for an option that there is not.

    progress: whether the reading of the prompt is reported.
    """
    given: object = prompt
    if not isinstance(prompt, str):
        given = _listed(prompt, "prompt must be a text or token ids", "prompt")
    return {"prompt": given} | _fields(options, TextOptions.__optional_keys__, progress=progress)


def chat_body(messages: Sequence[Message], options: ChatOptions, *, progress: bool) -> Json:
    """Return the body of a chat. Raises RequestError for an option that there is not."""
    listed = _listed(messages, "messages must be a list of messages", "messages")
    body: Json = {"messages": listed}
    body |= _fields(options, ChatOptions.__optional_keys__, progress=progress)
    if "logprobs" in body:
        body["top_logprobs"] = body["logprobs"]
        body["logprobs"] = True
    return body


def resource_of(body: Json) -> str:
    """Return the path that a body is sent to."""
    return CHATS if "messages" in body else COMPLETIONS


def _listed(items: object, why: str, param: str) -> list[object]:
    """Return items as a list. Raises RequestError with these words if they are none."""
    if isinstance(items, str | bytes | Mapping) or not isinstance(items, Iterable):
        raise RequestError(why, param)
    return list(cast("Iterable[object]", items))


def _fields(options: TextOptions, known: frozenset[str], *, progress: bool) -> Json:
    """Return the fields of options. Raises RequestError: the daemon ignores names it knows not."""
    fields: Json = {}
    for name, value in options.items():
        if name not in known:
            raise RequestError(f"there is no option {name}", name, "see docs/python.md")
        if value is not None:
            fields[name] = value
    prediction = fields.get("prediction")
    if isinstance(prediction, str):
        fields["prediction"] = {"type": "content", "content": prediction}
    if progress:
        fields["return_progress"] = True
    return fields
