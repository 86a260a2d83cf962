"""Calls of tools read from texts in each family's form, wherever a text is cut."""

import json
from itertools import pairwise
from typing import Any

import pytest
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
    generic_prompt,
)

TOOLS = [
    {"name": "get", "parameters": {"properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}},
    {"name": "get_time"},
]
GIVEN: dict[str, Any] = {"city": 'Köln "}{[<b>\\', "days": 3}
Told = tuple[str, list[tuple[str, str]]]
"""A text, and the name and arguments of each call."""


def call(form: ToolFormat, name: str, arguments: dict[str, Any]) -> str:
    """What follows the head."""
    if not form.param_begin:
        return name + form.after + json.dumps(arguments) + form.end
    spelt = {key: value if isinstance(value, str) else json.dumps(value) for key, value in arguments.items()}
    parts = [form.param_begin + key + form.param_middle + value + form.param_end for key, value in spelt.items()]
    return name + form.after + "".join(parts) + form.end


def text_of(form: ToolFormat, before: str, calls: list[tuple[str, dict[str, Any]]]) -> str:
    between = (form.between or "") + form.head
    return before + form.start + between.join(call(form, *one) for one in calls) + form.closing


def read(form: ToolFormat, text: str, cuts: list[int] | None = None) -> Told:
    parser, said, calls = CallParser(form, TOOLS), "", list[tuple[str, str]]()
    bounds = [0, *sorted(cut % (len(text) + 1) for cut in cuts or ()), len(text)]
    for event in [
        *(event for begin, end in pairwise(bounds) for event in parser.feed(text[begin:end])),
        *parser.feed("", over=True),
    ]:
        match event:
            case TextPart():
                said += event.text
            case CallBegin():
                calls.append((event.name, ""))
            case ArgumentsPart():
                calls[-1] = (calls[-1][0], calls[-1][1] + event.text)
    return said, calls


@pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)
def test_calls_are_read(form: ToolFormat):
    asked = [("get", GIVEN), ("get_time", {}), ("get", {})][: None if form.between is not None else 1]
    for before in ("", "I'll look.\n"):
        said, calls = read(form, text_of(form, before, asked))
        assert said == before
        assert [(name, json.loads(arguments)) for name, arguments in calls] == asked


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


@given(
    st.sampled_from(list(FORMATS.values())),
    st.sampled_from(NO_CALLS),
    st.lists(st.sampled_from([("get", GIVEN), ("get_time", {}), ("other", {})]), max_size=3),
    st.integers(0, 60),
    st.lists(st.integers(0, 400), max_size=8),
)
def test_what_is_told_does_not_depend_on_cuts(
    form: ToolFormat, before: str, calls: list[tuple[str, dict[str, Any]]], lost: int, cuts: list[int]
):
    """Not of texts either that end early, or name no tool."""
    text = text_of(form, before, calls) if calls else before
    text = text[: len(text) - lost % (len(text) + 1)]
    whole = read(form, text)
    assert read(form, text, cuts) == read(form, text, list(range(len(text)))) == whole
    parser, said = CallParser(form, TOOLS), ""
    for event in parser.feed(text, over=True):
        said += event.text if isinstance(event, TextPart) else ""
    assert said == whole[0]


@pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)
def test_what_is_no_call_is_text(form: ToolFormat):
    for text in [*NO_CALLS, text_of(form, "x", [("other", {})]), form.start, f"x {form.trigger} y"]:
        assert read(form, text) == (text, [])


def test_a_call_is_told_as_it_comes():
    parser = CallParser(FORMATS["hermes"], TOOLS)
    told = [
        parser.feed(piece)
        for piece in (
            "Hm <",
            'b> <tool_call>\n{"name": "get',
            '", "arguments": {"ci',
            'ty": "}',
            '"}',
            "}\n</tool_call>",
        )
    ]
    assert told == [
        [TextPart("Hm ")],
        [TextPart("<b> ")],
        [CallBegin("get"), ArgumentsPart("{"), ArgumentsPart('"ci')],
        [ArgumentsPart('ty": "}')],
        [ArgumentsPart('"}')],
        [],
    ]
    assert parser.feed("", over=True) == []


def test_llama_calls_without_its_mark_only_at_the_start():
    bare = '{"name": "get", "parameters": {"days": 1}}'
    assert read(FORMATS["llama3"], bare) == ("", [("get", '{"days": 1}')])
    assert read(FORMATS["llama3"], f"So: {bare}") == (f"So: {bare}", [])


def test_an_early_end_leaves_what_came():
    form = FORMATS["qwen3_coder"]
    text = text_of(form, "", [("get", GIVEN)])
    assert read(form, text[: text.index("days") - 3]) == ("", [("get", f'{{"city": {as_json(GIVEN["city"], {}, {})}')])


ROOT = {"$defs": {"Colour": {"enum": ["red", "1"]}, "Loop": {"$ref": "#/$defs/Loop"}}}


@pytest.mark.parametrize(
    ("text", "schema", "written"),
    [
        ("1", {"type": "string"}, '"1"'),
        ("1", {"type": "integer"}, "1"),
        ("1", {"type": "number"}, "1"),
        ("1", {"$ref": "#/$defs/Colour"}, '"1"'),
        ("1", {"$ref": "#/$defs/Nothing"}, "1"),
        ("1", {"$ref": "#/$defs/Loop"}, "1"),
        ("1", {"anyOf": [{"type": "string"}, {"type": "null"}]}, '"1"'),
        ("null", {"anyOf": [{"type": "string"}, {"type": "null"}]}, "null"),
        ("null", {"type": ["string", "null"]}, "null"),
        ('"a"', {"type": ["string", "null"]}, '"\\"a\\""'),
        ("true", {"const": True}, "true"),
        ('[1, {"a": "é"}]', {"type": "array"}, '[1, {"a": "é"}]'),
        ("[1", {"type": "array"}, '"[1"'),
        ("NaN", {"type": "number"}, '"NaN"'),
        ("1e999", None, '"1e999"'),
        ("[" * 100_000, None, f'"{"[" * 100_000}"'),
        ("é\n", None, '"é\\n"'),
    ],
)
def test_an_argument_between_marks_becomes_json_as_its_schema_says(text: str, schema: Any, written: str):
    assert as_json(text, schema, ROOT) == written


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("{% for tool in tools %}<tool_call>", "hermes"),
        ("{% for tool in tools %}<tool_call><function=x><parameter=y>", "qwen3_coder"),
        ("{{ tools }} <tool_call>{name}\n<arg_key>k</arg_key>\n<arg_value>", "glm"),
        ("{{ tools }} <tool_call>{name}<arg_key>k</arg_key><arg_value>", "glm47"),
        ("{{ tools }} [TOOL_CALLS] [", "mistral"),
        ("{{ tools }} [TOOL_CALLS]x[ARGS]", "mistral_args"),
        ("{{ tools }} function<｜tool▁sep｜>x\\n```json", "deepseek"),  # noqa: RUF001
        ("{{ tools }} x<｜tool▁sep｜>", "deepseek31"),  # noqa: RUF001
        ("{{ tools }} <|start|>assistant to=functions. <|channel|>commentary", "harmony"),
        ('{{ tools }} <|start_header_id|> "parameters": ', "llama3"),
        ("{{ tools }} in no form known here", "generic"),
        ("{{ message.tool_calls }} <tool_call>", "generic"),
    ],
)
def test_a_template_shows_its_form(template: str, name: str):
    assert detect(template) is FORMATS[name]


def test_a_model_is_told_of_tools_in_words():
    told = generic_prompt(TOOLS)
    assert all(json.dumps(tool) in told for tool in TOOLS)
    assert '<tool_call>\n{"name": "NAME", "arguments": ARGUMENTS}\n</tool_call>' in told


def test_marks_that_may_be_control_tokens():
    assert {"[TOOL_CALLS]", "<|python_tag|>", "<think>", "</tool_call>", "<|channel|>", "[/THINK]"} <= TOOL_MARKS
    assert {"<｜tool▁calls▁begin｜>", "<｜tool▁call▁end｜>"} <= TOOL_MARKS  # noqa: RUF001
    assert not any(set(mark) & set(' \n"') for mark in TOOL_MARKS)
