"""Grammars compiled for a vocabulary: masks, forced ids, fitting and refused texts; GBNF."""

import json
import random
from contextlib import closing
from unittest.mock import Mock

import numpy as np
import pytest
from harness.tables import cases, rows
from hypothesis import given, settings
from hypothesis import strategies as st
from languages import language, takes

from specmesh.core.sampling.constraint import Grammar, GrammarKind
from specmesh.core.vocabulary.vocabulary import Vocabulary
from specmesh.engines import grammar
from specmesh.engines.gbnf import gbnf_to_lark
from specmesh.engines.grammar import Grammars, is_prepared
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


def test_equal_vocabularies_share_the_librarys_form(monkeypatch):
    made = Mock(wraps=grammar.LLTokenizer)
    monkeypatch.setattr(grammar, "LLTokenizer", made)
    pieces = (*PIECES[:-1], b"</text>")
    one = Vocabulary(pieces, frozenset(ENDS))
    equal = Vocabulary(pieces, frozenset(ENDS))
    with closing(Grammars(one)) as mine, closing(Grammars(equal)) as yours:
        mine.prepare()
        yours.prepare()
    assert made.call_count == 1


@pytest.mark.parametrize(
    ("n_vocab", "model_bytes", "advance"),
    [(262_144, 5 * 10**9, True), (49_152, 10**9, True), (262_144, 250 * 10**6, False)],
)
def test_what_grammars_need_is_made_in_advance_where_it_takes_little(n_vocab, model_bytes, advance):
    """Beside the load of a small model it would delay the start."""
    assert is_prepared(n_vocab, model_bytes) == advance


def ids(text):
    return [259 if byte == 3 else byte for byte in text.encode()]


def allowed_ids(constraint):
    mask = constraint.allowed()
    assert mask.shape == (len(PIECES),)
    return set(np.flatnonzero(mask).tolist())


def following(language, text):
    """Return the ids with which a text can go on, by brute force."""
    found = set()
    rests = [whole[len(text) :] for whole in language if whole.startswith(text)]
    for token, piece in enumerate(PIECES):
        if piece and token not in ENDS and any(rest.startswith(piece) for rest in rests):
            found.add(token)
    if text in language:
        found |= ENDS
    return found


def text_of(ids):
    return b"".join(PIECES[token] for token in ids)


@settings(max_examples=settings().max_examples // 4)
@given(st.sets(st.text("abcé", min_size=1, max_size=6), min_size=1, max_size=6), st.data())
def test_masks_are_those_of_brute_force(grammars, texts, data):
    """If all texts go on alike, only the next forced id is allowed."""
    alternatives = " | ".join(f'"{text}"' for text in sorted(texts))
    constraint = grammars.compile(Grammar(GBNF, f"root ::= {alternatives}"))
    language = [text.encode() for text in texts]
    ids = []
    while not constraint.complete:
        text = text_of(ids)
        expected = following(language, text)
        forced = constraint.forced()
        if forced:
            further = text + text_of(forced)
            assert all(one.startswith(further) for one in language if one.startswith(text))
            assert forced[0] in expected - ENDS
            assert constraint.count_allowed(forced) == len(forced)
            expected = {forced[0]}
        assert allowed_ids(constraint) == expected
        every = range(len(PIECES))
        assert {token for token in every if constraint.count_allowed([token])} == expected
        assert {token for token in every if constraint.allows(token)} == expected
        token = data.draw(st.sampled_from(sorted(expected - ENDS)))
        constraint.accept(token)
        ids.append(token)
    assert text_of(ids) in language
    assert allowed_ids(constraint) == ENDS
    constraint.rollback(len(ids))
    assert constraint.count_allowed([*ids, 3]) == len(ids) + 1


SCHEMA_TEXT = """{"properties": {
    "tr": {"enum": [true, "abca", "abcab", "bé"]}, "ab": {"type": "string"}, "c": {"const": "bbbb"}
}}"""
GBNF_TEXT = 'root ::= ("abcébbbbaaa" | "ab" | "éa" root | "bca" root "b")'


@pytest.mark.parametrize("grammar", [Grammar(GBNF, GBNF_TEXT), Grammar(SCHEMA, SCHEMA_TEXT)])
@settings(max_examples=settings().max_examples // 40)
@given(data=st.data())
def test_a_text_goes_on_the_same_after_it_was_resumed_or_taken_back(grammars, grammar, data):
    constraint = grammars.compile(grammar)
    ids = []
    while not constraint.complete and len(ids) < 40:
        allowed = sorted(allowed_ids(constraint) - ENDS)
        if not allowed:
            break
        ids.append(data.draw(st.sampled_from(allowed)))
        constraint.accept(ids[-1])
        if data.draw(st.integers(0, 9)) == 0:
            back = data.draw(st.integers(0, min(len(ids), 5)))
            constraint.rollback(back)
            del ids[len(ids) - back :]
        resumed = grammars.compile(grammar)
        assert resumed.count_allowed(ids) == len(ids)
        for token in ids:
            resumed.accept(token)
        assert resumed.complete == constraint.complete
        assert allowed_ids(resumed) == allowed_ids(constraint)
        assert constraint.count_allowed(resumed.forced()) == len(resumed.forced())


def exhausting(grammars):
    """Return the number of ids after which a text exhausts the limits of its lexer."""
    constraint = grammars.compile(Grammar(GBNF, f'root ::= [ab]* "a" {"[ab] " * 16} "c"'))
    luck = random.Random(1)
    count = 0
    while constraint.allows(token := luck.randrange(2)):
        constraint.accept(token)
        count += 1
    with pytest.raises(RequestError, match="takes too much to go on with: lexer error"):
        constraint.allowed()
    return count


def test_each_text_has_its_own_states_of_the_lexer():
    """A text that exhausts its limits leaves the next one of the same grammar as much."""
    with closing(Grammars(Vocabulary((b"a", b"b", b"c", b""), frozenset({3})))) as narrow:
        first = exhausting(narrow)
        assert exhausting(narrow) == first < 50_000


AMBIGUOUS = Grammar(GBNF, 'root ::= e\ne ::= e e e | e e | "a" | "b" | ""')


def test_an_ambiguous_text_is_limited(grammars):
    text = grammars.compile(AMBIGUOUS)
    while text.allows(97):
        text.accept(97)
    with pytest.raises(RequestError, match=r"takes too much to .*; ask for a simpler grammar"):
        text.allowed()


def test_ambiguous_drafts_are_limited(grammars):
    """The text goes on afterwards."""
    drafted = grammars.compile(AMBIGUOUS)
    assert drafted.count_allowed([97] * 400) < 400
    assert drafted.exhausted is not None
    assert drafted.count_allowed([97]) == 0
    assert drafted.allows(97)


NOT_CLOSED = json.dumps({"pattern": "[a-z]+" * 99 + "("})


@cases(
    "kind, text, why",
    r"""
    ["gbnf", "root ::= \"a", "^grammar cannot be used: line 1"]
    ["json_schema", "{\"type\": \"thing\"}",
     "^json_schema cannot be used: Invalid type: thing$"]
    ["json_schema", "{\"not\": {}}", "not"]
    ["gbnf", "root ::= x\nx ::= x \"a\"",
     "^grammar cannot be used: no text fits it: .*left recurs"]
    ["gbnf", "root ::= \"a\"{3,2}", "^grammar cannot be used: range end must be >= start"]
    ["gbnf", "root ::= \"a\"{99999999999}", "number too large"]
    ["json_schema", "{\"pattern\": \"(a\"}", "regex parse error: unclosed group: \\(a$"]
    ["json_schema", $PATTERN, "unclosed group: \\[a-z\\]"]
    ["gbnf", "root ::= \"\\ud800\"",
     "^grammar cannot be used: line 1: \\\\ud800 is no character$"]
    ["gbnf", "root ::= \"\\x03\"", "^the model has no token with which the grammar could go on$"]
    ["json_schema", "{\"$ref\": \"https://example.com/x\"}", "^json_schema cannot be used"]
    """,
    PATTERN=NOT_CLOSED,
)
def test_a_grammar_is_refused_with_the_reason(grammars, kind, text, why):
    grammar = Grammar(GrammarKind(kind), text)
    with pytest.raises(RequestError, match=why) as refused:
        grammars.compile(grammar)
    assert refused.value.param == grammar.field


@pytest.mark.parametrize("rest", [r'"\x03"', 'x\nx ::= x ","'])
def test_a_text_that_no_token_continues_is_an_error(grammars, rest):
    text = grammars.compile(Grammar(GBNF, f"root ::= [ab] {rest}"))
    text.accept(97)
    with pytest.raises(RequestError, match="no token with which the grammar could go on"):
        text.allowed()


@cases(
    "more",
    """
    {"additionalProperties": true}
    {"additionalProperties": {"type": "integer"}}
    {"patternProperties": {"^z": {"type": "integer"}}}
    {"allOf": [{"properties": {"z": {"type": "integer"}}}]}
    """,
)
def test_an_object_may_have_other_names(grammars, more):
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}} | more
    constraint = grammars.compile(Grammar(SCHEMA, json.dumps(schema)))
    text = [*ids('{"a": 1, "z": 2}'), 300]
    assert constraint.count_allowed(text) == len(text)


@cases(
    "begun, schema",
    r"""
    ["{\"a\": 1", {"type": "object", "properties": {"a": {"type": "integer"}}}]
    ["{\"a\": 1", {"$ref": "#/$defs/x",
      "$defs": {"x": {"type": "object", "properties": {"a": {"type": "integer"}}}}}]
    ["{\"const\": {\"a\": 1", {"type": "object", "properties": {
      "const": {"type": "object", "properties": {"a": {"type": "integer"}}}}}]
    """,
)
def test_an_object_has_no_other_names(grammars, begun, schema):
    """A property may have the name of a keyword."""
    constraint = grammars.compile(Grammar(SCHEMA, json.dumps(schema)))
    assert constraint.count_allowed(ids(f'{begun}, "z": 2')) == len(ids(begun))


# --- GBNF as the lexer and parser of llguidance take it: the same language

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

JSON_TEXTS = rows(r"""
    "{}"
    "{\"a\":1}"
    "{ \"a\": [1, 2.5e-3, null, true], \"b\\n\\u00e9\": {\"c\": \"\"}} "
    "{\"x\":\"é\"}\n  "
    """)
LANGUAGES = rows(
    r"""
    [$JSON, $TEXTS, ["[1]", "{\"a\":01}", "{a:1}", "{\"a\":1,}", " {}"]]
    [$ARITHMETIC, ["a=b\n", "(a +12)*c_1 = 3\n", "1+2=3\nx= y\n"], ["a", "a=b", "A=b\n"]]
    [$LIST, ["- one\n", "- one\n- tŵo x\n"], ["-x\n", "- \n"]]
    ["root ::= ([ぁ-ゟ] | [一-鿿])+", ["こんにちは世界"], ["hello", "ア"]]
    ["root ::= [a-z]+ \"b\"", ["ab", "abb", "bb", "bbab"], ["b", "aba"]]
    [$MUNCH, ["ac", "bbb(xc)", "abcb(cc)"], ["a"]]
    ["root ::= \"a\" . \"b\"", ["axb", "a\nb", "aéb", "a😀b"], ["ab", "axxb"]]
    ["root ::= \"(\" root \")\" | \"\"", ["", "(())"], ["(()"]]
    [$DASH, ["xA", "yyxA"], ["A", "yA"]]
    [$BLANK, ["a", "b", "", "cce", "ccdeee"], ["c", "ce", "ccdd"]]
    [$ESCAPES, ["Aé😀\"\\[]]da", "Aé😀\"\\[]-é-", "Aé😀\"\\[]xx-"],
     ["Aé😀\"\\[]xa-", "Aé😀\"\\[]xxb"]]
    ["root ::= root \"a\" | \"b\"", ["b", "baaa"], ["a", ""]]
    ["root ::= \"a\"\nother ::= \"b\" other | \"c\"", ["a"], ["b", "c"]]
    ["root ::= \"ab\" root \"cd\" | \"abc\" \"e\" | \"\"",
     ["abcd", "abce", "ababcecd", ""], ["abc", "abcecd"]]
    """,
    JSON=examples.JSON_GBNF,
    TEXTS=JSON_TEXTS,
    ARITHMETIC=examples.ARITHMETIC_GBNF,
    LIST=examples.LIST_GBNF,
    MUNCH=MUNCH,
    DASH=DASH,
    BLANK=BLANK,
    ESCAPES=ESCAPES,
)


@pytest.mark.parametrize(("grammar", "good", "bad"), LANGUAGES)
def test_the_language_is_the_same(grammar, good, bad):
    matcher = language("gbnf", grammar)
    assert [text for text in good + bad if takes(matcher, text)] == good


@cases(
    "grammar, why",
    r"""
    ["top ::= \"a\"", "no rule named root"]
    ["root ::= \n  other", "line 2: there is no rule named other"]
    ["root ::= \"a\"\n\nroot \"b\"", "line 3: expected .*::="]
    ["\"a\"\nroot ::= \"b\"", "line 1: expected .*::="]
    ["root ::= \"a", "line 1: unexpected end"]
    ["root ::= \"a\" |\n\n # of b\n b ::= \"c\"", "line 4: unexpected '::='"]
    ["root ::=\n  b ::= \"c\"", "line 2: unexpected '::='"]
    ["root ::= b b ::= \"x\"", "line 1: unexpected '::='"]
    ["root ::= (\"a\" | \"b\"", "line 1: expected \\)"]
    ["root ::= \"a\" )", "line 1: unexpected"]
    ["root ::= \"\\q\"", "unknown escape"]
    ["root ::= \"a\"\nunused ::= \"\\q\"", "line 2: unknown escape"]
    ["root ::= \"\\x4\"", "unknown escape"]
    ["root ::= []", "a class without characters"]
    ["root ::= [z-a]", "from z to a"]
    ["root ::= \"a\" | +", "follows nothing"]
    ["root ::= \"a\"{x}", "unexpected '{'"]
    ["root ::= <think> [a-z]", "line 1: unexpected '<'"]
    [$DEEP, "nested too deeply"]
    """,
    DEEP="root ::= " + "(" * 5000,
)
def test_what_is_none_is_refused_with_its_line(grammar, why):
    with pytest.raises(RequestError, match=why):
        gbnf_to_lark(grammar)


def test_a_rule_that_nobody_uses_changes_nothing():
    """A recursive rule moves a grammar of one lexeme to the parser, which takes far longer."""
    line = 'root ::= line+\nline ::= [a-z ]+ [.]? [a-z ]* "\\n"?\n'
    assert gbnf_to_lark(line + 'unused ::= "(" unused ")" | "x"') == gbnf_to_lark(line)


# --- what takes long


SLOW = {"allOf": [{"type": "string", "pattern": f"^.*a{n}.{{0,{3 * n}}}b.*$"} for n in range(40)]}


def made_of(monkeypatch, quick, patient=()):
    """Return grammars, and their compilers, which give scripted answers."""
    made = Grammars(VOCABULARY)
    compilers = Mock(**{"ask.side_effect": quick}), Mock(**{"ask.side_effect": patient})
    monkeypatch.setattr(made, "_quick", compilers[0])
    monkeypatch.setattr(made, "_patient", compilers[1])
    return made, *[compiler.ask for compiler in compilers]


LATE = ChildLate("it took more than 3 s")
LARK = {"lark": 'start: "a"'}
ANY = Grammar(GBNF, "x")


def test_what_takes_long_is_not_waited_for(grammars):
    with pytest.raises(ChildLate):
        grammars.compile(Grammar(SCHEMA, json.dumps(SLOW)), patient=False)
    assert grammars.compile(Grammar(GBNF, 'root ::= "a"'), patient=False)


def test_what_took_too_much_is_not_tried_again(monkeypatch):
    """It is later."""
    now = [1000.0]
    monkeypatch.setattr(grammar.time, "monotonic", lambda: now[0])
    grammars, _, patient = made_of(monkeypatch, (), [LATE, LARK])
    for how in (True, False, True):
        with pytest.raises(RequestError, match="takes too much to compile: it took more than 3 s"):
            grammars.compile(ANY, patient=how)
    assert patient.call_count == 1
    now[0] += grammar.REMEMBERED
    assert grammars.compile(ANY)


@pytest.mark.parametrize("answer", [{"refused": "no"}, ChildFailed("it ended with SIGKILL")])
def test_what_was_refused_is_not_tried_again(monkeypatch, answer):
    grammars, quick, _ = made_of(monkeypatch, [answer])
    for _ in range(3):
        with pytest.raises(RequestError):
            grammars.compile(ANY, patient=False)
    assert quick.call_count == 1


def test_what_took_long_once_is_not_waited_for_again(monkeypatch):
    """It is known, but may take long to begin, too."""
    grammars, quick, patient = made_of(monkeypatch, [LATE], [LARK])
    for _ in range(2):
        with pytest.raises(ChildLate):
            grammars.compile(ANY, patient=False)
        assert grammars.compile(ANY)
    assert (quick.call_count, patient.call_count) == (1, 1)


def test_as_many_are_remembered_as_may_be(monkeypatch):
    grammars, _, patient = made_of(monkeypatch, (), [LARK] * (grammar.CACHED + 2))
    numbers = [str(number) for number in range(grammar.CACHED)]
    for name in ("first", *numbers, "first", "first"):
        grammars.compile(Grammar(GBNF, name))
    assert patient.call_count == grammar.CACHED + 2
