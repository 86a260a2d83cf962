"""Calls of tools read from texts in each family's form, wherever a text is cut."""

import json
from itertools import pairwise
from typing import Any

import pytest
from called import Call, spelt
from hypothesis import given
from hypothesis import strategies as st

from specmesh.core.tool_calls import (
    FORMATS,
    TOOL_MARKS,
    ArgumentsPart,
    CallBegin,
    CallParser,
    TextPart,
    ToolFormat,
    as_json,
    detect,
)

TOOLS = [
    {"name": "get", "parameters": {"properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}},
    {"name": "get_time"},
]
GIVEN: dict[str, Any] = {"city": 'Köln "}{[<b>\\', "days": 3}
NO_CALLS = [
    "",
    "none",
    "<tool_call>\n{",
    "<tool_call>",
    "{",
    '{"name": "Bob"}',
    "[TOOL_CALLS]",
    "<|channel|>commentary",
]
FORMS = pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)


def read(form: ToolFormat, text: str, cuts: list[int], *, at_once: bool = False) -> tuple[str, list[tuple[str, str]]]:
    """The text, and the name and arguments of each call."""
    parser, said, calls = CallParser(form, TOOLS), "", list[tuple[str, str]]()
    bounds = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    fed = [(text[begin:end], at_once) for begin, end in pairwise(bounds)]
    for event in (event for piece, over in [*fed, ("", True)] for event in parser.feed(piece, over=over)):
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
def test_calls_are_read(form: ToolFormat, before: str):
    asked: list[Call] = [("get", GIVEN), ("get_time", {}), ("get", {})][: None if form.between is not None else 1]
    said, calls = read(form, spelt(form, *asked, before=before), [])
    assert said == before
    assert [(name, json.loads(arguments)) for name, arguments in calls] == asked


@given(
    st.sampled_from(list(FORMATS.values())),
    st.sampled_from(NO_CALLS),
    st.lists(st.sampled_from([("get", GIVEN), ("get_time", {}), ("other", {})]), max_size=3),
    st.integers(0, 60),
    st.lists(st.integers(0, 400), max_size=8),
)
def test_what_is_told_does_not_depend_on_cuts(
    form: ToolFormat, before: str, calls: list[Call], lost: int, cuts: list[int]
):
    """Not of texts either that end early, or name no tool."""
    text = spelt(form, *calls, before=before) if calls else before
    text = text[: len(text) - lost % (len(text) + 1)]
    whole = read(form, text, [], at_once=True)
    assert read(form, text, cuts) == read(form, text, list(range(len(text)))) == whole


@FORMS
def test_what_is_no_call_is_text(form: ToolFormat):
    for text in [*NO_CALLS, spelt(form, ("other", {}), before="x"), form.start, f"x {form.trigger} y"]:
        assert read(form, text, []) == (text, [])


def test_a_call_is_told_as_it_comes():
    parser = CallParser(FORMATS["hermes"], TOOLS)
    pieces = ("Hm <", 'b> <tool_call>\n{"name": "get', '", "arguments": {"ci', 'ty": "}', '"}', "}\n</tool_call>")
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


@pytest.mark.parametrize("form", [form for form in FORMATS.values() if form.between is not None], ids=lambda f: f.name)
def test_half_of_a_further_call_is_no_text(form: ToolFormat):
    one, two = (spelt(form, *[("get", {})] * count).removesuffix(form.closing) for count in (1, 2))
    named = len(f"{one}{form.between}{form.head}get{form.after}")
    assert [read(form, two[:end], []) for end in range(len(one), named)] == [("", [("get", "{}")])] * (named - len(one))


def test_an_early_end_leaves_what_came():
    text = spelt(FORMATS["qwen3_coder"], ("get", GIVEN))
    told = '{"city": ' + json.dumps(GIVEN["city"], ensure_ascii=False)
    assert read(FORMATS["qwen3_coder"], text[: text.index("days") - 3], []) == ("", [("get", told)])


ROOT = {"$defs": {"Colour": {"enum": ["red", "1"]}, "Loop": {"$ref": "#/$defs/Loop"}}}


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
        ("[" * 100_000, None, f'"{"[" * 100_000}"'),
    ],
)
def test_an_argument_between_marks_becomes_json_as_its_schema_says(text: str, schema: Any, written: str):
    assert as_json(text, schema, ROOT) == written


@FORMS
def test_a_template_shows_its_form(form: ToolFormat):
    assert detect("{{ tools }} " + " ".join(form.signs)) is form
    assert detect("{{ tool_calls }} " + " ".join(form.signs)) is FORMATS["generic"]


def test_marks_that_may_be_control_tokens():
    assert {"[TOOL_CALLS]", "<|python_tag|>", "<think>", "</tool_call>", "<|channel|>", "[/THINK]"} <= TOOL_MARKS
    assert sum("tool▁call" in mark for mark in TOOL_MARKS) == 4
    assert not any(set(mark) & set(' \n"=') for mark in TOOL_MARKS)
