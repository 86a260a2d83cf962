"""A chat on its way to a target's template, and what the template says of the answer: how it thinks and calls tools."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from specmesh.core import reasoning, tool_calls
from specmesh.core.fields import Json, at, is_list, is_object
from specmesh.core.requests import Request
from specmesh.core.sampling.constraint import Grammar, GrammarKind
from specmesh.core.session_params import ChatMessage, SessionParams
from specmesh.core.vocabulary.vocabulary import Vocabulary
from specmesh.errors import RequestError

TAIL = 16  # ids at the end of a prompt, in which it may begin a thought


class Tokenizer(Protocol):
    """A target model's texts as ids. Every member is safe from any thread."""

    @property
    def vocabulary(self) -> Vocabulary: ...

    @property
    def texts(self) -> Mapping[str, str]:
        """By llama-server's names: chat_template, where there is one, bos_token and eos_token; tool_format, by which
        it calls tools."""
        ...

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Return the ids of a prompt, with the model's special tokens at its ends unless they are not wanted."""
        ...

    def chat_text(
        self, messages: Sequence[ChatMessage], variables: Json, *, continued: bool = False
    ) -> str:
        """Return a chat up to the assistant's answer, or to the end of the last message if `continued`, to be encoded.
        variables: the template's, besides those that every template has. Raises RequestError where there is no template
        or it refuses the messages, EngineError where it fails."""
        ...


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """What a grammar of tools says that is needed outside the grammar. format: "" where no template has said it yet."""

    tools: list[dict[str, object]]
    format: str

    @classmethod
    def of(cls, grammar: Grammar | None) -> "ToolChoice | None":
        """None for another grammar, or none; RequestError where its text says something else."""
        if grammar is None or grammar.kind is not GrammarKind.TOOLS:
            return None
        said: object = json.loads(grammar.text)
        tools, name = at(said, "tools"), at(said, "format")
        if not is_list(tools) or not isinstance(name, str) or name not in ("", *tool_calls.FORMATS):
            raise RequestError("tools are not described as tools are", "tools")
        return cls([one for one in tools if is_object(one)], name)


def for_template(
    request: Request, texts: Mapping[str, str]
) -> tuple[Sequence[ChatMessage], dict[str, object]]:
    """Return the messages and the variables that the model's template is to render. Where that knows no tools, a
    message of the system's describes them. texts: see `Tokenizer`."""
    choice, variables = ToolChoice.of(request.params.grammar), dict(request.template)
    template, messages = texts.get("chat_template", ""), request.messages
    form = tool_calls.FORMATS[texts.get("tool_format", "generic")]
    if "tool_calls" not in template:
        messages = _joined(_in_turn(one, form) for one in messages)
    if choice is None:
        return messages, variables
    if re.search(r"\btools\b", template) is None or form is tool_calls.GENERIC:
        return _in_words(messages, tool_calls.generic_prompt(choice.tools, form)), variables
    return messages, variables | {
        "tools": [{"type": "function", "function": one} for one in choice.tools]
    }


def unknown_variables(request: Request, texts: Mapping[str, str]) -> Iterator[str]:
    """Yield the variables that the model's template does not name; none where it is not known."""
    if request.template and (template := texts.get("chat_template")):
        words = set(re.findall(r"\w+", template))
        yield from (name for name in request.template if name not in words)


def _in_turn(message: ChatMessage, form: tool_calls.ToolFormat) -> ChatMessage:
    """A message of a tool loop for a template that knows of none: calls are text, and what came of them the user's."""
    if message.role == "tool":
        return ChatMessage("user", f"<tool_response>\n{message.content}\n</tool_response>")
    calls = [
        f"{form.start}{one.name}{form.after}{one.arguments}{form.end}" for one in message.tool_calls
    ]
    return replace(
        message, content="\n".join(filter(None, (message.content, *calls))), tool_calls=()
    )


def _joined(messages: Iterable[ChatMessage]) -> tuple[ChatMessage, ...]:
    """The same with what tools answered in one message with the user's next words: many templates want turns."""
    turns = list[ChatMessage]()
    for one in messages:
        before = turns[-1] if turns else None
        if (
            before is not None
            and before.role == one.role == "user"
            and before.content.endswith("</tool_response>")
        ):
            turns[-1] = replace(before, content=f"{before.content}\n{one.content}")
        else:
            turns.append(one)
    return tuple(turns)


def _in_words(messages: Sequence[ChatMessage], words: str) -> Sequence[ChatMessage]:
    first, rest = messages[0], messages[1:]
    if first.role != "system":
        return (ChatMessage("system", words), *messages)
    return (replace(first, content=f"{first.content}\n\n{words}"), *rest)


def with_format(params: SessionParams, texts: Mapping[str, str], tail: str) -> SessionParams:
    """The parameters of a chat's answer, with how the model thinks and calls tools, unless they say so. tail: the
    prompt's last text, which may have begun a thought."""
    style, grammar = reasoning.detect(texts.get("chat_template", "")), params.grammar
    thinking = params.thinking or reasoning.thinking(style, tail)
    if grammar is not None and grammar.kind is GrammarKind.TOOLS:
        said = json.loads(grammar.text)
        said |= {
            "format": said["format"] or texts.get("tool_format", "generic"),
            "thinking": thinking,
        }
        grammar = Grammar(GrammarKind.TOOLS, json.dumps(said, ensure_ascii=False))
    elif grammar is not None:
        thinking = ""  # no other grammar lets a thought end
    return replace(params, thinking=thinking, grammar=grammar)


def prompt_of(request: Request, tokenizer: Tokenizer) -> tuple[tuple[int, ...], SessionParams]:
    """Return the ids to continue, by the target's tokenizer and chat template, and the parameters: a chat's say what
    its answer's form is. Safe from any thread. An empty text, where the target begins none with a token of its own, is
    what ends others, as at OpenAI's. Raises RequestError for text that cannot be encoded, and for a chat where the
    target has no template."""
    ids = request.prompt_ids
    if ids is not None:
        pieces = tokenizer.vocabulary.pieces
        text = b"".join(pieces[one] for one in ids[-TAIL:] if one < len(pieces)).decode(
            "utf-8", "replace"
        )
    else:
        text = request.prompt or ""
        if request.messages:
            messages, variables = for_template(request, tokenizer.texts)
            text = tokenizer.chat_text(messages, variables, continued=request.continued)
        ids = tuple(tokenizer.encode(text) or sorted(tokenizer.vocabulary.end_ids)[:1])
    return ids, with_format(
        request.params, tokenizer.texts, text
    ) if request.chat else request.params
