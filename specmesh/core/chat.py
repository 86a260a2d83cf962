"""A chat on its way to a target's template, and what the template says of the answer: how it thinks and calls tools."""

import json
from collections.abc import Sequence
from dataclasses import replace

from specmesh.core import reasoning, tool_calls
from specmesh.core.requests import Request
from specmesh.core.sampling.constraint import Grammar, GrammarKind
from specmesh.core.session_params import ChatMessage, SessionParams


def tools_of(grammar: Grammar | None) -> dict[str, object] | None:
    """What the text of a grammar of tools says; None for another grammar, or none."""
    if grammar is None or grammar.kind is not GrammarKind.TOOLS:
        return None
    told: dict[str, object] = json.loads(grammar.text)
    return told


def for_template(request: Request, template: str) -> tuple[Sequence[ChatMessage], dict[str, object]]:
    """Return the messages and the variables that this template is to render. One that knows no tools is told of them in
    words, by a message of the system's."""
    told, variables = tools_of(request.params.grammar), dict(request.template)
    if told is None:
        return request.messages, variables
    if tool_calls.detect(template).name == "generic":
        return _told(request.messages, tool_calls.generic_prompt(told["tools"])), variables
    return request.messages, variables | {"tools": [{"type": "function", "function": one} for one in told["tools"]]}


def _told(messages: Sequence[ChatMessage], words: str) -> Sequence[ChatMessage]:
    first, rest = messages[0], messages[1:]
    if first.role != "system":
        return (ChatMessage("system", words), *messages)
    return (replace(first, content=f"{first.content}\n\n{words}"), *rest)


def with_format(params: SessionParams, template: str, tail: str) -> SessionParams:
    """The parameters of a chat's answer, with how this template thinks and calls tools. tail: the prompt's last text,
    which may have begun a thought."""
    thinking = reasoning.detect(template, tail)
    told = tools_of(params.grammar)
    if told is None:
        return replace(params, thinking=thinking)
    told |= {"format": tool_calls.detect(template).name, "thinking": thinking}
    grammar = Grammar(GrammarKind.TOOLS, json.dumps(told, ensure_ascii=False))
    return replace(params, thinking=thinking, grammar=grammar)
