"""What a client asked for, and what the target allows."""

import json
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from specmesh.core.draft_length import MAX_DRAFTS
from specmesh.core.fields import Fields, Json, at, is_id, is_list, is_object, object_at
from specmesh.core.sampling.constraint import Constraint, Grammar, GrammarKind, check_grammar
from specmesh.core.sampling.logprobs import MAX_ALTERNATIVES
from specmesh.core.sampling.sampler import (
    FORBIDDEN,
    MAX_BIASES,
    MOST,
    WINDOW,
    Penalties,
    SamplingParams,
)
from specmesh.core.sampling.strategy import THRESHOLD, Strategy
from specmesh.core.text.stop import MAX_LENGTH, MAX_STOPS, MAX_TOGETHER
from specmesh.core.text.tool_formats import ToolCall
from specmesh.errors import PromptTooLong, RequestError
from specmesh.wire.messages import MAX_BODY

MESSAGE_BYTES = 256  # memory of a message or a call, besides its long texts


@dataclass(frozen=True, slots=True)
class ChatMessage:
    role: str  # system, user, assistant, or what else the template knows
    content: str
    name: str = ""  # of who says it
    tool_calls: tuple[ToolCall, ...] = ()  # an assistant's
    tool_call_id: str = ""  # of the call that a tool answers
    reasoning: str = ""  # before an assistant's content

    @property
    def size(self) -> int:
        """Return the approximate bytes of memory that it takes."""
        size = MESSAGE_BYTES + sys.getsizeof(self.content) + sys.getsizeof(self.reasoning)
        for call in self.tool_calls:
            size += MESSAGE_BYTES + sys.getsizeof(call.arguments)
        return size

    def fields(self) -> dict[str, object]:
        """As OPEN carries it, and a chat template is to read it once `arguments` are objects: what is empty is left
        out."""
        calls = [
            {
                "id": one.id,
                "type": "function",
                "function": {"name": one.name, "arguments": one.arguments},
            }
            for one in self.tool_calls
        ]
        optional: Json = {"name": self.name, "tool_calls": calls, "tool_call_id": self.tool_call_id}
        optional |= {"reasoning_content": self.reasoning}
        return {"role": self.role, "content": self.content} | {
            name: one for name, one in optional.items() if one
        }


def message_of(value: object, where: str = "messages") -> ChatMessage:
    """A message of OPEN, or of a body once its content is a text. Raises RequestError."""
    fields = Fields(value)
    names = ("role", "content", "name", "tool_call_id", "reasoning_content")
    wrong = [name for name in names if not isinstance(fields.get(name, ""), str)]
    calls = fields.get("tool_calls", [])
    if wrong or not is_list(calls):
        why = f"{wrong[0]} must be a text" if wrong else "tool_calls must be a list"
        raise RequestError(f"{where}.{why}", where)
    called = tuple(
        _call_of(call, f"{where}.tool_calls[{index}]") for index, call in enumerate(calls)
    )
    role, content, name, answered, thought = map(fields.text, names)
    return ChatMessage(role, content, name, called, answered, thought)


def _call_of(value: object, where: str) -> ToolCall:
    function = object_at(value, "function")
    name = function.get("name")
    if not isinstance(name, str):
        raise RequestError(f"{where} must have a function with a name and arguments", where)
    written = text_of_arguments(function.get("arguments"))
    return ToolCall(str(at(value, "id") or ""), name, written)


def text_of_arguments(arguments: object) -> str:
    """Return a call's arguments as text, "" for none. Some clients send them as JSON, or nothing
    for a call without any."""
    if arguments is None:
        return ""
    if isinstance(arguments, str):
        return arguments
    return json.dumps(arguments, ensure_ascii=False)


MERGED_ROLES = ("assistant", "system", "user")
"""Roles whose messages may be joined to others for a template."""

LARGEST_MAX_TOKENS = 2**31 - 1  # largest max_tokens of a request; 0: the prompt only
LEAST_FACTOR, LEAST_SHARE = 1e-6, 1e-9  # a repeat_penalty, and a threshold, must be above 0


@dataclass(frozen=True, slots=True)
class SessionParams:
    sampling: SamplingParams
    max_tokens: int
    draft_n: int | None = None  # None adapts, 0 never drafts, N takes N drafts in every step
    stop: tuple[str, ...] = ()  # texts with which the text ends
    logprobs: int | None = None  # alternatives shown with each id; None for no log-probabilities
    grammar: Grammar | None = None  # what the text must be; max_tokens may cut it
    cache_prompt: bool = True  # reuse what earlier sessions left in memory, and leave one's own
    thinking: str = ""  # how the text thinks, as the target's template has it: see core.reasoning
    echo: bool = False  # the answer begins with the prompt, also in its log-probabilities
    merged: tuple[str, ...] = ()  # roles whose messages were joined to others for the template

    @property
    def scored(self) -> bool:
        """Whether log-probabilities of the prompt's ids are wanted."""
        return self.echo and self.logprobs is not None

    @property
    def allowed_draft_n(self) -> int | None:
        """draft_n, as the strategy allows it."""
        return 0 if self.sampling.strategy == Strategy.GREEDY else self.draft_n

    def named(self) -> dict[str, object]:
        """As the wire has them: see `wire_params`."""
        return self.sampling.named() | {
            "max_tokens": self.max_tokens,
            "draft_n": self.draft_n,
            "stop": list(self.stop),
            "logprobs": self.logprobs,
            "logit_bias": [list(pair) for pair in self.sampling.logit_bias],
            "grammar": self.grammar.text if self.grammar is not None else None,
            "grammar_kind": self.grammar.kind.value if self.grammar is not None else None,
            "cache_prompt": self.cache_prompt,
            "thinking": self.thinking,
            "echo": self.echo,
            "merged": list(self.merged),
        }


_REST_OF_OPENED = 1024  # bytes, at most


def opened_options(params: SessionParams) -> dict[str, object]:
    """Return the parameters as OPENED has them: without a grammar that no frame holds, as a drafter
    may do without."""
    named = params.named()
    if params.grammar is not None and len(params.grammar.text) > MAX_BODY // 8:
        body = json.dumps(named, ensure_ascii=False).encode()
        if len(body) > MAX_BODY - _REST_OF_OPENED:
            named |= {"grammar": None, "grammar_kind": None}
    return named


def session_params(
    fields: Fields,
    seed: int,
    max_tokens: int,
    logprobs: int | None,
    grammar: Grammar | None,
    most_bias: float = MOST,
) -> SessionParams:
    """What the fields of a request ask for, by the names that the API and the wire have for them; what these two write
    differently is given. Raise RequestError for what no session can have."""
    sampling = SamplingParams(
        temperature=fields.number("temperature", 1.0, 0.0, MOST),
        top_k=max(fields.integer("top_k", 0, -1, 2**31 - 1), 0),
        top_p=fields.number("top_p", 1.0, 0.0, 1.0),
        seed=seed,
        min_p=fields.number("min_p", 0.0, 0.0, 1.0),
        penalties=Penalties(
            fields.number("repeat_penalty", 1.0, LEAST_FACTOR, MOST),
            fields.number("frequency_penalty", 0.0, -MOST, MOST),
            fields.number("presence_penalty", 0.0, -MOST, MOST),
            fields.integer("repeat_last_n", WINDOW, -1, 2**31 - 1),
        ),
        logit_bias=biases_of(fields.get("logit_bias"), most_bias),
        strategy=fields.text("strategy", Strategy.DETERMINISTIC),
        threshold=fields.number("threshold", THRESHOLD, LEAST_SHARE, 1.0),
    )
    if sampling.strategy not in tuple(Strategy):
        raise RequestError(f"strategy must be one of {', '.join(Strategy)}", "strategy")
    echo = fields.flag("echo")
    return SessionParams(
        sampling,
        max_tokens,
        draft_n=None
        if fields.get("draft_n") in (None, "auto")
        else fields.integer("draft_n", 0, 0, MAX_DRAFTS),
        stop=stops_of(fields.get("stop")),
        logprobs=logprobs,
        grammar=check_grammar(grammar) if grammar is not None else None,
        cache_prompt=fields.flag("cache_prompt", True) and (logprobs is None or not echo),
        echo=echo,
    )


def wire_params(options: dict[str, object]) -> SessionParams:
    """The options of OPEN or OPENED; without a grammar where its kind is unknown here. Raises RequestError as
    `session_params` does."""
    fields = Fields(options)
    kind, text = fields.text("grammar_kind"), fields.text("grammar")
    thinking = fields.text("thinking")
    grammar = None
    if kind in set(GrammarKind):
        before = "" if kind == GrammarKind.TOOLS else thinking  # tools have it in their text
        grammar = Grammar(GrammarKind(kind), text, before)
    params = session_params(
        fields,
        fields.integer("seed", 0, 0, 2**32 - 1),
        fields.integer("max_tokens", LARGEST_MAX_TOKENS, 0, LARGEST_MAX_TOKENS),
        None
        if fields.get("logprobs") is None
        else fields.integer("logprobs", 0, 0, MAX_ALTERNATIVES),
        grammar,
        most_bias=-FORBIDDEN,
    )
    merged = tuple(role for role in MERGED_ROLES if role in fields.listed("merged"))
    return replace(params, thinking=fields.text("thinking"), merged=merged)


_TOO_MANY_BIASES = f"logit_bias can name {MAX_BIASES} tokens at most"


def biases_of(value: object, largest: float) -> tuple[tuple[int, float], ...]:
    """OpenAI's {"id": bias}, or llama-server's [[id, bias], ...]."""
    given: object = [] if value is None else value
    if (is_object(given) or is_list(given)) and len(given) > MAX_BIASES:
        raise RequestError(_TOO_MANY_BIASES, "logit_bias")
    pairs: object = [list(pair) for pair in given.items()] if is_object(given) else given
    if is_list(pairs):
        biases = [
            _bias(pair[0], pair[1], largest) if is_list(pair) and len(pair) == 2 else None
            for pair in pairs
        ]
        if None not in biases:
            return check_biases(tuple(one for one in biases if one is not None))
    raise RequestError(
        f"logit_bias must map token ids to numbers from {-largest:g} to {largest:g}", "logit_bias"
    )


def check_biases(biases: tuple[tuple[int, float], ...]) -> tuple[tuple[int, float], ...]:
    if len(biases) > MAX_BIASES:
        raise RequestError(_TOO_MANY_BIASES, "logit_bias")
    return biases


def _bias(token: object, bias: object, largest: float) -> tuple[int, float] | None:
    if (
        isinstance(token, str) and token.isdecimal() and len(token) < 10
    ):  # as keys of JSON's objects are
        token = int(token)
    if (
        not is_id(token)
        or isinstance(bias, bool)
        or not isinstance(bias, int | float)
        or not abs(bias) <= largest
    ):
        return None
    return token, float(bias)


def endless(params: SessionParams, end_ids: Collection[int]) -> SessionParams:
    """The same of a text that does not end by itself: as llama.cpp's ignore_eos, none of these ids is ever chosen. A
    bias does that, so the drafter learns of it, and whoever goes on with the text."""
    others = (bias for bias in params.sampling.logit_bias if bias[0] not in end_ids)
    biases = (*others, *((token, FORBIDDEN) for token in sorted(end_ids)))
    return replace(params, sampling=replace(params.sampling, logit_bias=check_biases(biases)))


_TOO_MUCH_TO_STOP_AT = (
    f"stop must be at most {MAX_STOPS} texts, of {MAX_LENGTH} characters each"
    f" and {MAX_TOGETHER} together"
)


def stops_of(value: object) -> tuple[str, ...]:
    given = [value] if isinstance(value, str) else value or []
    if is_list(given) and len(given) > MAX_STOPS:
        raise RequestError(_TOO_MUCH_TO_STOP_AT, "stop")
    stops = [stop for stop in given if isinstance(stop, str)] if is_list(given) else []
    if stops != given:
        raise RequestError("stop must be a text or a list of texts", "stop")
    longest, together = max(map(len, stops), default=0), sum(map(len, stops))
    if longest > MAX_LENGTH or together > MAX_TOGETHER:
        raise RequestError(_TOO_MUCH_TO_STOP_AT, "stop")
    if any("\ufffd" in stop for stop in stops):  # it stands for bytes that are no text
        raise RequestError("stop must not contain U+FFFD", "stop")
    try:
        "".join(stops).encode()
    except UnicodeEncodeError as error:
        raise RequestError(f"stop is not valid Unicode: {error.reason}", "stop") from None
    return tuple(stop for stop in stops if stop)


@dataclass(frozen=True, slots=True)
class TargetLimits:
    n_ctx: int
    n_vocab: int
    end_ids: frozenset[int]
    max_drafts: int = MAX_DRAFTS
    pieces: Sequence[bytes] = ()  # the bytes of each id
    width: int | None = None  # rows of every step, where constant


def check_request(
    params: SessionParams,
    ids: Sequence[int],
    n_prompt: int,
    limits: TargetLimits,
) -> None:
    """Raise RequestError for what the target cannot go on with, PromptTooLong where not one token
    would fit after the prompt: the first `n_prompt` of the ids, the others were generated before.
    Quick, whatever is given."""
    if not ids:
        raise RequestError("the prompt is empty: give at least one token")
    if not 0 < n_prompt <= len(ids) or len(ids) > max(limits.n_ctx, n_prompt):
        raise RequestError(
            f"{len(ids)} ids are no text that began with {n_prompt} and has {limits.n_ctx} at most"
        )
    if n_prompt >= limits.n_ctx:
        raise PromptTooLong.of(n_prompt, limits.n_ctx)
    if min(ids) < 0 or max(ids) >= limits.n_vocab:
        raise RequestError(f"a prompt id is outside the model's vocabulary of {limits.n_vocab}")
    foreign = [token for token, _ in params.sampling.logit_bias if token >= limits.n_vocab]
    if foreign:
        raise RequestError(
            f"logit_bias names token {foreign[0]}, and the model has {limits.n_vocab}", "logit_bias"
        )
    strategy = params.sampling.strategy
    if params.grammar is not None and strategy in (
        Strategy.PROBABILISTIC,
        Strategy.THRESHOLD,
    ):  # of unmasked rows
        raise RequestError(
            f"strategy {strategy} does not go with a grammar or schema: use deterministic",
            "strategy",
        )


def check_resumed(generated: Sequence[int], constraint: Constraint, limits: TargetLimits) -> None:
    """Raise RequestError where a text so far is not what its grammar allows. Takes its time: a step
    or so for each id."""
    said = [token for token in generated if token not in limits.end_ids]
    if constraint.count_allowed(said) < len(said):
        raise RequestError(
            "the text so far is not what its grammar allows: it cannot be gone on with", "resume"
        )
