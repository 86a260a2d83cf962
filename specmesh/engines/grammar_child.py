"""The process that looks at grammars first, for `grammar`: `python -m specmesh.engines.grammar_child`.

Anybody may send one. What takes too much time, memory or stack to compile ends this process, and nothing else.
"""

import json
import re

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from specmesh.core.sampling.constraint import GrammarKind
from specmesh.engines.gbnf import gbnf_to_lark
from specmesh.engines.sandbox import Json, serve
from specmesh.errors import RequestError

LIMITS = LLParserLimits(max_lexer_states=50_000, max_grammar_size=200_000)
"""What a grammar may take: a state is 0.35 to 0.85 kilobytes. The library's own bounds hold besides."""

ON_ONE_LINE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""JSON as `json.dumps` writes it: a model cannot lose itself in blanks, and more of the text is settled by the schema.
A schema's own `x-guidance` goes before it."""

_NAMED_SCHEMAS = frozenset({"properties", "patternProperties", "$defs", "definitions"})
_LISTS_OF_SCHEMAS = frozenset({"prefixItems", "anyOf", "oneOf"})
_SCHEMAS = frozenset({"items", "additionalProperties"})
_OPENING = frozenset({"additionalProperties", "patternProperties", "unevaluatedProperties", "anyOf", "oneOf", "$ref"})
"""What says something of other properties."""

_TOO_LARGE = f"it is too large: it takes more than {LIMITS.initial_lexer_fuel} steps to compile"
_IN_OTHER_WORDS = {
    "NoExtension": "no text fits it: a rule that begins with itself needs another way to begin (left recursion)",
    "initial lexer configuration": _TOO_LARGE,
    "relevance of lexemes": _TOO_LARGE,
    "grammar size": f"it is too large: it has more than {LIMITS.max_grammar_size} symbols",
    "items": "it is too ambiguous: there are too many ways to read the same text",
}

_UNFORCED = '%llguidance {"no_forcing": true}\n'
"""Each id that spells a text that is allowed can be chosen, not only those that the library would spell it with."""


def answer(request: Json) -> Json:
    """A request's grammar in the library's own language as `lark`, or `refused`, why it cannot be."""
    text = str(request["text"])
    try:
        lark = _UNFORCED + (_of_schema(text) if request["kind"] == GrammarKind.JSON_SCHEMA else gbnf_to_lark(text))
    except RequestError as error:
        return {"refused": str(error)}
    matcher = LLMatcher(LLTokenizer("byte"), lark, log_level=0, limits=LIMITS)
    if not matcher.is_error():
        matcher.compute_bitmask()
    return {"refused": told(matcher.get_error())} if matcher.is_error() else {"lark": lark}


def told(error: str) -> str:
    """What the library says is wrong, without where: that is in its own language."""
    first, _, rest = re.sub(r"^at [0-9()]+: (failed to compile JSON schema: )?", "", error).partition("\n")
    if (cause := re.search(r"^error: (.+)", rest, re.MULTILINE)) is not None:
        return f"{first[:200]} {cause[1]}: {rest.partition(chr(10))[0].strip()[:100]}"
    return next((words for known, words in _IN_OTHER_WORDS.items() if known in first), first[:300])


def _of_schema(text: str) -> str:
    schema = json.loads(text)
    own = schema.get("x-guidance")
    options = ON_ONE_LINE | (own if isinstance(own, dict) else {})
    closed = schema if '"allOf"' in text else _closed(schema)
    return f"start: %json {json.dumps(closed | {'x-guidance': options})}"


def _closed(schema: Json) -> Json:
    """The schema with only those properties in an object that it names, where it says nothing of others; llama.cpp has
    it so. A model asked for two properties would else invent more. Not where other schemas hold for the same object.
    """
    closed: Json = dict(schema)
    for name, inner in schema.items():
        if name in _NAMED_SCHEMAS and isinstance(inner, dict):
            closed[name] = {key: _closed(one) if isinstance(one, dict) else one for key, one in inner.items()}
        elif name in _LISTS_OF_SCHEMAS and isinstance(inner, list):
            closed[name] = [_closed(one) if isinstance(one, dict) else one for one in inner]
        elif name in _SCHEMAS and isinstance(inner, dict):
            closed[name] = _closed(inner)
    if "properties" in schema and _OPENING.isdisjoint(schema):
        closed["additionalProperties"] = False
    return closed


if __name__ == "__main__":
    serve(answer)
