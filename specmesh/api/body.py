"""Bodies of /v1/completions and /v1/chat/completions -> requests, every field checked."""

import json
import re
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from urllib.parse import quote

from specmesh.core.fields import (
    Fields,
    Json,
    are_ids,
    at,
    check_few,
    check_short,
    is_list,
    is_object,
    list_at,
    object_at,
    objects_at,
)
from specmesh.core.requests import Request
from specmesh.core.sampling.constraint import (
    MAX_GRAMMAR,
    MAX_TOOLS,
    Grammar,
    GrammarKind,
    check_grammar,
    compact,
)
from specmesh.core.sampling.logprobs import MAX_ALTERNATIVES
from specmesh.core.sampling.sampler import MOST
from specmesh.core.session_params import (
    LARGEST_MAX_TOKENS,
    LEAST_FACTOR,
    ChatMessage,
    message_of,
    session_params,
)
from specmesh.errors import RequestError

VERIFIER_TIMEOUT, LONGEST_TIMEOUT = 30.0, 86_400.0
"""Seconds that a text waits for a verifier that went away, where nothing is said; and at most."""

MAX_CHOICES = 8
MAX_TEXTS = 128  # of one request: prompts times choices
_TOO_MANY_TEXTS = f"one request has {MAX_TEXTS} texts at most: send fewer prompts at once"
MAX_VARIABLES = 2**14  # values of a template's variables
MOST_TOOL_VALUES = 2**17  # values of all tools
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
    ignored: tuple[
        str, ...
    ]  # names of fields that nobody reads, and of tools that are no functions
    splits: bool  # thoughts are kept apart from the answer
    schema_field: str = ""  # where the body has a JSON schema for the text


def parse_body(value: object, *, chat: bool) -> Body:
    """Check the body of a chat or a completion. Raise RequestError that names the field. Defaults are OpenAI's
    (temperature 1, top_p 1) except for a completion's max_tokens, 128; a chat ends with the context. docs/http-api.md
    says whose each field is."""
    fields = Fields(value)
    requests, began = _requests(fields, chat=chat)
    body = Body(
        tuple(replace(one, known_size=one.size) for one in requests),
        began,
        model=fields.text("model"),
        choices=fields.integer("n", 1, 1, MAX_CHOICES),
        ignore_eos=fields.flag("ignore_eos"),
        resumable=fields.flag("resumable"),
        stream=fields.flag("stream"),
        tells_usage=Fields(fields.mapping("stream_options")).flag("include_usage"),
        splits=_splits(fields),
        schema_field=_schema_field(fields),
        ignored=(*_ignored(fields), *_skipped_tools(fields)),
    )
    texts, resumes = len(requests) * body.choices, bool(requests[0].id)
    if texts > MAX_TEXTS:
        raise RequestError(_TOO_MANY_TEXTS, "prompt")
    if texts > 1 and (body.resumable or resumes):
        field = "n" if body.choices > 1 else "prompt"
        raise RequestError(
            "only one text at a time can be gone on with: leave n out, and send one prompt", field
        )
    return body


def _requests(fields: Fields, *, chat: bool) -> tuple[tuple[Request, ...], str]:
    """Return what is asked for, and the model that began it where it is a resumed text."""
    logprobs, grammar = _logprobs(fields, chat=chat), _grammar(fields, chat=chat)
    _rename_repetition(fields)
    params = session_params(
        fields, _seed(fields), _max_tokens(fields, chat=chat), logprobs, grammar
    )
    patience = fields.number("reconnect_timeout", VERIFIER_TIMEOUT, 0.0, LONGEST_TIMEOUT)
    request = Request(None, None, params, fields.flag("rounds"), reconnect_timeout=patience)
    resume, said = fields.get("resume"), fields.get("messages" if chat else "prompt")
    if params.echo and (chat or resume is not None):
        raise RequestError(
            "only a completion's prompt can be echoed, not a chat or a resumed text", "echo"
        )
    if resume is not None:
        request, began = _resumed(resume, request)
        return (request,), began
    if chat:
        if not is_list(said) or not said:
            raise RequestError("messages must be a list with at least one message", "messages")
        messages = tuple(_message(item, f"messages[{index}]") for index, item in enumerate(said))
        continued, variables = _continues(fields, messages), fields.mapping("chat_template_kwargs")
        if not continued and not fields.flag("add_generation_prompt", True):
            variables["add_generation_prompt"] = False
        if effort := fields.text("reasoning_effort"):
            variables = {"reasoning_effort": effort} | variables
        check_few(variables, "chat_template_kwargs", MAX_VARIABLES)
        return (replace(request, messages=messages, continued=continued, template=variables),), ""
    if is_list(said) and said and all(isinstance(one, str | list) for one in said):
        if len(said) > MAX_TEXTS:
            raise RequestError(_TOO_MANY_TEXTS, "prompt")
        return tuple(_prompted(one, request) for one in said), ""
    return (_prompted(said, request),), ""


def _rename_repetition(fields: Fields) -> None:
    """Make vLLM's `repetition_penalty` a `repeat_penalty`. The formula is the same, and it covers
    the whole text with its prompt unless `repeat_last_n` is given. Of both one may be 1, which is
    no penalty; raise RequestError where they are two."""
    asked = fields.number("repetition_penalty", 1.0, LEAST_FACTOR, MOST)
    if asked == 1:
        return
    if fields.given.get("repeat_penalty", asked) not in (1, asked):
        why = "repetition_penalty and repeat_penalty differ: give one of them"
        raise RequestError(why, "repetition_penalty")
    fields.given["repeat_penalty"] = asked
    fields.given.setdefault("repeat_last_n", -1)


def _prompted(value: object, request: Request) -> Request:
    """The request after a prompt, which is a text or ids."""
    if isinstance(value, str):
        return replace(request, prompt=value)
    if value and are_ids(value):
        return replace(request, prompt_ids=tuple(value))
    why = "prompt must be a string or a list of token ids, each from 0 to 2147483647, or a list of such"
    raise RequestError(why, "prompt")


def _resumed(value: object, request: Request) -> tuple[Request, str]:
    """What goes on with a text, and its model: its `id`, and where known its prompt's ids and those it has so far."""
    if not is_object(value) or value.keys() - {"id", "model", "prompt_token_ids", "token_ids"}:
        why = "resume must be an object with id, model, prompt_token_ids, token_ids, or id alone"
        raise RequestError(why, "resume")
    name, model = value.get("id"), value.get("model", "")
    if not isinstance(model, str):
        raise RequestError("resume.model must be a text", "resume")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise RequestError(
            "resume.id must be the id of an answer, cmpl- or chatcmpl- and 32 digits", "resume"
        )
    if "prompt_token_ids" not in value:
        return replace(request, id=name, named_only=True), model
    prompt, said = value["prompt_token_ids"], value.get("token_ids", [])
    if not prompt or not are_ids(prompt) or not are_ids(said):
        why = "resume.prompt_token_ids and token_ids must be lists of token ids, each from 0 to 2147483647"
        raise RequestError(f"{why}, the first not empty", "resume")
    return replace(
        request, id=name, prompt_ids=tuple(prompt), generated=tuple(said), known=len(said)
    ), model


def _splits(fields: Fields) -> bool:
    form = fields.text("reasoning_format", "auto")
    if form not in ("auto", "none", "deepseek"):  # deepseek: llama-server's name for what auto does
        raise RequestError("reasoning_format must be auto or none", "reasoning_format")
    return form != "none"


def _max_tokens(fields: Fields, *, chat: bool) -> int:
    most = fields.integer("max_tokens", LARGEST_MAX_TOKENS if chat else 128, -1, LARGEST_MAX_TOKENS)
    if chat:
        most = fields.integer("max_completion_tokens", most, -1, LARGEST_MAX_TOKENS)
    return LARGEST_MAX_TOKENS if most < 0 else most


def _seed(fields: Fields) -> int:
    """A seed of 32 bits, which the wire carries: the lowest of a longer one; -1 is a random one."""
    seed = fields.integer("seed", -1, -(2**63), 2**64 - 1)
    return secrets.randbits(32) if seed == -1 else seed % 2**32


def _logprobs(fields: Fields, *, chat: bool) -> int | None:
    """How many of the likeliest tokens are shown with each one, None where no log-probability is."""
    if not chat:
        return (
            None
            if fields.get("logprobs", False) is False
            else fields.integer("logprobs", 0, 0, MAX_ALTERNATIVES)
        )
    wanted, top = fields.flag("logprobs"), fields.integer("top_logprobs", 0, 0, MAX_ALTERNATIVES)
    if top and not wanted:
        raise RequestError("top_logprobs needs logprobs: set it to true", "top_logprobs")
    return top if wanted else None


_CONTENT = ("audio", "images")
"""Fields of a message that say something, which would be lost; what else it has besides a text is left out."""


def _continues(fields: Fields, messages: tuple[ChatMessage, ...]) -> bool:
    """Whether the last message is to be continued, which only an assistant's can."""
    if fields.flag("add_generation_prompt") and fields.flag("continue_final_message"):
        why = "add_generation_prompt begins an answer, continue_final_message goes on with one: choose"
        raise RequestError(why, "continue_final_message")
    own = messages[-1].role == "assistant" and not messages[-1].tool_calls
    continued = fields.flag("continue_final_message", own)
    if continued and not own:
        raise RequestError("only an assistant's message at the end can be continued", "messages")
    wanted = own and not fields.flag("add_generation_prompt", not continued)
    if wanted and "assistant" in [message.role for message in messages[-2:-1]]:
        raise RequestError(
            "two assistant messages at the end cannot be continued: join them", "messages"
        )
    return wanted


def _message(value: object, where: str) -> ChatMessage:
    if not is_object(value) or not isinstance(value.get("role"), str):
        raise RequestError(f"{where} must be an object with a role", where)
    role, content = value["role"], value.get("content")
    for key in _CONTENT:
        if value.get(key) not in (None, [], ""):
            raise RequestError(f"{where}.{key} is not supported yet", where)
    if content is None and role in ("assistant", "tool", "function"):
        content = ""
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if not is_list(parts):
        raise RequestError(f"{where}.content must be a text, or a list of text parts", where)
    texts, thoughts = list[str](), list[str]()
    for index, part in enumerate(parts):
        thought = _thought_in(part) if role == "assistant" else None
        if thought is None:
            texts.append(text_of_part(part, f"{where}.content[{index}]"))
        else:
            thoughts.append(thought)
    refusal = value.get("refusal")
    if isinstance(refusal, str):
        texts.append(refusal)
    message = {**_with_tool_calls(value), "content": "".join(texts)}
    if isinstance(value.get("reasoning"), str) and not value.get("reasoning_content"):
        message["reasoning_content"] = value["reasoning"]
    if thoughts and not message.get("reasoning_content"):
        message["reasoning_content"] = "".join(thoughts)
    return message_of(message, where)


def _thought_in(part: object) -> str | None:
    """Return the thought that a content part is, as Mistral, Anthropic and the AI SDK write it;
    None for any other part."""
    match part:
        case {"type": "thinking", "thinking": str(thought)}:
            return thought
        case {"type": "thinking"} if is_list(parts := at(part, "thinking")):
            texts = [at(one, "text") for one in parts]
            return "".join(text for text in texts if isinstance(text, str))
        case {"type": "reasoning", "text": str(thought)}:
            return thought
        case {"type": "reasoning", "reasoning": str(thought)}:
            return thought
        case _:
            return None


def _with_tool_calls(message: Json) -> Json:
    """Return a message with the call of a function, or what came of it, as OpenAI has them now, and
    with calls of custom tools as those of functions."""
    called = object_at(message, "function_call")
    if objects_at(message, "tool_calls"):
        return message | {
            "tool_calls": [_as_function(one) for one in list_at(message, "tool_calls")]
        }
    if called and not message.get("tool_calls"):
        return message | {"tool_calls": [{"id": "", "type": "function", "function": called}]}
    return message | {"role": "tool"} if message["role"] == "function" else message


def _as_function(call: object) -> object:
    """Return the call of a custom tool, whose input is a text, as that of a function with one
    argument; any other call as it is."""
    match call:
        case {"custom": {"name": str(name), "input": str(given)}}:
            function = {"name": name, "arguments": compact({"input": given})}
            return {"id": at(call, "id"), "type": "function", "function": function}
        case _:
            return call


_MEDIA = re.compile("image|audio|video|file")
_TEXT_FIELDS = {
    **dict.fromkeys(("text", "input_text", "output_text"), "text"),
    **dict.fromkeys(("reasoning_text", "summary_text"), "text"),
    "refusal": "refusal",
}
"""The field of a content part with its text, by the part's type, in chats and responses."""


def text_of_part(part: object, where: str) -> str:
    """Return the text of a content part. Raises RequestError for any other part."""
    given = part if is_object(part) else Json()
    kind = given.get("type", "text")
    text = given.get(_TEXT_FIELDS.get(kind, "")) if isinstance(kind, str) else None
    media = any(_MEDIA.search(name) for name, value in given.items() if value is not None)
    if isinstance(text, str) and not media:
        return text
    raise RequestError(
        f"{where} must be a text part: images, audio and files are not supported", where
    )


# --- grammars and tools


def _grammar(fields: Fields, *, chat: bool) -> Grammar | None:
    """The grammar that a body asks for, if any, by OpenAI's `response_format`, with whose json_object llama-server
    takes a `schema` as well, or by llama-server's `json_schema` or `grammar`; or that of a chat's tools."""
    schema, gbnf = fields.get("json_schema"), fields.text("grammar")
    own = None if schema is None else _schema(schema, "json_schema")
    formed = _format(fields.get("response_format"))
    given = [one for one in (formed, own, Grammar(GrammarKind.GBNF, gbnf) if gbnf else None) if one]
    if len(given) > 1:
        raise RequestError("give one of response_format, json_schema and grammar", given[1].field)
    form = given[0] if given else None
    tools = _tools(fields) if chat else None
    if tools is None:
        return form
    if form is not None and form.kind is GrammarKind.GBNF:
        why = "give tools or grammar, not both: with a grammar tool_choice must be none"
        raise RequestError(why, "grammar")
    if form is not None and tools["choice"] == "auto":
        tools["schema"] = json.loads(check_grammar(form).text)
    return _described(tools)


def _schema_field(fields: Fields) -> str:
    """Return the name of the field that has the schema, in a body that was checked."""
    match fields.get("response_format"):
        case {"type": "json_schema"}:
            return _IN_JSON_SCHEMA
        case {"type": "json_object"}:
            return _IN_JSON_OBJECT
        case _:
            return "json_schema" if fields.get("json_schema") is not None else ""


_IN_JSON_SCHEMA = "response_format.json_schema.schema"
_IN_JSON_OBJECT = "response_format.schema"


def _described(tools: Json) -> Grammar:
    """Return the grammar of a description of tools."""
    text = compact(tools)
    most = MAX_TOOLS - 64  # the verifier says in it how they are called
    if len(text.encode()) > most:
        raise RequestError(f"tools are longer than {most} bytes", "tools")
    return Grammar(GrammarKind.TOOLS, text)


def _format(value: object) -> Grammar | None:
    match value:
        case None | {"type": "text"}:
            return None
        case {"type": "json_object"} if is_object(value):
            return _schema(value.get("schema", {"type": "object"}), _IN_JSON_OBJECT)
        case {"type": "json_schema", "json_schema": {"schema": object() as schema}}:
            return _schema(schema, _IN_JSON_SCHEMA)
        case _:
            why = "must be text, json_object, or json_schema with an object json_schema that has a schema"
            raise RequestError(f"response_format.type {why}", "response_format")


def _schema(value: object, where: str) -> Grammar:
    if not is_object(value):
        raise RequestError(f"{where} must be a JSON object", where.partition(".")[0])
    field = where.partition(".")[0]
    check_short(value, field, MAX_GRAMMAR)
    try:
        return Grammar(GrammarKind.JSON_SCHEMA, json.dumps(value))
    except RecursionError:
        raise RequestError(f"{where} is nested too deeply", field) from None


_NOTHING: Json = {"type": "object", "properties": {}, "additionalProperties": False}


def _tools(fields: Fields) -> Json | None:
    """Return a description of the functions that a chat's body gives, as `Grammar` has it; None
    without any, or where none may be called. `engines.grammar_source` checks the rest of them, as
    peers send them too."""
    functions, strict = list[Json](), list[object]()
    for index, tool in enumerate(fields.listed("tools")):
        if _kind_of(tool) == "function":
            functions.append(_tool(tool, f"tools[{index}]"))
            strict += [functions[-1]["name"]] * (at(tool, "function.strict") is True)
    choice, allowed = _allowed(fields.get("tool_choice", "auto"))
    if allowed is not None:
        functions = [one for one in functions if one["name"] in allowed]
    names = [one["name"] for one in functions]
    chosen = _choice(choice, names, _other_kinds(fields))
    parallel = fields.flag("parallel_tool_calls", True)
    if chosen == "none" or not functions:
        return None
    check_few(functions, "tools", MOST_TOOL_VALUES)
    described: Json = {"tools": functions, "choice": chosen, "parallel": parallel}
    described |= {"format": "", "thinking": ""}
    known = set(names)
    strict = [name for name in strict if name in known]
    return described | ({"strict": strict} if strict else {})


def _kind_of(tool: object) -> object:
    """Return a tool's type, which is a function's where none is given."""
    given = tool if is_object(tool) else Json()
    return given.get("type") or "function"


def _other_kinds(fields: Fields) -> list[str]:
    """Return the types of the tools that are no functions, such as web_search: nobody here can run them."""
    kinds = [_kind_of(tool) for tool in fields.listed("tools")]
    return [str(kind) for kind in kinds if kind != "function"]


def _skipped_tools(fields: Fields) -> Iterator[str]:
    """Yield the names that the header has for tools that are no functions, and for the choice of one."""
    kinds = _other_kinds(fields)
    yield from dict.fromkeys(f"tools.{kind}" for kind in kinds)
    if at(fields.get("tool_choice"), "type") in kinds:
        yield "tool_choice"


def _allowed(choice: object) -> tuple[object, set[str] | None]:
    """Return the mode of a choice of OpenAI's type allowed_tools, and the names of its functions; any other choice as
    it is, and None. A chat has both in an object of their own, /v1/responses beside the type."""
    if at(choice, "type") != "allowed_tools":
        return choice, None
    own = object_at(choice, "allowed_tools") or choice
    names = [_name_of(tool) for tool in objects_at(own, "tools")]
    return at(own, "mode"), {name for name in names if isinstance(name, str)}


def _name_of(tool: object) -> object:
    """Return the name of a function in a choice, as a chat or /v1/responses writes it."""
    return at(tool, "function.name") or at(tool, "name")


def _choice(choice: object, names: list[object], others: list[str]) -> object:
    """Return none, auto, required, or an object with the name of a function. A tool that is no function cannot be
    called, so to choose one, or any one of them, leaves the answer free. Raises RequestError."""
    match choice:
        case "none" | "auto":
            return choice
        case "required" | "any" if names:
            return "required"
        case "required" | "any" if others:
            return "auto"
        case {"type": "function"} if (name := _name_of(choice)) in names:
            return {"name": name}
        case {"type": str(kind)} if kind in others:
            return "auto"
        case _:
            why = "must be none, auto, required, allowed_tools, or a function of tools"
            raise RequestError(f"tool_choice {why}", "tool_choice")


def _tool(value: object, where: str) -> Json:
    function = object_at(value, "function")
    name, schema = function.get("name"), function.get("parameters") or _NOTHING
    if not isinstance(name, str):
        raise RequestError(f"{where} must have a function that has a name", "tools")
    if not is_object(schema):
        raise RequestError(f"{where}.function.parameters must be a JSON schema", "tools")
    return {
        "name": name,
        "description": str(function.get("description") or ""),
        "parameters": schema,
    }


# --- fields that nobody has read

_UNSUPPORTED = (
    "audio documents functions prediction suffix top_logprobs web_search_options "
    "chat_template include_stop_str_in_output truncate_prompt_tokens "
    "dry_multiplier dynatemp_range lora min_keep mirostat smoothing_factor top_a xtc_probability "
    "allowed_token_ids bad_words logits_processors max_new_tokens min_tokens stop_token_ids "
    "ebnf guided_choice guided_grammar guided_json guided_regex regex structured_outputs "
    "no_repeat_ngram_size use_beam_search"
)
_NEUTRAL: dict[str, tuple[object, ...]] = {
    _UNSUPPORTED: (False, 0, "", [], {}),
    "best_of length_penalty num_beams typ_p typical_p": (1,),
    "adaptive_target n_predict": (-1,),
    "t_max_predict_ms top_n_sigma": (-1, 0),
    "do_sample skip_special_tokens": (True,),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "samplers": (),
}
_CHANGING = {name: values for names, values in _NEUTRAL.items() for name in names.split()}
"""Fields of OpenAI, llama-server, vLLM and others that would change the text, or what an answer is, with the values
besides null that change nothing."""

_LONGEST_HEADER = 300  # letters that a header has of the names of ignored fields
_LONGEST_NAME = 64  # and characters of one, before they are quoted


def _ignored(fields: Fields) -> tuple[str, ...]:
    """Return the names of fields that nobody has read and that change nothing. Raise RequestError for one that would
    change something."""
    unread = fields.unread()
    for name in unread:
        if name in _CHANGING and fields.given[name] not in _CHANGING[name]:
            raise RequestError(f"{name} is not supported yet", name)
    return tuple(name for name in unread if name not in _CHANGING)


def as_header(names: Iterable[str]) -> str:
    """Return a header's value that lists names, each quoted as in a URL, with dots for what it has
    no room for. The names are the client's: HTTP allows the value whatever they are, and the work
    is bounded."""
    shown, room = list[str](), _LONGEST_HEADER
    for name in names:
        quoted = quote(name[:_LONGEST_NAME], "[]") or '""'
        room -= len(quoted) + 2
        if room < 0:
            shown.append("...")
            break
        shown.append(quoted)
    return ", ".join(shown)
