"""Texts with calls of tools that each family's grammar allows, and refuses."""

import json
import re
from contextlib import closing
from functools import cache
from typing import Any

import pytest
from called import Call, spelt
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer

from specmesh.core.sampling.constraint import Grammar, GrammarKind, check_grammar
from specmesh.core.text.reasoning import STYLES
from specmesh.core.text.tool_calls import ArgumentsPart, CallParser, TextPart
from specmesh.core.text.tool_formats import FORMATS, ID, STRING, TYPE, ToolFormat
from specmesh.core.vocabulary.vocabulary import Vocabulary
from specmesh.engines.grammar import Grammars
from specmesh.engines.grammar_source import answer

BYTES = LLTokenizer("byte")
DAYS = {"anyOf": [{"type": "integer"}, {"type": "null"}]}
WEATHER = {
    "properties": {"city": {"type": "string"}, "days": DAYS, "unit": {"$ref": "#/$defs/Unit"}},
    "required": ["city", "unit"],
    "$defs": {"Unit": {"type": "string", "enum": ["C", "F"]}},
}
TOOLS = [
    {"name": "get_weather", "parameters": WEATHER},
    {"name": "get_time", "description": "No arguments."},
]
TIME: Call = ("get_time", {})
FORMS = pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)


def request(
    form: str, choice: Any = "auto", *, tools: Any = TOOLS, parallel: Any = True, thinking: str = ""
) -> str:
    return json.dumps(
        {
            "tools": tools,
            "choice": choice,
            "parallel": parallel,
            "format": form,
            "thinking": thinking,
        }
    )


@cache
def begun(grammar: str) -> LLMatcher:
    answered = answer({"kind": "tools", "text": grammar})
    assert "lark" in answered, answered
    return LLMatcher(BYTES, str(answered["lark"]), log_level=0)


class Text:
    """How a text keeps to a grammar: what of it does not, whether it may end there, and what is
    forced then."""

    def __init__(self, grammar: str, text: str) -> None:
        matcher = begun(grammar).deep_copy()
        data = text.encode()
        self.rest = data[matcher.try_consume_tokens(list(data)) :].decode("utf-8", "replace")
        self.may_end = not self.rest and matcher.is_accepting()
        self.forced = bytes(matcher.compute_ff_bytes()).decode()


@FORMS
@pytest.mark.parametrize("choice", ["auto", "required", {"name": "get_weather"}])
def test_whole_calls_are_allowed(form, choice):
    for arguments in ({"city": "Köln \\ <b>", "unit": "C"}, {"city": "", "days": 3, "unit": "F"}):
        text = spelt(form, ("get_weather", arguments))
        assert Text(request(form.name, choice), text).may_end
        if form.bare:
            assert Text(request(form.name, choice), text.removeprefix(form.opening)).may_end


def says_types(form: ToolFormat) -> bool:
    """Whether a value's text differs from that of a text with the same letters."""
    return not form.parameter or STRING in form.parameter or TYPE in form.parameter


def up_to_id(text: str) -> str:
    """What of a form's text is always the same."""
    return text.partition(ID)[0]


@FORMS
@pytest.mark.parametrize("choice", ["auto", "required"])
def test_what_is_no_call_of_these_tools_is_refused(form, choice):
    def refused(name: str, **arguments: Any) -> str:
        return Text(request(form.name, choice), spelt(form, (name, arguments))).rest

    assert refused("get_wine").startswith("ine")
    assert refused("get_time", city="Ulm")
    assert refused("get_weather", city="Ulm")
    assert refused("get_weather", unit="C")
    assert refused("get_weather", city="Ulm", unit="K").startswith("K")
    assert "some" in refused("get_weather", city="Ulm", days="some", unit="C")
    assert refused("get_weather", city="Ulm", days=1.5, unit="C").startswith(".5")
    assert refused("get_weather", city="Ulm", unit="C", other=1)
    assert bool(refused("get_weather", city=1, unit="C")) == says_types(form)


@FORMS
def test_a_text_is_free_up_to_the_mark(form):
    grammar, begun = request(form.name), Text(request(form.name), f"Look: {form.trigger}")
    for text in (
        "",
        "No.",
        '{"answer": 1}',
        f"Not {form.trigger[:-1]}",
        "<think>ü</think>\n",
        '{ "name": "get"',
    ):
        assert Text(grammar, text).may_end
    assert not begun.may_end
    assert begun.forced.startswith(up_to_id(form.start.removeprefix(form.trigger) + "get_"))
    assert Text(grammar, f"{form.trigger} so").rest.startswith(" so")
    assert Text(grammar, spelt(form, TIME, before="Look: ")).may_end
    assert Text(grammar, f"{spelt(form, TIME)} and").rest == " and"


@FORMS
def test_what_a_name_leaves_open_is_forced(form):
    text, arguments = spelt(form, TIME), "" if form.parameter or form.syntax else "{}"
    begun = text.partition("get_t")[0] + "get_t"
    rest = up_to_id("ime" + form.after + arguments + form.end)
    assert Text(request(form.name), begun).forced.startswith(rest)
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
def test_several_calls_where_they_may_be_parallel(form):
    text = spelt(form, TIME, TIME, TIME)
    for choice in ("auto", "required"):
        assert Text(request(form.name, choice), text).may_end == (form.between is not None)
        assert Text(request(form.name, choice, parallel=False), text).rest
    assert Text(request(form.name, {"name": "get_time"}), text).rest


RICH: dict[str, Any] = {
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer", "minimum": -5, "maximum": 5000},
        "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 3},
        "place": {
            "type": "object",
            "properties": {"x": {"type": "number"}, "inner": {"$ref": "#/$defs/Inner"}},
            "required": ["x"],
        },
        "flag": {"type": "boolean"},
        "unit": {"enum": ["C", "it's"]},
        "other": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "integer"}}]},
        "grid": {"type": "array", "items": {"type": "array", "items": {"type": "boolean"}}},
        "free": {"type": "object", "additionalProperties": {"type": "integer"}},
        "é name": {"type": "null"},
    },
    "required": ["city"],
    "$defs": {"Inner": {"type": "object", "properties": {"deep": {"$ref": "#/$defs/Inner"}}}},
}
WORDS = st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]) | st.just("\n"), max_size=9)
INNER: Any = st.recursive(
    st.just({}), lambda one: st.fixed_dictionaries({}, optional={"deep": one}), max_leaves=3
)
VALUES: Any = st.fixed_dictionaries(
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
"""Forms that tell texts from other values, one of each kind."""


def in_order(arguments: dict[str, Any]) -> dict[str, Any]:
    """Arguments as the schema has them, one after the other."""
    ordered = {name: arguments[name] for name in RICH["properties"] if name in arguments}
    if "place" in ordered:
        place = ordered["place"]
        ordered["place"] = {name: place[name] for name in ("x", "inner") if name in place}
    return ordered


def arguments_read(form: ToolFormat, text: str) -> list[Any]:
    parser = CallParser(form, [{"name": "get", "parameters": RICH}])
    events = [*parser.feed(text), *parser.feed("", over=True)]
    parts = [one.text for one in events if isinstance(one, ArgumentsPart)]
    assert not any(isinstance(one, TextPart) for one in events)
    return [json.loads("".join(parts))]


@pytest.mark.parametrize("name", TYPED)
@given(VALUES)
def test_every_argument_that_a_schema_allows_can_be_written_and_is_read(name, arguments):
    form, ordered = FORMATS[name], in_order(arguments)
    text = spelt(form, ("get", ordered))
    grammar = request(form.name, "required", tools=[{"name": "get", "parameters": RICH}])
    written = Text(grammar, text)
    assert (written.rest, written.may_end) == ("", True)
    assert arguments_read(form, text) == [ordered]


@given(VALUES)
def test_arguments_between_marks_within_one_another(arguments):
    """MiniMax-M3's, where a list without items is an object or a text unless the schema says it."""
    form = FORMATS["minimax_m3"]
    ordered = in_order(arguments | {"city": "Ulm", "other": "x"})
    ordered.pop("tags", None)
    text = spelt(form, ("get", ordered))
    grammar = request(form.name, "required", tools=[{"name": "get", "parameters": RICH}])
    written = Text(grammar, text)
    assert (written.rest, written.may_end) == ("", True)
    assert arguments_read(form, text) == [ordered]


@pytest.mark.parametrize("style", STYLES.values(), ids=STYLES)
@pytest.mark.parametrize("choice", ["auto", "required"])
def test_a_thought_comes_first(style, choice):
    """It may mention calls; after it the text is free again only where it is anyway."""
    inside, maybe = (request("hermes", choice, thinking=style.name + mark) for mark in ("!", ""))
    made = spelt(FORMATS["hermes"], TIME)
    thought = f"I could {made}, or <tool_call> or not{style.end}"
    assert Text(inside, f"{thought}\n\n{made}").may_end
    assert Text(inside, thought[:-1]).may_end == (choice == "auto")
    assert Text(maybe, style.begin + thought + made).may_end
    assert Text(maybe, made).may_end
    assert not Text(maybe, style.begin + thought[:-1]).rest
    assert Text(maybe, f"{style.begin}a{style.end}\n\nThen").rest == (
        "" if choice == "auto" else "Then"
    )


def test_an_empty_answer_may_come_between_a_thought_and_calls_that_are_required():
    """As Kimi K3's template writes it."""
    grammar = request("kimi_k3", "required", thinking="kimi_k3!")
    answer = "<|open|>response<|sep|><|close|>response<|sep|>"
    call = spelt(FORMATS["kimi_k3"], TIME)
    assert Text(grammar, f"Hm<|close|>think<|sep|>{answer}{call}").may_end
    assert Text(grammar, f"Hm<|close|>think<|sep|>{call}").may_end


def test_gpt_oss_names_a_recipient_in_one_place():
    """Elsewhere, where it also may, neither its grammar nor the parser knows a call; an answer may
    have the words."""
    whole, thought = (
        request("harmony", thinking="harmony"),
        "<|channel|>analysis<|message|>Hm<|end|><|start|>assistant",
    )
    again = f"{thought}<|channel|>commentary<|message|>I look{thought[-25:]}"
    for before in ("", thought, "<|channel|>analysis", again):
        assert Text(whole, f"{before} to=functions.get_time").rest == "o=functions.get_time", before
        assert not Text(whole, f"{before} t").rest
    assert Text(whole, spelt(FORMATS["harmony"], TIME, before=thought)).may_end
    assert Text(whole, f"{thought}<|channel|>final<|message|>Go to=there, to Ulm").may_end


def one(**parameters: Any) -> list[dict[str, Any]]:
    return [{"name": "x.y-z_1", "parameters": parameters}]


@FORMS
def test_a_parameters_name_stays_a_name(form):
    text = spelt(form, ("x.y-z_1", {'"}\\| /ü': 1}))
    assert Text(
        request(form.name, tools=one(properties={'"}\\| /ü': {"type": "integer"}})), text
    ).may_end


@pytest.mark.parametrize(
    ("grammar", "why"),
    [
        (
            request("hermes", tools=[{"name": 'x": 1}, {"name": "y'}]),
            "a tool's name has at most 64 letters",
        ),
        (request("hermes", tools=[{"name": "x" * 65}]), "a tool's name has at most 64 letters"),
        (request("hermes", tools=[{"name": "x"}, {"name": "x"}]), "two tools have the same name"),
        (request("hermes", tools=[]), "there are no tools"),
        (request("hermes", {"name": "get"}), "no tool is named 'get'"),
        (request("hermes", "any"), "choice must be auto, required or a name"),
        (request("none"), "does not describe tools: KeyError: 'none'"),
        (request("hermes", thinking="much"), "does not describe tools: KeyError: 'much'"),
        (request("hermes", tools={"name": "x"}), "does not describe tools"),
        (request("hermes", tools=[{"name": "x", "parameters": [1]}]), "does not describe tools"),
        ("{}", "does not describe tools: KeyError: 'format'"),
    ],
)
def test_what_cannot_be_called_says_why(grammar, why):
    assert why in str(answer({"kind": "tools", "text": grammar}).get("refused"))


# --- a schema never refuses a request

UNKEPT: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"propertyNames": {"minLength": 2, "pattern": "x"}}, {}, "propertyNames"),
    ({"not": {"type": "integer"}}, {}, "not"),
    ({"type": "array", "items": {"type": "integer"}, "uniqueItems": True}, {}, "uniqueItems"),
    ({"dependencies": {"a": ["b"]}}, {}, "dependencies"),
    ({"type": "integer", "if": {"minimum": 1}, "then": {"maximum": 9}}, {}, "if"),
    ({"type": "object", "properties": {"a": {"format": "iri", "type": "string"}}}, {}, "iri"),
    ({"type": "array", "items": {"pattern": "^(?!x)", "type": "string"}}, {}, "look-around"),
    ({"type": "array", "items": {"pattern": r"^(a)\1$", "type": "string"}}, {}, "backreferences"),
    ({"type": "int"}, {}, "int"),
    ({"type": "array", "items": 3}, {}, "object or boolean"),
    ({"type": "array", "items": {"enum": [1, 2**53 + 1]}}, {}, "digits"),
    ({"$ref": "#/$defs/none"}, {}, "none"),
    ({"$ref": "https://example.com/x.json"}, {}, "example.com"),
    ({"type": "object", "properties": {"q": {"$ref": "#/$defs/p"}}}, {"p": {"type": 5}}, "type"),
    ({"oneOf": [{"type": "integer"}, {"minimum": 3}]}, {}, "oneOf"),
    ({"type": "integer", "multipleOf": 10**12}, {}, "multipleOf"),
]
"""Of a parameter: a schema that cannot be kept to, its definitions, and what is told of it."""

IN_JSON = ("hermes", "llama3", "generic", "qwen3_coder", "glm47", "deepseek32", "kimi_k3")


@pytest.mark.parametrize("form", IN_JSON)
@pytest.mark.parametrize(("schema", "definitions", "why"), UNKEPT)
def test_what_cannot_be_kept_to_is_told_and_the_rest_is_kept(form, schema, definitions, why):
    bad = {"properties": {"m": schema, "n": {"type": "integer"}}, "required": ["n"]}
    tools = [{"name": "bad", "parameters": bad | {"$defs": definitions}}, *TOOLS]
    grammar = request(form, "required", tools=tools)
    answered: Any = answer({"kind": "tools", "text": grammar})
    assert list(answered["ignored"]) == ["bad"]
    told = str(answered["ignored"])
    assert why in told or "its type is not known" in told
    assert Text(grammar, spelt(FORMATS[form], ("bad", {"n": 1}))).may_end
    assert Text(grammar, spelt(FORMATS[form], ("bad", {"n": "x"}))).rest
    assert Text(grammar, spelt(FORMATS[form], ("get_weather", {"city": "Ulm"}))).rest


ANY_ARGUMENTS: dict[str, Any] = {"x": "y", "z": {"w": [1, None]}}


@FORMS
@pytest.mark.parametrize(
    ("parameters", "why"),
    [({"type": "string"}, "not object"), ({"type": ["array", "null"]}, "not object")],
)
def test_a_schema_of_no_object_is_any_object(form, parameters, why):
    grammar = request(form.name, tools=[{"name": "bad", "parameters": parameters}, *TOOLS])
    answered: Any = answer({"kind": "tools", "text": grammar})
    assert why in str(answered["ignored"]["bad"])
    assert Text(grammar, spelt(form, ("bad", ANY_ARGUMENTS))).may_end
    assert Text(grammar, spelt(form, ("get_weather", {"city": "Ulm"}))).rest


KEYWORDS = [
    *(
        "type",
        "properties",
        "required",
        "items",
        "enum",
        "const",
        "anyOf",
        "oneOf",
        "allOf",
        "$ref",
    ),
    *("pattern", "format", "minLength", "maxLength", "minItems", "minimum", "not", "if", "then"),
    *("additionalProperties", "propertyNames", "patternProperties", "minProperties", "$defs"),
    *("dependencies", "x", "a<b>", "a\nb"),
]
JSON_SCHEMAS = st.recursive(
    st.sampled_from([None, True, 0, -1, 1.5, "x", "object", "a<b>", "^(", [], {}]),
    lambda inner: st.one_of(
        st.lists(inner, max_size=2),
        st.dictionaries(
            st.sampled_from(KEYWORDS),
            inner,
            max_size=3,
        ),
    ),
    max_leaves=12,
)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(
    st.sampled_from(sorted(FORMATS)),
    st.dictionaries(st.sampled_from(["properties", "required", "anyOf", "$defs"]), JSON_SCHEMAS),
)
def test_no_schema_refuses(form, parameters):
    grammar = request(form, tools=[{"name": "bad", "parameters": parameters}, *TOOLS])
    answered = answer({"kind": "tools", "text": grammar})
    assert "lark" in answered, answered
    assert Text(grammar, spelt(FORMATS[form], TIME)).may_end


def test_a_name_that_the_marks_cannot_hold_is_left_out():
    """Only the mark that would end it: a bracket alone is no trouble."""
    names = {"a</arg_key><arg_value>b": {"type": "integer"}, "c<d>": {"type": "integer"}}
    grammar = request("glm47", tools=one(properties=names))
    answered: Any = answer({"kind": "tools", "text": grammar})
    assert "has no place" in str(answered["ignored"]["x.y-z_1"])
    assert Text(grammar, spelt(FORMATS["glm47"], ("x.y-z_1", {"c<d>": 1}))).may_end


STRICT = [
    ({"type": "object", "properties": {"a": {"pattern": "^(?!x)"}}}, "properties.a: regex parse"),
    ({"type": "object", "properties": {"a": {"not": {"const": 1}}}}, 'properties.a: .*"not"'),
    ({"type": "string"}, "its parameters are of type string, not object"),
]


@pytest.mark.parametrize(("parameters", "why"), STRICT)
def test_strict_that_cannot_be_kept_is_refused_by_the_tools_name(parameters, why):
    tools = [*TOOLS, {"name": "bad", "parameters": parameters}]
    asked = json.loads(request("hermes", tools=tools))
    loose = answer({"kind": "tools", "text": json.dumps(asked | {"strict": ["get_time"]})})
    refused = answer({"kind": "tools", "text": json.dumps(asked | {"strict": ["bad"]})})
    assert "lark" in loose
    assert re.search(f"bad has strict, which cannot be kept: {why}", str(refused["refused"]))


@pytest.mark.parametrize("form", ["gemma4", "qwen3_coder"])
def test_strict_is_refused_where_the_form_of_calls_has_no_place_for_it(form):
    pattern = {"type": "object", "properties": {"a": {"type": "string", "pattern": "x|(a^)"}}}
    asked = json.loads(request(form, tools=[{"name": "bad", "parameters": pattern}]))
    refused = answer({"kind": "tools", "text": json.dumps(asked | {"strict": ["bad"]})})
    assert "bad has strict" in str(refused.get("refused"))


TEXTS: list[tuple[dict[str, Any], list[str], list[str]]] = [
    ({"maxLength": 3}, ["", "abc", "ü\n"], ["abcd"]),
    ({"minLength": 1}, ["a", "<p>", "x" * 300], ["", "\n</parameter>"]),
    ({"pattern": "^[a-z]+$"}, ["abc"], ["", "A", "a\n</parameter>\n"]),
    ({"pattern": "b$"}, ["ab"], ["a", "a\n</parameter>\nb"]),
    ({"pattern": "b|^c"}, ["abc", "cde", "\nb"], ["", "ac"]),
    ({"format": "date"}, ["2024-02-29"], ["2023-02-29", "today"]),
    ({"format": "uuid", "minLength": 3}, ["12345678-1234-1234-1234-123456789abc"], ["1234"]),
    ({"enum": ["a", "b</parameter>"]}, ["a", "b</parameter>"], ["c"]),
    ({"anyOf": [{"const": "x"}, {"maxLength": 1}, {"type": "null"}]}, ["x", "y", "null"], ["yy"]),
    ({"anyOf": [{"enum": ["on", "off"]}, {"type": "integer"}]}, ["on", "17"], ["so", "1.5"]),
]


@pytest.mark.parametrize(("schema", "good", "bad"), TEXTS)
def test_a_text_between_marks_keeps_to_its_schema(schema, good, bad):
    known = {"type": "string"} if "anyOf" not in schema else {}
    if known == {}:
        schema = {"anyOf": [{"type": "string"} | one for one in schema["anyOf"]]}
    tools = one(properties={"a": known | schema}, required=["a"])
    grammar = request("qwen3_coder", tools=tools)
    form = FORMATS["qwen3_coder"]
    taken = [
        text for text in good + bad if Text(grammar, spelt(form, ("x.y-z_1", {"a": text}))).may_end
    ]
    assert taken == good


def test_tools_that_are_too_many_keep_to_as_many_schemas_as_fit():
    """The smallest ones; the others' arguments are any object."""
    small, large = (
        {f"{name}{n}": {"type": "integer"} for n in range(size)}
        for name, size in (("s", 5), ("l", 4000))
    )
    tools = [
        *({"name": f"large{n}", "parameters": {"properties": large}} for n in range(3)),
        {"name": "small", "parameters": {"properties": small}},
    ]
    grammar = request("hermes", tools=tools)
    answered: Any = answer({"kind": "tools", "text": grammar})
    assert list(answered["ignored"]) == ["large2"]
    assert Text(grammar, spelt(FORMATS["hermes"], ("small", {"s1": "x"}))).rest
    assert Text(grammar, spelt(FORMATS["hermes"], ("large2", {"x": "x"}))).may_end


# --- a schema for the text that calls none

ANSWER = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


def with_schema(form: str, choice: Any = "auto", thinking: str = "") -> str:
    return json.dumps(json.loads(request(form, choice, thinking=thinking)) | {"schema": ANSWER})


@FORMS
def test_a_text_is_calls_or_of_the_schema(form):
    grammar = with_schema(form.name)
    assert Text(grammar, '{"name": "get_time"}').may_end
    assert Text(grammar, spelt(form, TIME)).may_end
    assert Text(grammar, "Well").rest
    assert Text(grammar, '{"name": 1}').rest
    assert Text(grammar, spelt(form, ("get_weather", {"city": "Ulm"}))).rest
    if form.bare:
        assert Text(grammar, spelt(form, TIME).removeprefix(form.opening)).may_end


def test_what_must_call_has_no_other_text():
    assert Text(with_schema("hermes", "required"), '{"name": "x"}').rest
    assert Text(with_schema("hermes", {"name": "get_time"}), '{"name": "x"}').rest


@pytest.mark.parametrize("style", STYLES.values(), ids=STYLES)
def test_a_thought_comes_before_the_schema_and_before_calls(style):
    inside, maybe, over = (
        with_schema("hermes", thinking=style.name + mark) for mark in ("!", "", ".")
    )
    called, said = spelt(FORMATS["hermes"], TIME), '{"name": "x"}'
    for text in (called, said):
        assert Text(inside, f"Hm{style.end}{text}").may_end
        assert Text(maybe, f"{style.begin}Hm{style.end}\n\n{text}").may_end
        assert Text(maybe, text).may_end
        assert Text(over, text).may_end
        assert not Text(inside, f"{text}").may_end
    assert not Text(inside, f"Hm{style.end}").may_end
    assert Text(inside, f"Hm{style.end}Then").rest.startswith("Then")
    assert Text(over, f"{style.begin}Hm").rest


def test_a_constraint_forces_a_call():
    """Of a vocabulary where marks are tokens."""
    marks = [b"<tool_call>", b"</tool_call>", b'{"name": "', b'", "arguments": ']
    vocabulary = Vocabulary(
        (*(bytes([byte]) for byte in range(256)), *marks, b""), frozenset({260})
    )
    with closing(Grammars(vocabulary)) as grammars:
        constraint = grammars.compile(
            check_grammar(Grammar(GrammarKind.TOOLS, request("hermes", tools=TOOLS[1:])))
        )
        assert constraint.allows(260)
        assert constraint.forced() == ()
        constraint.accept(256)
        text = b"".join(vocabulary.pieces[token] for token in constraint.forced())
        assert text.startswith(b'\n{"name": "get_time", "arg')
        assert not constraint.allows(260)
