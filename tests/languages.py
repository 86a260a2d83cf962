"""Languages of grammars as the engines compile them, matched byte by byte."""

from llguidance import LLMatcher, LLTokenizer

from specmesh.engines.grammar_source import answer

BYTES = LLTokenizer("byte")


def language(kind, text, thinking=""):
    """Return the matcher of a grammar, or None if it is refused."""
    answered = answer({"kind": kind, "text": text, "thinking": thinking})
    if "lark" not in answered:
        return None
    return LLMatcher(BYTES, str(answered["lark"]), log_level=0)


def takes(matcher, text):
    matcher.reset()
    data = list(text.encode())
    return matcher.try_consume_tokens(data) == len(data) and matcher.is_accepting()
