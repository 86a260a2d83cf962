"""Grammars compiled for a vocabulary: masks, forced ids, fitting and refused texts; GBNF."""

import json
import random
from contextlib import closing

import numpy as np
import pytest
from harness.tables import cases
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer

from specmesh.core.sampling.constraint import Grammar, GrammarKind
from specmesh.core.vocabulary.vocabulary import Vocabulary
from specmesh.engines import grammar
from specmesh.engines.gbnf import gbnf_to_lark
from specmesh.engines.grammar import Grammars
from specmesh.engines.grammar_source import answer
from specmesh.errors import ChildFailed, ChildLate, RequestError

examples = pytest.importorskip("llama_cpp.llama_grammar")
ENDS = {3, 300}
PIECES = (
    *(bytes([byte]) if byte != 3 else b"" for byte in range(256)),
    *(b"true", b"tr", b"true", b"", b', "', b"ab", b"abc", b"bca", b"\xc3\xa9\xc3", "éa".encode()),
    *(b"<%d>" % token for token in range(266, 300)),
    b"</s>",
)
VOCABULARY = Vocabulary(PIECES, frozenset(ENDS))
GBNF, SCHEMA = GrammarKind.GBNF, GrammarKind.JSON_SCHEMA


@pytest.fixture(scope="module")
def grammars():
    made = Grammars(VOCABULARY)
    yield made
    made.close()


def ids(text):
    return [259 if byte == 3 else byte for byte in text.encode()]


def named(mask):
    assert mask.shape == (len(PIECES),)
    return set(np.flatnonzero(mask).tolist())


def common(texts):
    first, last = min(texts), max(texts)
    return first[: next((n for n, byte in enumerate(first) if last[n] != byte), len(first))]


@settings(max_examples=settings().max_examples // 4)
@given(st.sets(st.text("abcé", min_size=1, max_size=6), min_size=1, max_size=6), st.data())
def test_masks_are_those_of_brute_force(grammars, texts, data):
    """Every id whose bytes can go on, ends where the text is whole, and nothing else; where one text alone can follow,
    the next of the ids that spell it."""
    quoted = " | ".join(f'"{text}"' for text in sorted(texts))
    constraint = grammars.compile(Grammar(GBNF, f"root ::= {quoted}"))
    language, said, spelt = [text.encode() for text in texts], b"", []
    while True:
        expected = {
            token
            for token, piece in enumerate(PIECES)
            if token not in ENDS
            and piece
            and any(whole.startswith(said + piece) for whole in language)
        }
        ends = ENDS if said in language else set()
        rest = common([whole[len(said) :] for whole in language if whole.startswith(said)])
        forced = constraint.forced()
        assert not (forced and ends)
        assert rest.startswith(b"".join(PIECES[token] for token in forced))
        if forced:
            assert forced[0] in expected
            expected = {forced[0]}
        assert named(constraint.allowed()) == expected | ends
        assert constraint.complete == (not expected)
        assert all(
            constraint.count_allowed([token]) == (token in expected | ends)
            for token in range(len(PIECES))
        )
        assert all(
            constraint.allows(token) == (token in expected | ends) for token in range(len(PIECES))
        )
        assert constraint.count_allowed(forced) == len(forced)
        if not expected:
            break
        token = data.draw(st.sampled_from(sorted(expected)))
        assert constraint.count_allowed([token]) == 1
        constraint.accept(token)
        said += PIECES[token]
        spelt.append(token)
    assert constraint.count_allowed([300]) == 1
    constraint.rollback(len(spelt))
    assert constraint.count_allowed([*spelt, 3]) == len(spelt) + 1


LONG = '"abcébbbbaaa"'
OBJECT = json.loads("""
    {
      "properties": {
        "tr": {"enum": [true, "abca", "abcab", "bé"]}, "ab": {"type": "string"},
        "c": {"const": "bbbb"}
      }
    }
    """)


@settings(max_examples=settings().max_examples // 20)
@given(
    st.sampled_from([f'root ::= ({LONG} | "ab" | "éa" root | "bca" root "b")', json.dumps(OBJECT)]),
    st.data(),
)
def test_it_goes_on_as_one_that_begins_with_the_same_text(grammars, text, data):
    """The ids that may follow depend on the text only, wherever it is resumed or taken back."""
    grammar = Grammar(GBNF if text.startswith("root") else SCHEMA, text)
    constraint, said = grammars.compile(grammar), []
    while not constraint.complete and len(said) < 40:
        allowed = sorted(named(constraint.allowed()) - ENDS)
        if not allowed:
            break
        said.append(data.draw(st.sampled_from(allowed)))
        constraint.accept(said[-1])
        if data.draw(st.integers(0, 9)) == 0:
            constraint.rollback(back := data.draw(st.integers(0, min(len(said), 5))))
            said = said[: len(said) - back]
        resumed = grammars.compile(grammar)
        assert resumed.count_allowed(said) == len(said)
        for token in said:
            resumed.accept(token)
        assert (resumed.complete, named(resumed.allowed())) == (
            constraint.complete,
            named(constraint.allowed()),
        )
        assert constraint.count_allowed(resumed.forced()) == len(resumed.forced())


def test_a_lexers_states_are_each_texts_own():
    """Only the text that exhausts its limits ends: the next of the same grammar goes as far."""
    far = [0, 0]
    with closing(Grammars(Vocabulary((b"a", b"b", b"c", b""), frozenset({3})))) as narrow:
        for text in range(2):
            constraint, luck = (
                narrow.compile(Grammar(GBNF, f'root ::= [ab]* "a" {"[ab] " * 16} "c"')),
                random.Random(1),
            )
            while constraint.allows(token := luck.randrange(2)):
                constraint.accept(token)
                far[text] += 1
            with pytest.raises(RequestError, match="takes too much to go on with: lexer error"):
                constraint.allowed()
    assert far[0] == far[1] < 50_000


def test_what_is_ambiguous_is_limited(grammars):
    ambiguous = 'root ::= e\ne ::= e e e | e e | "a" | "b" | ""'
    text, drafted, other = (
        grammars.compile(Grammar(GBNF, one)) for one in (ambiguous, ambiguous, 'root ::= "b"')
    )
    while text.allows(97):
        text.accept(97)
    with pytest.raises(
        RequestError, match=r"takes too much to go on with: .*; ask for a simpler grammar"
    ):
        text.allowed()
    assert drafted.count_allowed([97] * 400) < 400
    assert drafted.exhausted is not None
    assert (drafted.count_allowed([97]), drafted.allows(97), other.allows(98)) == (0, True, True)


@pytest.mark.parametrize(
    ("grammar", "why"),
    [
        (Grammar(GBNF, 'root ::= "a'), "^grammar cannot be used: line 1"),
        (Grammar(SCHEMA, '{"type": "thing"}'), "^json_schema cannot be used: Invalid type: thing$"),
        (Grammar(SCHEMA, '{"not": {}}'), "not"),
        (
            Grammar(GBNF, 'root ::= x\nx ::= x "a"'),
            r"^grammar cannot be used: no text fits it: .*left recurs",
        ),
        (
            Grammar(GBNF, 'root ::= "a"{3,2}'),
            r"^grammar cannot be used: range end must be >= start",
        ),
        (Grammar(GBNF, 'root ::= "a"{99999999999}'), "number too large"),
        (Grammar(SCHEMA, '{"pattern": "(a"}'), r"regex parse error: unclosed group: \(a$"),
        (Grammar(SCHEMA, json.dumps({"pattern": "[a-z]+" * 99 + "("})), r"unclosed group: \[a-z\]"),
        (
            Grammar(GBNF, r'root ::= "\ud800"'),
            r"^grammar cannot be used: line 1: \\ud800 is no character$",
        ),
        (
            Grammar(GBNF, r'root ::= "\x03"'),
            "^the model has no token with which the grammar could go on$",
        ),
        (Grammar(SCHEMA, '{"$ref": "https://example.com/x"}'), "^json_schema cannot be used"),
    ],
)
def test_what_cannot_be_used_is_told(grammars, grammar, why):
    with pytest.raises(RequestError, match=why) as told:
        grammars.compile(grammar)
    assert told.value.param == grammar.field


@pytest.mark.parametrize("rest", [r'"\x03"', 'x\nx ::= x ","'])
def test_what_no_token_goes_on_with_does_not_end(grammars, rest):
    """As if it were whole: it fails."""
    text = grammars.compile(Grammar(GBNF, f"root ::= [ab] {rest}"))
    text.accept(97)
    with pytest.raises(RequestError, match="no token with which the grammar could go on"):
        text.allowed()


NUMBER = {"properties": {"a": {"type": "integer"}}}


@cases(
    "schema, begun, more",
    r"""
    [$NUMBER, "{\"a\": 1", false]
    [{"properties": {"a": {"type": "integer"}}, "additionalProperties": true}, "{\"a\": 1", true]
    [
      {"properties": {"a": {"type": "integer"}}, "additionalProperties": {"type": "integer"}},
      "{\"a\": 1", true
    ]
    [
      {
        "properties": {"a": {"type": "integer"}}, "patternProperties": {"^z": {"type": "integer"}}
      },
      "{\"a\": 1", true
    ]
    [{"allOf": [$NUMBER, {"properties": {"z": {"type": "integer"}}}]}, "{\"a\": 1", true]
    [
      {
        "$ref": "#/$defs/x",
        "$defs": {"x": {"type": "object", "properties": {"a": {"type": "integer"}}}}
      },
      "{\"a\": 1", false
    ]
    [
      {"properties": {"const": {"type": "object", "properties": {"a": {"type": "integer"}}}}},
      "{\"const\": {\"a\": 1", false
    ]
    """,
    NUMBER=NUMBER,
)
def test_an_object_has_what_its_schema_names(grammars, schema, begun, more):
    constraint = grammars.compile(Grammar(SCHEMA, json.dumps({"type": "object"} | schema)))
    named, longer = (
        [*ids(begun + rest + "}" * begun.count("{")), 300] for rest in ("", ', "z": 2')
    )
    assert constraint.count_allowed(named) == len(named)
    assert constraint.count_allowed(longer) == (len(longer) if more else len(ids(begun)))


# --- GBNF as the lexer and parser of llguidance take it: the same language

BYTES = LLTokenizer("byte")
MUNCH = """root ::= word tail
word ::= [a-z]+
tail ::= "b" tail2 | "c"
tail2 ::= "(" root ")"
"""
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

CASES = {
    "json": (
        examples.JSON_GBNF,
        [
            "{}",
            '{"a":1}',
            '{ "a": [1, 2.5e-3, null, true], "b\\n\\u00e9": {"c": ""}} ',
            '{"x":"é"}\n  ',
        ],
        ["[1]", '{"a":01}', "{a:1}", '{"a":1,}', " {}"],
    ),
    "arithmetic": (
        examples.ARITHMETIC_GBNF,
        ["a=b\n", "(a +12)*c_1 = 3\n", "1+2=3\nx= y\n"],
        ["a", "a=b", "A=b\n"],
    ),
    "list": (examples.LIST_GBNF, ["- one\n", "- one\n- tŵo x\n"], ["-x\n", "- \n"]),
    "other letters": ("root ::= ([ぁ-ゟ] | [一-鿿])+", ["こんにちは世界"], ["hello", "ア"]),
    "a run and one more": ('root ::= [a-z]+ "b"', ["ab", "abb", "bb", "bbab"], ["b", "aba"]),
    "a run before another rule": (MUNCH, ["ac", "bbb(xc)", "abcb(cc)"], ["a"]),
    "any character": ('root ::= "a" . "b"', ["axb", "a\nb", "aéb", "a😀b"], ["ab", "axxb"]),
    "nothing inside": ('root ::= "(" root ")" | ""', ["", "(())"], ["(()"]),
    "names": (DASH, ["xA", "yyxA"], ["A", "yA"]),
    "blanks": (BLANK, ["a", "b", "", "cce", "ccdeee"], ["c", "ce", "ccdd"]),
    "escapes": (
        ESCAPES,
        ['Aé😀"\\[]]da', 'Aé😀"\\[]-é-', 'Aé😀"\\[]xx-'],
        ['Aé😀"\\[]xa-', 'Aé😀"\\[]xxb'],
    ),
    "left recursion": ('root ::= root "a" | "b"', ["b", "baaa"], ["a", ""]),
    "a rule that nobody uses": ('root ::= "a"\nother ::= "b" other | "c"', ["a"], ["b", "c"]),
    "literals that begin alike": (
        'root ::= "ab" root "cd" | "abc" "e" | ""',
        ["abcd", "abce", "ababcecd", ""],
        ["abc", "abcecd"],
    ),
}


def accepts(grammar, text):
    matcher = LLMatcher(BYTES, str(answer({"kind": "gbnf", "text": grammar})["lark"]), log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    ids = list(text.encode())
    return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()


@pytest.mark.parametrize("name", CASES)
def test_the_language_is_the_same(name):
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
def test_what_is_none_is_refused_with_its_line(grammar, why):
    with pytest.raises(RequestError, match=why):
        gbnf_to_lark(grammar)


def test_a_rule_that_nobody_uses_changes_nothing():
    """A recursive rule moves a grammar of one lexeme to the parser, which takes far longer."""
    line = 'root ::= line+\nline ::= [a-z ]+ [.]? [a-z ]* "\\n"?\n'
    assert gbnf_to_lark(line + 'unused ::= "(" unused ")" | "x"') == gbnf_to_lark(line)


# --- what takes long


SLOW = json.loads("""
    {
      "allOf": [
        {"type": "string", "pattern": "^.*a0.{0,0}b.*$"},
        {"type": "string", "pattern": "^.*a1.{0,3}b.*$"},
        {"type": "string", "pattern": "^.*a2.{0,6}b.*$"},
        {"type": "string", "pattern": "^.*a3.{0,9}b.*$"},
        {"type": "string", "pattern": "^.*a4.{0,12}b.*$"},
        {"type": "string", "pattern": "^.*a5.{0,15}b.*$"},
        {"type": "string", "pattern": "^.*a6.{0,18}b.*$"},
        {"type": "string", "pattern": "^.*a7.{0,21}b.*$"},
        {"type": "string", "pattern": "^.*a8.{0,24}b.*$"},
        {"type": "string", "pattern": "^.*a9.{0,27}b.*$"},
        {"type": "string", "pattern": "^.*a10.{0,30}b.*$"},
        {"type": "string", "pattern": "^.*a11.{0,33}b.*$"},
        {"type": "string", "pattern": "^.*a12.{0,36}b.*$"},
        {"type": "string", "pattern": "^.*a13.{0,39}b.*$"},
        {"type": "string", "pattern": "^.*a14.{0,42}b.*$"},
        {"type": "string", "pattern": "^.*a15.{0,45}b.*$"},
        {"type": "string", "pattern": "^.*a16.{0,48}b.*$"},
        {"type": "string", "pattern": "^.*a17.{0,51}b.*$"},
        {"type": "string", "pattern": "^.*a18.{0,54}b.*$"},
        {"type": "string", "pattern": "^.*a19.{0,57}b.*$"},
        {"type": "string", "pattern": "^.*a20.{0,60}b.*$"},
        {"type": "string", "pattern": "^.*a21.{0,63}b.*$"},
        {"type": "string", "pattern": "^.*a22.{0,66}b.*$"},
        {"type": "string", "pattern": "^.*a23.{0,69}b.*$"},
        {"type": "string", "pattern": "^.*a24.{0,72}b.*$"},
        {"type": "string", "pattern": "^.*a25.{0,75}b.*$"},
        {"type": "string", "pattern": "^.*a26.{0,78}b.*$"},
        {"type": "string", "pattern": "^.*a27.{0,81}b.*$"},
        {"type": "string", "pattern": "^.*a28.{0,84}b.*$"},
        {"type": "string", "pattern": "^.*a29.{0,87}b.*$"},
        {"type": "string", "pattern": "^.*a30.{0,90}b.*$"},
        {"type": "string", "pattern": "^.*a31.{0,93}b.*$"},
        {"type": "string", "pattern": "^.*a32.{0,96}b.*$"},
        {"type": "string", "pattern": "^.*a33.{0,99}b.*$"},
        {"type": "string", "pattern": "^.*a34.{0,102}b.*$"},
        {"type": "string", "pattern": "^.*a35.{0,105}b.*$"},
        {"type": "string", "pattern": "^.*a36.{0,108}b.*$"},
        {"type": "string", "pattern": "^.*a37.{0,111}b.*$"},
        {"type": "string", "pattern": "^.*a38.{0,114}b.*$"},
        {"type": "string", "pattern": "^.*a39.{0,117}b.*$"}
      ]
    }
    """)


class Asked:
    """A compiler that answers as told, and counts how often it was asked."""

    def __init__(self, *answers):
        self.answers, self.count = list(answers), 0

    def ask(self, _):
        self.count += 1
        answer = self.answers.pop(0)
        if isinstance(answer, ChildFailed):
            raise answer
        return answer


def made_of(monkeypatch, quick, patient=None):
    """Grammars whose compilers answer so."""
    grammars = Grammars(VOCABULARY)
    monkeypatch.setattr(grammars, "_quick", quick)
    monkeypatch.setattr(grammars, "_patient", patient or quick)
    return grammars


LATE = ChildLate("it took more than 0.05 s")
LARK = {"lark": 'start: "a"'}


def test_what_takes_long_is_not_waited_for(grammars):
    with pytest.raises(ChildLate):
        grammars.compile(Grammar(SCHEMA, json.dumps(SLOW)), patient=False)
    assert grammars.compile(Grammar(GBNF, 'root ::= "a"'), patient=False)


def test_what_took_too_much_is_not_tried_again(monkeypatch):
    patient = Asked(ChildLate("it took more than 3 s"))
    grammars = made_of(monkeypatch, Asked(), patient)
    for how in (True, False, True):
        with pytest.raises(RequestError, match="takes too much to compile: it took more than 3 s"):
            grammars.compile(Grammar(SCHEMA, "{}"), patient=how)
    assert patient.count == 1


@pytest.mark.parametrize("answer", [{"refused": "no"}, ChildFailed("it ended with SIGKILL")])
def test_what_was_refused_is_not_tried_again(monkeypatch, answer):
    compiler = Asked(answer)
    grammars = made_of(monkeypatch, compiler)
    for _ in range(3):
        with pytest.raises(RequestError):
            grammars.compile(Grammar(GBNF, "x"), patient=False)
    assert compiler.count == 1


def test_what_took_too_much_is_tried_again_later(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(grammar.time, "monotonic", lambda: now[0])
    grammars = made_of(monkeypatch, Asked(ChildLate("too long"), LARK))
    with pytest.raises(RequestError):
        grammars.compile(Grammar(GBNF, "x"))
    now[0] += grammar.REMEMBERED
    assert grammars.compile(Grammar(GBNF, "x"))


def test_what_took_long_once_is_not_waited_for_again(monkeypatch):
    """It is known, but may take long to begin, too."""
    quick, patient = Asked(LATE), Asked(LARK)
    grammars = made_of(monkeypatch, quick, patient)
    for _ in range(2):
        with pytest.raises(ChildLate):
            grammars.compile(Grammar(GBNF, "x"), patient=False)
        assert grammars.compile(Grammar(GBNF, "x"))
    assert (quick.count, patient.count) == (1, 1)


def test_as_many_are_remembered_as_may_be(monkeypatch):
    compiler = Asked(*[LARK] * (grammar.CACHED + 2))
    grammars = made_of(monkeypatch, compiler)
    for name in ("first", *(str(number) for number in range(grammar.CACHED)), "first"):
        grammars.compile(Grammar(GBNF, name))
    assert compiler.count == grammar.CACHED + 2
    grammars.compile(Grammar(GBNF, "first"))
    assert compiler.count == grammar.CACHED + 2
