"""GBNF as the lexer and parser of llguidance take it: the same language."""

import pytest
from llguidance import LLMatcher, LLTokenizer

from specmesh.engines.grammar_source import answer, gbnf_to_lark
from specmesh.errors import RequestError

examples = pytest.importorskip("llama_cpp.llama_grammar")
BYTES = LLTokenizer("byte")

MUNCH = r'''root ::= [a-z]+ "b"'''
MUNCH2 = """root ::= word tail
word ::= [a-z]+
tail ::= "b" tail2 | "c"
tail2 ::= "(" root ")"
"""
ANY = '''root ::= "a" . "b"'''
DEEP = 'root ::= "(" root ")" | ""'
DASH = """root ::= my-rule "\\u0041"
my-rule ::= "x" | "y" my-rule
"""

BLANK = """
root ::= (   # a comment with "::=" in it
    "a"
  | "b" # another
) |
  rest?
rest ::= "c"{2} "d"{0,1} "e"{1,}
"""
ESCAPES = r"""root ::= "\x41\u00e9\U0001F600\"\\[\]" [\]\-x] [^a-c\n] [a-]"""
LEFT = 'root ::= root "a" | "b"'
SPLIT = 'root ::= "ab" root "cd" | "abc" "e" | ""'

CASES = {
    "json": (
        examples.JSON_GBNF,
        ["{}", '{"a":1}', '{ "a": [1, 2.5e-3, null, true], "b\\n\\u00e9": {"c": ""}} ', '{"x":"é"}\n  '],
        ["[1]", '{"a":01}', "{a:1}", '{"a":1,}', " {}"],
    ),
    "arithmetic": (examples.ARITHMETIC_GBNF, ["a=b\n", "(a +12)*c_1 = 3\n", "1+2=3\nx= y\n"], ["a", "a=b", "A=b\n"]),
    "list": (examples.LIST_GBNF, ["- one\n", "- one\n- tŵo x\n"], ["-x\n", "- \n"]),
    "other letters": ("root ::= ([ぁ-ゟ] | [一-鿿])+", ["こんにちは世界"], ["hello", "ア"]),
    "a run and one more": (MUNCH, ["ab", "abb", "bb", "bbab"], ["b", "aba"]),
    "a run before another rule": (MUNCH2, ["ac", "bbb(xc)", "abcb(cc)"], ["a"]),
    "any character": (ANY, ["axb", "a\nb", "aéb", "a😀b"], ["ab", "axxb"]),
    "nothing inside": (DEEP, ["", "(())"], ["(()"]),
    "names": (DASH, ["xA", "yyxA"], ["A", "yA"]),
    "blanks": (BLANK, ["a", "b", "", "cce", "ccdeee"], ["c", "ce", "ccdd"]),
    "escapes": (ESCAPES, ['Aé😀"\\[]]da', 'Aé😀"\\[]-é-', 'Aé😀"\\[]xx-'], ['Aé😀"\\[]xa-', 'Aé😀"\\[]xxb']),
    "left recursion": (LEFT, ["b", "baaa"], ["a", ""]),
    "a rule that nobody uses": ('root ::= "a"\nother ::= "b" other | "c"', ["a"], ["b", "c"]),
    "literals that begin alike": (SPLIT, ["abcd", "abce", "ababcecd", ""], ["abc", "abcecd"]),
}


def accepts(grammar: str, text: str) -> bool:
    matcher = LLMatcher(BYTES, str(answer({"kind": "gbnf", "text": grammar})["lark"]), log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    ids = list(text.encode())
    return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()


@pytest.mark.parametrize("name", CASES)
def test_the_language_is_the_same(name: str):
    grammar, good, bad = CASES[name]
    assert [text for text in good if not accepts(grammar, text)] == []
    assert [text for text in bad if accepts(grammar, text)] == []


@pytest.mark.parametrize(
    ("grammar", "why"),
    [
        ('top ::= "a"', "no rule named root"),
        ("root ::= \n  other", "line 2: there is no rule named other"),
        ('root ::= "a"\n\nroot "b"', "line 3: expected .*::="),
        ('"a"\nroot ::= "b"', "line 1: expected .*::="),
        ('root ::= "a', "line 1: unexpected end"),
        ('root ::= "a" |\n\n # of b\n b ::= "c"', "line 4: unexpected '::='"),
        ('root ::=\n  b ::= "c"', "line 2: unexpected '::='"),
        ('root ::= b b ::= "x"', "line 1: unexpected '::='"),
        ('root ::= ("a" | "b"', r"line 1: expected \)"),
        ('root ::= "a" )', "line 1: unexpected"),
        (r'root ::= "\q"', "unknown escape"),
        ('root ::= "a"\nunused ::= "\\q"', "line 2: unknown escape"),
        (r'root ::= "\x4"', "unknown escape"),
        ("root ::= []", "a class without characters"),
        ("root ::= [z-a]", "from z to a"),
        ('root ::= "a" | +', "follows nothing"),
        ('root ::= "a"{x}', "unexpected '{'"),
        ("root ::= <think> [a-z]", "line 1: unexpected '<'"),
        ("root ::= " + "(" * 5000, "nested too deeply"),
    ],
)
def test_what_is_none_is_refused_with_its_line(grammar: str, why: str):
    with pytest.raises(RequestError, match=why):
        gbnf_to_lark(grammar)


def test_a_rule_that_nobody_uses_changes_nothing():
    """A recursive one would put a grammar that is one lexeme on the parser, which takes far longer."""
    line = 'root ::= line+\nline ::= [a-z ]+ [.]? [a-z ]* "\\n"?\n'
    assert gbnf_to_lark(line + 'unused ::= "(" unused ")" | "x"') == gbnf_to_lark(line)
