"""Clients' grammars in llguidance's language: GBNF, JSON schemas, calls of tools.

They are compiled in a child process.
"""

import json

from specmesh.core.fields import Json
from specmesh.core.sampling.constraint import GrammarKind
from specmesh.engines.gbnf import gbnf_to_lark
from specmesh.engines.schema_faults import describe, matcher_of, strict
from specmesh.engines.schema_keywords import SchemaFault
from specmesh.engines.thought_rules import TEXT, answer_rule, start_rules
from specmesh.engines.tool_grammar import tool_grammar
from specmesh.errors import RequestError

_UNFORCED = '%llguidance {"no_forcing": true}\n'
"""Any spelling of an allowed text may be chosen, not only the library's."""


def answer(request: Json) -> Json:
    """Return a request's grammar in llguidance's language as `lark`; runs in the child.

    `ignored` has the parts of schemas that it does not keep to, by the tools' names. An unusable
    grammar has a reason as `refused`, perhaps with another `field`.
    """
    text = str(request["text"])
    thinking = str(request.get("thinking", ""))
    try:
        match GrammarKind(str(request["kind"])):
            case GrammarKind.GBNF:
                return _checked(_of_gbnf(text, thinking))
            case GrammarKind.JSON_SCHEMA:
                return _checked(_of_schema(json.loads(text), thinking))
            case GrammarKind.TOOLS:
                loose = request.get("loose") is True
                lark, ignored = tool_grammar(json.loads(text), loose=loose)
                return {"lark": _UNFORCED + lark, "ignored": ignored}
    except RequestError as error:
        refused: Json = {"refused": str(error)}
        if error.param:
            refused["field"] = error.param
        return refused


def _checked(rules: str) -> Json:
    lark = _UNFORCED + rules
    matcher = matcher_of(lark)
    if matcher.is_error():
        return {"refused": describe(matcher.get_error())}
    return {"lark": lark}


def _of_gbnf(text: str, thinking: str) -> str:
    """Return the rules of a text, or of the part after its thought. Raises RequestError."""
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
    around = answer_rule(thinking, by_letters=by_letters)
    return "\n".join([*start, "body: answer", around, content, TEXT])
