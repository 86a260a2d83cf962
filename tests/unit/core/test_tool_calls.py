"""Calls of tools read from answers in each family's form, wherever a text is cut."""

# ruff: noqa: RUF001 - DeepSeek's marks have wide bars

import json
import re

import pytest
from called import cut_up, spelt
from harness.tables import cases, rows
from hypothesis import given
from hypothesis import strategies as st

from specmesh.core.text import tool_calls, tool_formats
from specmesh.core.text.tool_calls import ArgumentsPart, CallBegin, CallParser, TextPart
from specmesh.core.text.tool_formats import (
    FORMATS,
    GENERIC,
    TOOL_MARKS,
    ToolCall,
    write_calls,
)

PLACE = json.loads("""
    {
      "type": "object",
      "properties": {
        "x": {"type": "number"}, "names": {"type": "array", "items": {"type": "string"}}
      }
    }
    """)
(GET,) = rows(
    """
    {
      "city": {"type": "string"}, "days": {"type": "integer"},
      "tags": {"type": "array", "items": {"type": "string"}}, "place": $PLACE,
      "flag": {"type": "boolean"}, "other": {"type": ["string", "null"]}
    }
    """,
    PLACE=PLACE,
)
TOOLS = rows(
    """
    {"name": "get", "parameters": {"properties": $GET}}
    {"name": "get_time"}
    """,
    GET=GET,
)
GIVEN = json.loads(r"""
    {
      "city": "Köln \"}{[<b>\\ it's\n", "days": 3, "tags": ["a,b", "]", ""],
      "place": {"x": -1.5, "names": []}, "flag": true, "other": null
    }
    """)
NO_CALLS = ["", "none", "{", '{"name": "Bob"}', "[TOOL_CALLS]"]
NO_CALLS += ["<tool_call>", "<tool_call>\n{", "<|channel|>commentary"]
FORMS = pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)
Read = tuple[str, list[tuple[str, str]]]


def read(form, text, cuts, *, at_once=False, cut=False):
    """The text, and the name and arguments of each call."""
    parser, said, calls = CallParser(form, TOOLS), "", []
    events = []
    for piece in cut_up(text, cuts):
        events += parser.feed(piece, over=at_once, cut=cut and at_once)
    events += parser.feed("", over=True, cut=cut)
    for event in events:
        match event:
            case TextPart():
                said += event.text
            case CallBegin():
                calls.append((event.name, ""))
            case ArgumentsPart():
                calls[-1] = (calls[-1][0], calls[-1][1] + event.text)
    return said, calls


@FORMS
@pytest.mark.parametrize("before", ["", "I'll look.\n"])
def test_calls_are_read(form, before):
    asked = [("get", GIVEN), ("get_time", {}), ("get", {})][
        : None if form.between is not None else 1
    ]
    said, calls = read(form, spelt(form, *asked, before=before), [])
    assert said == before
    assert [(name, json.loads(arguments)) for name, arguments in calls] == asked


@given(
    st.sampled_from(list(FORMATS.values())),
    st.sampled_from(NO_CALLS),
    st.lists(st.sampled_from([("get", GIVEN), ("get_time", {}), ("other", {})]), max_size=3),
    st.integers(0, 60),
    st.lists(st.integers(0, 800), max_size=8),
    st.booleans(),
)
def test_what_is_read_does_not_depend_on_pieces(form, before, calls, lost, cuts, cut):
    """Not of texts either that end early, or name no tool."""
    text = spelt(form, *calls, before=before) if calls else before
    text = text[: len(text) - lost % (len(text) + 1)]
    whole = read(form, text, [], at_once=True, cut=cut)
    assert read(form, text, cuts, cut=cut) == whole
    assert read(form, text, list(range(len(text))), cut=cut) == whole


@FORMS
def test_what_is_no_call_is_text(form):
    texts = [spelt(form, ("other", {}), before="x"), f"x {form.trigger} y"]
    for text in [*texts, *(one for one in NO_CALLS if not one.startswith(form.trigger))]:
        assert read(form, text, []) == (text, [])


def before_arguments(form):
    """The letters of a call up to its name."""
    text = spelt(form, ("get_time", {}))
    return text.index("get_time") + len("get_time")


@FORMS
def test_a_call_that_ends_before_its_arguments_is_no_text(form):
    """Once its first mark is whole, only a call can follow; before that, where the length cut
    it."""
    text = spelt(form, ("get_time", {}))
    for size in range(1, before_arguments(form) + 1):
        assert read(form, f"x {text[:size]}", [], cut=True) == ("x ", [])
        if size >= len(form.trigger):
            assert read(form, f"x {text[:size]}", []) == ("x ", [])


@FORMS
def test_half_a_mark_with_which_the_model_ends_is_text(form):
    text = f"x {form.trigger[:-1]}"
    assert read(form, text, []) == (text, [])


def test_a_call_is_read_as_it_comes():
    parser = CallParser(FORMATS["hermes"], TOOLS)
    pieces = (
        "Hm <",
        'b> <tool_call>\n{"name": "get',
        '", "arguments": {"ci',
        'ty": "}',
        '"}',
        "}\n</tool_call>",
    )
    assert [parser.feed(piece) for piece in pieces] == [
        [TextPart("Hm ")],
        [TextPart("<b> ")],
        [CallBegin("get"), ArgumentsPart("{"), ArgumentsPart('"ci')],
        [ArgumentsPart('ty": "}')],
        [ArgumentsPart('"}')],
        [],
    ]


def test_llama_calls_without_its_mark_only_at_the_start():
    bare = '{"name": "get", "parameters": {"days": 1}}'
    assert read(FORMATS["llama3"], bare, []) == ("", [("get", '{"days": 1}')])
    assert read(FORMATS["llama3"], f"So: {bare}", []) == (f"So: {bare}", [])


@pytest.mark.parametrize(
    "form", [form for form in FORMATS.values() if form.between is not None], ids=lambda f: f.name
)
def test_half_of_a_further_call_is_no_text(form):
    one, two = (spelt(form, *[("get", {})] * count).removesuffix(form.closing) for count in (1, 2))
    named = two.index("get", len(one)) + len("get")
    for end in range(len(one), named):
        assert read(form, two[:end], []) == ("", [("get", "{}")])


def test_an_early_end_leaves_what_came():
    text = spelt(FORMATS["qwen3_coder"], ("get", GIVEN))
    came = '{"city": ' + json.dumps(GIVEN["city"], ensure_ascii=False)
    assert read(FORMATS["qwen3_coder"], text[: text.index("days") - 3], []) == ("", [("get", came)])


@cases(
    "name, text, arguments",
    r"""
    ["gemma4", "call:get{city:<|\"|>a<|\"|>,days:2}", {"city": "a", "days": 2}]
    [
      "gemma4", "call:get{ days : 2 , place: {x: 1, names: [<|\"|>b<|\"|>]} }",
      {"days": 2, "place": {"x": 1, "names": ["b"]}}
    ]
    ["gemma4", "call:get{other:None,flag:false}", {"other": null, "flag": false}]
    ["gemma4", "call:get{city:Ulm}", {"city": "Ulm"}]
    [
      "lfm2", "get(city=\"it's\", flag=True, other=None)",
      {"city": "it's", "flag": true, "other": null}
    ]
    ["lfm2", "get(city='a\\'b\\n\\u00e9\\q')", {"city": "a'b\né\\q"}]
    [
      "lfm2", "get(place={'x': 1e2, \"names\": []}, tags=['a', \"b\"])",
      {"place": {"x": 100.0, "names": []}, "tags": ["a", "b"]}
    ]
    ["lfm2", "get(flag=true, other=null)", {"flag": true, "other": null}]
    """,
)
def test_values_in_a_syntax_of_their_own(name, text, arguments):
    form = FORMATS[name]
    start = form.opening + (form.head if name == "gemma4" else "")
    begun = text.removeprefix("call:") if name == "gemma4" else text
    end = "<tool_call|>" if name == "gemma4" else form.closing
    _, [(_, told)] = read(form, start + begun + end, [])
    assert json.loads(told) == arguments


@pytest.mark.parametrize("name", ["gemma4", "lfm2", "minimax_m3"])
def test_values_within_one_another_without_end_stop_a_call(name):
    form = FORMATS[name]
    deep = {"gemma4": "[", "lfm2": "[", "minimax_m3": f"{form.tag}<item>"}[name] * 5000
    begin = spelt(form, ("get", {"tags": [""]})).partition("tags")[0]
    read(
        form, f"{begin}tags{':' if name == 'gemma4' else '=' if name == 'lfm2' else '>'}{deep}", []
    )


ROOT = json.loads("""
    {"$defs": {"Colour": {"enum": ["red", "1"]}, "Loop": {"$ref": "#/$defs/Loop"}}}
    """)


@pytest.mark.parametrize(
    ("text", "schema", "written"),
    [
        ("1", {"type": "string"}, '"1"'),
        ("1", {"type": "number"}, "1"),
        ("1", {"$ref": "#/$defs/Colour"}, '"1"'),
        ("1", {"$ref": "#/$defs/Loop"}, "1"),
        ("1", {"anyOf": [{"type": "string"}, {"type": "null"}]}, '"1"'),
        ("null", {"anyOf": [{"type": "string"}, {"type": "null"}]}, "null"),
        ('"a"', {"type": ["string", "null"]}, '"\\"a\\""'),
        ('[1, {"a": "é"}]', {"type": "array"}, '[1, {"a": "é"}]'),
        ("NaN", {"type": "number"}, '"NaN"'),
        ("-1e9999", {"type": "number"}, "-1e9999"),
        ("[" * 100_000, None, f'"{"[" * 100_000}"'),
    ],
)
def test_an_argument_between_marks_becomes_json_as_its_schema_says(text, schema, written):
    assert tool_calls.as_json(text, schema, ROOT) == written


JSON_ENDS = json.loads("""
    {
      "properties": {
        "a": {"type": "object"}, "b": {"type": "array"}, "c": {"type": "string"},
        "n": {"type": "number"}
      }
    }
    """)


@pytest.mark.parametrize("name", ["glm47", "kimi_k3", "deepseek32"])
def test_json_between_marks_may_have_the_mark_in_a_string(name):
    """A text may not: there the mark ends it."""
    form = FORMATS[name]
    end = form.param_end
    arguments = {"a": {"x": f"{end}, {end}"}, "b": [end], "c": "t", "n": 1}
    text = spelt(form, ("f", arguments))
    parser = CallParser(form, [{"name": "f", "parameters": JSON_ENDS}])
    events = parser.feed(text, over=True)
    written = "".join(one.text for one in events if isinstance(one, ArgumentsPart))
    assert json.loads(written) == arguments
    assert parser.whole


@cases(
    "schema",
    """
    {"type": 5}
    {"anyOf": 3}
    {"type": [1]}
    {"enum": 1}
    {"$ref": 1}
    """,
)
def test_types_of_what_is_no_schema(schema):
    assert tool_calls.types_of(schema, {}) == set()


@pytest.mark.parametrize(
    "form", [form for form in FORMATS.values() if form.signs], ids=lambda form: form.name
)
def test_a_template_that_writes_no_calls_shows_signs_of_their_form(form):
    assert tool_formats.detect("{{ tools }} " + " ".join(form.signs)) is form
    assert tool_formats.detect("{{ tool_calls }} <tool_call>") is GENERIC


@pytest.mark.parametrize(
    "form",
    [form for form in FORMATS.values() if form is not GENERIC and not form.history],
    ids=lambda form: form.name,
)
def test_the_form_of_a_call_that_a_template_writes(form):
    """Its id is the client's, or a number; other blanks change nothing."""
    call = ToolCall("abcdef123", "f", '{"a": "b", "c": 1}')
    text = write_calls(form, [call])
    found = tool_formats.detect_written(f"x{text}y", call)
    assert found is not None
    assert write_calls(found, [call]) == text
    spread = re.sub(r"(?<=[>:,])(?=\S)", "  ", text)
    again = tool_formats.detect_written(spread, call)
    assert again is not None
    assert "".join(write_calls(again, [call]).split()) == "".join(text.split())


@pytest.mark.parametrize("name", ["harmony", "llama4"])
def test_a_form_that_differs_in_earlier_turns(name):
    form = FORMATS[name]
    text = form.history.replace("$NAME", "f").replace("$ARGS", "{}")
    assert tool_formats.detect_written(f"x{text}y", ToolCall("1", "f", "{}")) is form


def test_calls_of_no_known_form():
    call = ToolCall("1", "f", "{}")
    assert tool_formats.detect_written("<call><tool_call>f({})</call>", call) is None


@pytest.mark.parametrize("arguments", ["", "no JSON", '{"cut": ', "[1]", "null"])
@FORMS
def test_arguments_that_are_no_object_are_written(form, arguments):
    text = write_calls(form, [ToolCall("1", "f", arguments)])
    assert "f" in text
    assert (arguments in text) or form.parameter or form.syntax


@FORMS
def test_the_marks_of_a_form_may_be_control_tokens(form):
    """Each mark with angle brackets and bars, or in capital brackets, has its text."""
    text = form.opening + form.call + form.parameter + form.closing
    marks = re.findall(r"<\|[\w:]+\|>|<｜\w+｜>|\[[A-Z_]+\]|<\|\w+>|<\w+\|>", text)
    assert set(marks) <= TOOL_MARKS


def test_marks_that_may_be_control_tokens():
    assert {
        "[TOOL_CALLS]",
        "<|python_tag|>",
        "<think>",
        "</tool_call>",
        "<|channel|>",
        "[/THINK]",
        '<|"|>',
        "<|channel>",
        "<channel|>",
        "<tool_call|>",
        "]<]minimax[>[",
        "<|sep|>",
        "｜DSML｜",
        "<|START_RESPONSE|>",
        "<|inner_suffix|>",
    } <= TOOL_MARKS
    assert sum("tool▁call" in mark for mark in TOOL_MARKS) == 4
    assert not any(set(mark) & set(" \n=") for mark in TOOL_MARKS)
