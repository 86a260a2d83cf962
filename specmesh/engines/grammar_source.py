"""Clients' grammars in llguidance's language: GBNF, JSON schemas, calls of tools; tried in a child process."""

import json

from specmesh.core.fields import Json
from specmesh.core.sampling.constraint import GrammarKind
from specmesh.engines.gbnf import gbnf_to_lark
from specmesh.engines.json_schema import SchemaFault
from specmesh.engines.schema_faults import describe, matcher_of, strict
from specmesh.engines.thought_rules import TEXT, answer_rule, start_rules
from specmesh.engines.tool_grammar import tool_grammar
from specmesh.errors import RequestError

_UNFORCED = '%llguidance {"no_forcing": true}\n'
"""Any spelling of an allowed text may be chosen, not only the library's."""


def answer(request: Json) -> Json:
    """In the child: return a request's grammar in llguidance's language as `lark`, with what of its
    tools is `ignored`, by their names; or the reason as `refused`, perhaps with another `field`."""
    text, thinking = str(request["text"]), str(request.get("thinking", ""))
    ignored: dict[str, list[str]] = {}
    try:
        match GrammarKind(str(request["kind"])):
            case GrammarKind.GBNF:
                lark = _of_gbnf(text, thinking)
            case GrammarKind.JSON_SCHEMA:
                lark = _of_schema(json.loads(text), thinking)
            case GrammarKind.TOOLS:
                lark, ignored = tool_grammar(json.loads(text))
    except RequestError as error:
        refused: Json = {"refused": str(error)}
        return refused | ({"field": error.param} if error.param else {})
    lark = _UNFORCED + lark
    matcher = matcher_of(lark)
    if matcher.is_error():
        return {"refused": describe(matcher.get_error())}
    return {"lark": lark, "ignored": ignored}


def _of_gbnf(text: str, thinking: str) -> str:
    """Return the rules of a text, or of what follows its thought. Raise RequestError."""
    if not thinking:
        return gbnf_to_lark(text)
    content = gbnf_to_lark(text, "content")
    by_letters = content.startswith("content: r")  # a rule of the parser's, not a lexeme
    return _after_thought(thinking, content, by_letters=by_letters)


def _of_schema(schema: object, thinking: str) -> str:
    try:
        rule = strict(schema)
    except SchemaFault as fault:
        raise RequestError(str(fault)) from None
    return _after_thought(thinking, f"content: {rule}")


def _after_thought(thinking: str, content: str, *, by_letters: bool = False) -> str:
    try:
        start = start_rules(thinking, by_letters=by_letters)
    except KeyError:
        raise RequestError(f"no marks of thoughts are called {thinking[:80]!r}") from None
    rules = [*start, "body: answer", answer_rule(thinking), content, TEXT]
    return "\n".join(rules)
