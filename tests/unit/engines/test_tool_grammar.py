"""Texts with calls of tools that each family's grammar allows, and refuses."""

import json
import re
from contextlib import closing
from functools import cache

import pytest
from called import spelt
from harness.tables import cases, rows
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from languages import language

from specmesh.core.sampling.constraint import Grammar, GrammarKind, check_grammar
from specmesh.core.text.reasoning import STYLES
from specmesh.core.text.tool_calls import ArgumentsPart, CallParser, TextPart
from specmesh.core.text.tool_formats import FORMATS, ID, STRING, TYPE
from specmesh.core.vocabulary.vocabulary import Vocabulary
from specmesh.engines import tool_grammar
from specmesh.engines.grammar import Grammars
from specmesh.engines.grammar_source import answer

TOOLS = rows("""
    {"name": "get_weather", "parameters": {
      "properties": {
        "city": {"type": "string"},
        "days": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "unit": {"$ref": "#/$defs/Unit"}
      },
      "required": ["city", "unit"],
      "$defs": {"Unit": {"type": "string", "enum": ["C", "F"]}}
    }}
    {"name": "get_time", "description": "No arguments."}
    """)
TIME = ("get_time", {})
FORMS = pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)
HERMES = FORMATS["hermes"]


def request(form, choice="auto", *, thinking="", **changes):
    described = {"tools": TOOLS, "choice": choice, "parallel": True}
    return json.dumps(described | {"format": form, "thinking": thinking} | changes)


def tool(name, parameters):
    return {"name": name, "parameters": parameters}


def compiled(grammar):
    return answer({"kind": "tools", "text": grammar})


@cache
def begun(grammar):
    return language("tools", grammar)


class Text:
    """How a text keeps to a grammar.

    rest: the end of the text, from the first byte that the grammar does not allow.
    may_end: the text is allowed and may end here.
    forced: the only text with which it can go on.
    """

    def __init__(self, grammar, text):
        matcher = begun(grammar).deep_copy()
        data = text.encode()
        self.rest = data[matcher.try_consume_tokens(list(data)) :].decode("utf-8", "replace")
        self.may_end = not self.rest and matcher.is_accepting()
        self.forced = bytes(matcher.compute_ff_bytes()).decode()


@FORMS
@pytest.mark.parametrize("choice", ["auto", "required", {"name": "get_weather"}])
@cases(
    "arguments",
    r"""
    {"city": "Köln \\ <b>", "unit": "C"}
    {"city": "", "days": 3, "unit": "F"}
    """,
)
def test_whole_calls_are_allowed(form, choice, arguments):
    text = spelt(form, ("get_weather", arguments))
    assert Text(request(form.name, choice), text).may_end
    if form.bare:
        assert Text(request(form.name, choice), text.removeprefix(form.opening)).may_end


def up_to_id(text):
    """Return the beginning of a text that is the same for each call."""
    return text.partition(ID)[0]


WRONG_CALLS = rows("""
    ["get_wine", {}, "ine"]
    ["get_time", {"city": "Ulm"}, ""]
    ["get_weather", {"city": "Ulm"}, ""]
    ["get_weather", {"unit": "C"}, ""]
    ["get_weather", {"city": "Ulm", "unit": "K"}, "K"]
    ["get_weather", {"city": "Ulm", "days": 1.5, "unit": "C"}, ".5"]
    ["get_weather", {"city": "Ulm", "unit": "C", "other": 1}, ""]
    """)


@FORMS
@pytest.mark.parametrize("choice", ["auto", "required"])
def test_wrong_calls_are_refused(form, choice):
    grammar = request(form.name, choice)
    for name, arguments, beginning in WRONG_CALLS:
        rest = Text(grammar, spelt(form, (name, arguments))).rest
        assert rest, arguments
        assert rest.startswith(beginning)


@FORMS
def test_a_wrong_type_is_refused(form):
    """A number for a string is so if it looks different."""
    number = ("get_weather", {"city": 1, "unit": "C"})
    marked = not form.parameter or STRING in form.parameter or TYPE in form.parameter
    assert bool(Text(request(form.name), spelt(form, number)).rest) == marked
    text = ("get_weather", {"city": "Ulm", "days": "some", "unit": "C"})
    assert "some" in Text(request(form.name), spelt(form, text)).rest


@FORMS
def test_a_text_is_free_up_to_the_mark(form):
    texts = ["", "No.", '{"answer": 1}', "<think>ü</think>\n", '{ "name": "get"']
    for text in [*texts, f"Not {form.trigger[:-1]}"]:
        assert Text(request(form.name), text).may_end


@FORMS
def test_a_call_is_forced_after_the_mark(form):
    begun = Text(request(form.name), f"Look: {form.trigger}")
    assert not begun.may_end
    assert begun.forced.startswith(up_to_id(form.start.removeprefix(form.trigger) + "get_"))


@FORMS
def test_calls_are_at_the_end_of_a_text(form):
    assert Text(request(form.name), f"Look: {spelt(form, TIME)} and").rest == " and"


@FORMS
def test_the_rest_of_a_call_is_forced_after_its_name(form):
    begun = spelt(form, TIME).partition("get_t")[0] + "get_t"
    arguments = "" if form.parameter or form.syntax else "{}"
    rest = up_to_id("ime" + form.after + arguments + form.end)
    assert Text(request(form.name), begun).forced.startswith(rest)


@FORMS
def test_the_beginning_of_a_required_call_is_forced(form):
    forced = "" if form.bare else up_to_id(f"{form.start}get_")
    assert Text(request(form.name, "required"), "").forced == forced


@FORMS
def test_the_name_of_a_required_argument_is_forced(form):
    opened = '{"city": "'
    if form.parameter:
        opened = f"{form.param_begin}city{form.param_middle}"
        opened = opened.replace(STRING, "true").replace(TYPE, "string")
    elif form.syntax is not None:
        quotes = form.syntax.quotes
        opened = f"city{form.syntax.assign}" + (quotes[0] if len(quotes) == 1 else "")
    begun = spelt(form, ("get_weather", {})).partition("get_weather")[0]
    grammar = request(form.name, {"name": "get_weather"})
    assert Text(grammar, begun).forced == up_to_id(f"get_weather{form.after}{opened}")


@FORMS
@pytest.mark.parametrize("choice", ["auto", "required"])
def test_several_calls_may_be_parallel(form, choice):
    text = spelt(form, TIME, TIME, TIME)
    assert Text(request(form.name, choice), text).may_end == (form.between is not None)
    assert Text(request(form.name, choice, parallel=False), text).rest


@FORMS
def test_a_named_tool_is_called_once(form):
    assert Text(request(form.name, {"name": "get_time"}), spelt(form, TIME, TIME)).rest


RICH = json.loads("""
    {
      "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer", "minimum": -5, "maximum": 5000},
        "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 3},
        "place": {
          "type": "object",
          "properties": {"x": {"type": "number"}, "inner": {"$ref": "#/$defs/Inner"}},
          "required": ["x"]
        },
        "flag": {"type": "boolean"},
        "unit": {"enum": ["C", "it's"]},
        "other": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "integer"}}]},
        "grid": {"type": "array", "items": {"type": "array", "items": {"type": "boolean"}}},
        "free": {"type": "object", "additionalProperties": {"type": "integer"}},
        "é name": {"type": "null"}
      },
      "required": ["city"],
      "$defs": {"Inner": {"type": "object", "properties": {"deep": {"$ref": "#/$defs/Inner"}}}}
    }
    """)
WORDS = st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]) | st.just("\n"), max_size=9)
INNER = st.recursive(
    st.just({}), lambda one: st.fixed_dictionaries({}, optional={"deep": one}), max_leaves=3
)
VALUES = st.fixed_dictionaries(
    {"city": WORDS},
    optional={
        "days": st.integers(-5, 5000),
        "tags": st.lists(WORDS, max_size=3),
        "place": st.fixed_dictionaries(
            {"x": st.floats(-1e6, 1e6).map(lambda x: round(x, 3) + 0.0)}, optional={"inner": INNER}
        ),
        "flag": st.booleans(),
        "unit": st.sampled_from(["C", "it's"]),
        "other": WORDS | st.lists(st.integers(-9, 9), max_size=2),
        "grid": st.lists(st.lists(st.booleans(), max_size=2), max_size=2),
        "free": st.dictionaries(st.sampled_from(["a", "b_1"]), st.integers(0, 9), max_size=2),
        "é name": st.none(),
    },
)
TYPED = ["gemma4", "lfm2", "deepseek32", "kimi_k3", "mistral_array", "hermes"]
"""One form of each kind of those that distinguish strings from other values."""


def in_order(arguments):
    """Return arguments in the schema's order."""
    ordered = {name: arguments[name] for name in RICH["properties"] if name in arguments}
    place = ordered.get("place", {})
    if "inner" in place:
        ordered["place"] = {"x": place["x"], "inner": place["inner"]}
    return ordered


def check_arguments(form, arguments):
    """Check that the grammar allows a call with these arguments and that the parser reads them."""
    get = tool("get", RICH)
    text = spelt(form, ("get", arguments))
    written = Text(request(form.name, "required", tools=[get]), text)
    assert (written.rest, written.may_end) == ("", True)
    parser = CallParser(form, [get])
    read = ""
    for event in [*parser.feed(text), *parser.feed("", over=True)]:
        assert not isinstance(event, TextPart)
        if isinstance(event, ArgumentsPart):
            read += event.text
    assert json.loads(read) == arguments


@pytest.mark.parametrize("name", TYPED)
@given(VALUES)
def test_all_arguments_of_a_schema_are_written_and_read(name, arguments):
    check_arguments(FORMATS[name], in_order(arguments))


@given(VALUES)
def test_arguments_between_nested_marks(arguments):
    """MiniMax-M3's empty list could be an object or a string too, so there is none here."""
    ordered = in_order(arguments | {"city": "Ulm", "other": "x"})
    ordered.pop("tags", None)
    check_arguments(FORMATS["minimax_m3"], ordered)


STYLE = pytest.mark.parametrize("style", STYLES.values(), ids=STYLES)
ANSWER = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
AFTER = pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({}, spelt(HERMES, TIME)),
        ({"choice": "required"}, spelt(HERMES, TIME)),
        ({"schema": ANSWER}, spelt(HERMES, TIME)),
        ({"schema": ANSWER}, '{"name": "x"}'),
    ],
    ids=["calls", "required calls", "calls or a schema", "a schema or calls"],
)
THOUGHT = f"I could {spelt(HERMES, TIME)}, or <tool_call> or not"


@STYLE
@AFTER
def test_an_answer_comes_after_the_thought_that_began(style, changes, text):
    """The thought may mention calls; an answer without one may be all thought."""
    grammar = request("hermes", thinking=f"{style.name}!", **changes)
    assert Text(grammar, f"{THOUGHT}{style.end}\n\n{text}").may_end
    assert Text(grammar, f"{THOUGHT}{style.end}"[:-1]).may_end == (not changes)


@STYLE
@AFTER
def test_a_thought_may_come_before_an_answer(style, changes, text):
    grammar = request("hermes", thinking=style.name, **changes)
    thought = f"{style.begin}{THOUGHT}{style.end}"
    assert Text(grammar, thought + text).may_end
    assert Text(grammar, text).may_end
    assert not Text(grammar, thought[:-1]).rest


@STYLE
@AFTER
def test_no_thought_comes_after_one_that_ended(style, changes, text):
    grammar = request("hermes", thinking=f"{style.name}.", **changes)
    assert Text(grammar, text).may_end
    assert Text(grammar, f"{style.begin}Hm").may_end == (not changes)


@STYLE
@pytest.mark.parametrize("begin", [True, False])
@pytest.mark.parametrize("changes", [{}, {"choice": "required"}, {"schema": ANSWER}])
def test_text_after_a_thought(style, begin, changes):
    """It is free unless the answer has a form."""
    thinking = style.name if begin else f"{style.name}!"
    text = f"{style.begin * begin}a{style.end}\n\nThen"
    rest = Text(request("hermes", thinking=thinking, **changes), text).rest
    assert rest == ("Then" if changes else "")


def test_an_empty_answer_may_come_between_a_thought_and_calls_that_are_required():
    """As Kimi K3's template writes it."""
    grammar = request("kimi_k3", "required", thinking="kimi_k3!")
    answer = "<|open|>response<|sep|><|close|>response<|sep|>"
    call = spelt(FORMATS["kimi_k3"], TIME)
    assert Text(grammar, f"Hm<|close|>think<|sep|>{answer}{call}").may_end
    assert Text(grammar, f"Hm<|close|>think<|sep|>{call}").may_end


HARMONY_THOUGHT = "<|channel|>analysis<|message|>Hm<|end|><|start|>assistant"


@pytest.mark.parametrize(
    "before",
    [
        "",
        HARMONY_THOUGHT,
        "<|channel|>analysis",
        f"{HARMONY_THOUGHT}<|channel|>commentary<|message|>I look<|end|><|start|>assistant",
    ],
)
def test_gpt_oss_names_a_recipient_in_one_place(before):
    """The parser reads calls only there, so the grammar allows them only there."""
    grammar = request("harmony", thinking="harmony")
    assert Text(grammar, f"{before} to=functions.get_time").rest == "o=functions.get_time"
    assert not Text(grammar, f"{before} t").rest


@pytest.mark.parametrize(
    "text",
    [
        spelt(FORMATS["harmony"], TIME, before=HARMONY_THOUGHT),
        f"{HARMONY_THOUGHT}<|channel|>final<|message|>Go to=there, to Ulm",
    ],
    ids=["a call", "the words of a recipient"],
)
def test_gpt_oss_after_a_thought(text):
    assert Text(request("harmony", thinking="harmony"), text).may_end


@FORMS
def test_a_parameters_name_stays_a_name(form):
    name = '"}\\| /ü'
    tools = [tool("x.y-z_1", {"properties": {name: {"type": "integer"}}})]
    assert Text(request(form.name, tools=tools), spelt(form, ("x.y-z_1", {name: 1}))).may_end


LONG = "x" * 65


@cases(
    "changes, why",
    r"""
    [{"tools": [{"name": "x\": 1}, {\"name\": \"y"}]}, "a tool's name has at most 64 letters"]
    [{"tools": [{"name": $LONG}]}, "a tool's name has at most 64 letters"]
    [{"tools": [{"name": "x"}, {"name": "x"}]}, "two tools have the same name"]
    [{"tools": []}, "there are no tools"]
    [{"choice": {"name": "get"}}, "no tool is named 'get'"]
    [{"choice": "any"}, "choice must be auto, required or a name"]
    [{"format": "none"}, "does not describe tools: KeyError: 'none'"]
    [{"thinking": "much"}, "does not describe tools: KeyError: 'much'"]
    [{"tools": {"name": "x"}}, "does not describe tools"]
    [{"tools": [{"name": "x", "parameters": [1]}]}, "does not describe tools"]
    """,
    LONG=LONG,
)
def test_tools_that_cannot_be_called(changes, why):
    assert why in compiled(request("hermes", **changes))["refused"]


# --- a schema never refuses a request

UNKEPT = rows(r"""
    [{"propertyNames": {"minLength": 2, "pattern": "x"}}, "propertyNames"]
    [{"not": {"type": "integer"}}, "not"]
    [{"type": "array", "items": {"type": "integer"}, "uniqueItems": true}, "uniqueItems"]
    [{"dependencies": {"a": ["b"]}}, "dependencies"]
    [{"type": "integer", "if": {"minimum": 1}, "then": {"maximum": 9}}, "if"]
    [{"type": "object", "properties": {"a": {"format": "iri", "type": "string"}}}, "iri"]
    [{"type": "array", "items": {"pattern": "^(?!x)", "type": "string"}}, "look-around"]
    [{"type": "array", "items": {"pattern": "^(a)\\1$", "type": "string"}}, "backreferences"]
    [{"type": "int"}, "int"]
    [{"type": "array", "items": 3}, "object or boolean"]
    [{"type": "array", "items": {"enum": [1, 9007199254740993]}}, "digits"]
    [{"$ref": "#/$defs/none"}, "none"]
    [{"$ref": "https://example.com/x.json"}, "example.com"]
    [{"type": "object", "properties": {"q": {"$ref": "#/$defs/bad"}}}, "type"]
    [{"oneOf": [{"type": "integer"}, {"minimum": 3}]}, "oneOf"]
    [{"type": "integer", "multipleOf": 1000000000000}, "multipleOf"]
    """)
"""Schemas of a parameter that a grammar cannot keep to, and a word of the reason."""

IN_JSON = ("hermes", "llama3", "generic", "qwen3_coder", "glm47", "deepseek32", "kimi_k3")
WITH_EACH_SCHEMA = ("hermes", "qwen3_coder")
"""One whose arguments are one JSON text, and one in which each argument is one."""

IGNORED = [(form, *UNKEPT[0]) for form in IN_JSON]
IGNORED += [(form, *unkept) for form in WITH_EACH_SCHEMA for unkept in UNKEPT[1:]]


@pytest.mark.parametrize(("form", "schema", "why"), IGNORED)
def test_an_ignored_schema_is_reported_and_the_rest_is_kept(form, schema, why):
    properties = {"m": schema, "n": {"type": "integer"}}
    parameters = {"properties": properties, "required": ["n"], "$defs": {"bad": {"type": 5}}}
    grammar = request(form, "required", tools=[tool("bad", parameters), *TOOLS])
    [(name, reason)] = compiled(grammar)["ignored"].items()
    assert name == "bad"
    assert why in str(reason) or "its type is not known" in str(reason)
    assert Text(grammar, spelt(FORMATS[form], ("bad", {"n": 1}))).may_end
    assert Text(grammar, spelt(FORMATS[form], ("bad", {"n": "x"}))).rest
    assert Text(grammar, spelt(FORMATS[form], ("get_weather", {"city": "Ulm"}))).rest


@FORMS
@cases("parameters", '{"type": "string"} {"type": ["array", "null"]}')
def test_parameters_that_are_no_object_may_be_any_object(form, parameters):
    grammar = request(form.name, tools=[tool("bad", parameters), *TOOLS])
    assert "not object" in str(compiled(grammar)["ignored"]["bad"])
    assert Text(grammar, spelt(form, ("bad", {"x": "y", "z": {"w": [1, None]}}))).may_end
    assert Text(grammar, spelt(form, ("get_weather", {"city": "Ulm"}))).rest


KEYWORDS = rows(r"""
    "type" "properties" "required" "items" "enum" "const" "anyOf" "oneOf" "allOf" "$ref"
    "pattern" "format" "minLength" "maxLength" "minItems" "minimum" "not" "if" "then"
    "additionalProperties" "propertyNames" "patternProperties" "minProperties" "$defs"
    "dependencies" "x" "a<b>" "a\nb"
    """)
JSON_SCHEMAS = st.recursive(
    st.sampled_from([None, True, 0, -1, 1.5, "x", "object", "a<b>", "^(", [], {}]),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(KEYWORDS), inner, max_size=3)
    ),
    max_leaves=12,
)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(
    st.sampled_from(sorted(FORMATS)),
    st.dictionaries(st.sampled_from(["properties", "required", "anyOf", "$defs"]), JSON_SCHEMAS),
)
def test_no_schema_refuses(form, parameters):
    grammar = request(form, tools=[tool("bad", parameters), *TOOLS])
    assert Text(grammar, spelt(FORMATS[form], TIME)).may_end


def test_a_parameter_whose_name_would_end_the_mark_is_left_out():
    names = {"a</arg_key><arg_value>b": {"type": "integer"}, "c<d>": {"type": "integer"}}
    grammar = request("glm47", tools=[tool("f", {"properties": names})])
    assert "has no place" in str(compiled(grammar)["ignored"]["f"])
    assert Text(grammar, spelt(FORMATS["glm47"], ("f", {"c<d>": 1}))).may_end


STRICT = rows(r"""
    [{"type": "object", "properties": {"a": {"pattern": "^(?!x)"}}}, "properties.a: regex parse"]
    [{"type": "object", "properties": {"a": {"not": {"const": 1}}}}, "properties.a: .*\"not\""]
    [{"type": "string"}, "its parameters are of type string, not object"]
    """)


@pytest.mark.parametrize(("parameters", "why"), STRICT)
def test_strict_that_cannot_be_kept_is_refused(parameters, why):
    """Strict of another tool refuses nothing."""
    tools = [*TOOLS, tool("bad", parameters)]
    refused = compiled(request("hermes", tools=tools, strict=["bad"]))
    assert re.search(f"bad has strict, which cannot be kept: {why}", refused["refused"])
    assert "lark" in compiled(request("hermes", tools=tools, strict=["get_time"]))


@pytest.mark.parametrize("form", ["gemma4", "qwen3_coder"])
def test_strict_is_refused_if_the_form_of_calls_has_no_place_for_it(form):
    pattern = {"type": "object", "properties": {"a": {"type": "string", "pattern": "x|(a^)"}}}
    refused = compiled(request(form, tools=[tool("bad", pattern)], strict=["bad"]))
    assert "bad has strict" in refused["refused"]


LONG_TEXT = "x" * 300


@cases(
    "schema, good, bad",
    r"""
    [{"maxLength": 3}, ["", "abc", "ü\n"], ["abcd"]]
    [{"minLength": 1}, ["a", "<p>", $LONG], ["", "\n</parameter>"]]
    [{"pattern": "^[a-z]+$"}, ["abc"], ["", "A", "a\n</parameter>\n"]]
    [{"pattern": "b$"}, ["ab"], ["a", "a\n</parameter>\nb"]]
    [{"pattern": "b|^c"}, ["abc", "cde", "\nb"], ["", "ac"]]
    [{"format": "date"}, ["2024-02-29"], ["2023-02-29", "today"]]
    [{"format": "uuid", "minLength": 3}, ["12345678-1234-1234-1234-123456789abc"], ["1234"]]
    [{"enum": ["a", "b</parameter>"]}, ["a", "b</parameter>"], ["c"]]
    """,
    LONG=LONG_TEXT,
)
def test_a_string_between_marks_keeps_to_its_schema(schema, good, bad):
    assert allowed_values({"type": "string"} | schema, good + bad) == good


@cases(
    "branches, good, bad",
    """
    [[{"type": "string", "const": "x"}, {"type": "string", "maxLength": 1}, {"type": "null"}],
     ["x", "y", "null"], ["yy"]]
    [[{"type": "string", "enum": ["on", "off"]}, {"type": "integer"}], ["on", "17"], ["so", "1.5"]]
    """,
)
def test_a_value_between_marks_keeps_to_a_branch(branches, good, bad):
    assert allowed_values({"anyOf": branches}, good + bad) == good


def allowed_values(schema, texts):
    parameters = {"properties": {"a": schema}, "required": ["a"]}
    grammar = request("qwen3_coder", tools=[tool("f", parameters)])
    found = []
    for text in texts:
        if Text(grammar, spelt(FORMATS["qwen3_coder"], ("f", {"a": text}))).may_end:
            found.append(text)
    return found


def test_of_too_many_tools_the_smallest_schemas_are_kept(monkeypatch):
    monkeypatch.setattr(tool_grammar, "_MOST_SUBSCHEMAS", 100)
    small = {"properties": {f"s{n}": {"type": "integer"} for n in range(5)}}
    large = {"properties": {f"l{n}": {"type": "integer"} for n in range(40)}}
    tools = [tool(f"large{n}", large) for n in range(3)]
    grammar = request("hermes", tools=[*tools, tool("small", small)])
    assert list(compiled(grammar)["ignored"]) == ["large2"]
    assert Text(grammar, spelt(HERMES, ("small", {"s1": "x"}))).rest
    assert Text(grammar, spelt(HERMES, ("large2", {"x": "x"}))).may_end


# --- a schema for the text that calls none


@FORMS
def test_a_text_is_calls_or_keeps_to_the_schema(form):
    grammar = request(form.name, schema=ANSWER)
    assert Text(grammar, '{"name": "get_time"}').may_end
    assert Text(grammar, spelt(form, TIME)).may_end
    if form.bare:
        assert Text(grammar, spelt(form, TIME).removeprefix(form.opening)).may_end


@FORMS
def test_other_texts_than_calls_and_the_schemas_are_refused(form):
    grammar = request(form.name, schema=ANSWER)
    for text in ("Well", '{"name": 1}', spelt(form, ("get_weather", {"city": "Ulm"}))):
        assert Text(grammar, text).rest


@cases("choice", '"required" {"name": "get_time"}')
def test_a_required_call_leaves_no_other_text(choice):
    assert Text(request("hermes", choice, schema=ANSWER), '{"name": "x"}').rest


@pytest.fixture
def vocabulary():
    """Return a vocabulary of bytes, with tokens for marks."""
    pieces = [bytes([byte]) for byte in range(256)]
    marks = [b"<tool_call>", b"</tool_call>", b'{"name": "', b'", "arguments": ', b""]
    return Vocabulary((*pieces, *marks), frozenset({260}))


def test_a_constraint_forces_a_call(vocabulary):
    grammar = check_grammar(Grammar(GrammarKind.TOOLS, request("hermes", tools=TOOLS[1:])))
    with closing(Grammars(vocabulary)) as grammars:
        constraint = grammars.compile(grammar)
        assert constraint.allows(260)
        assert constraint.forced() == ()
        constraint.accept(256)
        text = b"".join(vocabulary.pieces[token] for token in constraint.forced())
        assert text.startswith(b'\n{"name": "get_time", "arg')
        assert not constraint.allows(260)
