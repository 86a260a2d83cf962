"""Calls of tools read from answers in each family's form, wherever a text is cut."""

# ruff: noqa: RUF001 - DeepSeek's marks have wide bars

import json
import re
from dataclasses import astuple

import pytest
from called import cut_up, spelt
from harness.tables import cases, rows
from hypothesis import given
from hypothesis import strategies as st

from specmesh.core.text import tool_calls, tool_detection
from specmesh.core.text.tool_calls import ArgumentsPart, CallBegin, CallParser, TextPart
from specmesh.core.text.tool_formats import FORMATS, GENERIC, TOOL_MARKS, ToolCall
from specmesh.core.text.tool_writing import write_calls

TOOLS = rows("""
    {"name": "get", "parameters": {"properties": {
      "city": {"type": "string"},
      "days": {"type": "integer"},
      "tags": {"type": "array", "items": {"type": "string"}},
      "place": {"type": "object", "properties": {
        "x": {"type": "number"}, "names": {"type": "array", "items": {"type": "string"}}
      }},
      "flag": {"type": "boolean"},
      "other": {"type": ["string", "null"]}
    }}}
    {"name": "get_time"}
    """)
GIVEN = json.loads(r"""
    {
      "city": "Köln \"}{[<b>\\ it's\n", "days": 3, "tags": ["a,b", "]", ""],
      "place": {"x": -1.5, "names": []}, "flag": true, "other": null
    }
    """)
NO_CALLS = rows(r"""
    "" "none" "{" "{\"name\": \"Bob\"}" "[TOOL_CALLS]" "<tool_call>" "<tool_call>\n{"
    "<|channel|>commentary"
    """)
FORMS = pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)
PARALLEL = [form for form in FORMATS.values() if form.between is not None]


def read(form, text, cuts=(), *, at_once=False, cut=False):
    """Return the text, and the name and arguments of each call."""
    parser = CallParser(form, TOOLS)
    events = []
    for piece in cut_up(text, cuts):
        events += parser.feed(piece, over=at_once, cut=cut and at_once)
    events += parser.feed("", over=True, cut=cut)
    shown = ""
    calls = []
    for event in events:
        match event:
            case TextPart():
                shown += event.text
            case CallBegin():
                calls.append((event.name, ""))
            case ArgumentsPart():
                name, arguments = calls.pop()
                calls.append((name, arguments + event.text))
    return shown, calls


@FORMS
@pytest.mark.parametrize("before", ["", "I'll look.\n"])
def test_calls_are_read(form, before):
    """Some forms have only one."""
    calls = [("get", GIVEN), ("get_time", {}), ("get", {})]
    if form.between is None:
        del calls[1:]
    shown, found = read(form, spelt(form, *calls, before=before))
    assert shown == before
    assert [(name, json.loads(arguments)) for name, arguments in found] == calls


SAMPLES = [("get", GIVEN), ("get_time", {}), ("other", {})]


@given(
    form=st.sampled_from(list(FORMATS.values())),
    before=st.sampled_from(NO_CALLS),
    calls=st.lists(st.sampled_from(SAMPLES), max_size=3),
    lost=st.integers(0, 60),
    cuts=st.lists(st.integers(0, 800), max_size=8),
    cut=st.booleans(),
)
def test_a_text_is_read_the_same_in_any_pieces(form, before, calls, lost, cuts, cut):
    """The text may end early, or name no tool."""
    text = spelt(form, *calls, before=before) if calls else before
    text = text[: len(text) - lost % (len(text) + 1)]
    whole = read(form, text, at_once=True, cut=cut)
    letters = range(len(text))
    for places in (cuts, letters):
        assert read(form, text, places, cut=cut) == whole


@FORMS
def test_other_texts_are_no_calls(form):
    texts = [spelt(form, ("other", {}), before="x"), f"x {form.trigger} y"]
    texts += [text for text in NO_CALLS if not text.startswith(form.trigger)]
    for text in texts:
        assert read(form, text) == (text, [])


@FORMS
def test_a_call_that_ends_before_its_arguments_is_no_text(form):
    """Unless the length cuts it, only a call can follow a whole first mark."""
    text = spelt(form, ("get_time", {})).partition("get_time")[0] + "get_time"
    for size in range(1, len(text) + 1):
        assert read(form, f"x {text[:size]}", cut=True) == ("x ", [])
    for size in range(len(form.trigger), len(text) + 1):
        assert read(form, f"x {text[:size]}") == ("x ", [])


@FORMS
def test_half_a_mark_with_which_the_model_ends_is_text(form):
    text = f"x {form.trigger[:-1]}"
    assert read(form, text) == (text, [])


PIECES = rows(r"""
    ["Hm <", [["TextPart", "Hm "]]]
    ["b> <tool_call>\n{\"name\": \"get", [["TextPart", "<b> "]]]
    ["\", \"arguments\": {\"ci",
     [["CallBegin", "get"], ["ArgumentsPart", "{"], ["ArgumentsPart", "\"ci"]]]
    ["ty\": \"}", [["ArgumentsPart", "ty\": \"}"]]]
    ["\"}", [["ArgumentsPart", "\"}"]]]
    ["}\n</tool_call>", []]
    """)


def test_a_call_is_read_as_it_comes():
    parser = CallParser(FORMATS["hermes"], TOOLS)
    for piece, expected in PIECES:
        events = parser.feed(piece)
        assert [[type(event).__name__, *astuple(event)] for event in events] == expected


@pytest.mark.parametrize("before", ["", "So: "])
def test_llama_calls_without_its_mark_only_at_the_start(before):
    bare = '{"name": "get", "parameters": {"days": 1}}'
    expected = (before + bare, []) if before else ("", [("get", '{"days": 1}')])
    assert read(FORMATS["llama3"], before + bare) == expected


@pytest.mark.parametrize("form", PARALLEL, ids=lambda form: form.name)
def test_half_of_a_further_call_is_no_text(form):
    one = spelt(form, ("get", {})).removesuffix(form.closing)
    two = spelt(form, ("get", {}), ("get", {})).removesuffix(form.closing)
    named = two.index("get", len(one)) + len("get")
    for end in range(len(one), named):
        assert read(form, two[:end]) == ("", [("get", "{}")])


def test_the_arguments_up_to_an_early_end_are_kept():
    form = FORMATS["qwen3_coder"]
    text = spelt(form, ("get", GIVEN))
    begun, _, _ = text.partition("<parameter=days")
    _, [(_, arguments)] = read(form, begun)
    assert json.loads(arguments + "}") == {"city": GIVEN["city"]}


SYNTAX = rows(r"""
    ["gemma4", "{city:<|\"|>a<|\"|>,days:2}", {"city": "a", "days": 2}]
    ["gemma4", "{ days : 2 , place: {x: 1, names: [<|\"|>b<|\"|>]} }",
     {"days": 2, "place": {"x": 1, "names": ["b"]}}]
    ["gemma4", "{other:None,flag:false}", {"other": null, "flag": false}]
    ["gemma4", "{city:Ulm}", {"city": "Ulm"}]
    ["lfm2", "(city=\"it's\", flag=True, other=None)",
     {"city": "it's", "flag": true, "other": null}]
    ["lfm2", "(city='a\\'b\\n\\u00e9\\q')", {"city": "a'b\né\\q"}]
    ["lfm2", "(place={'x': 1e2, \"names\": []}, tags=['a', \"b\"])",
     {"place": {"x": 100.0, "names": []}, "tags": ["a", "b"]}]
    ["lfm2", "(flag=true, other=null)", {"flag": true, "other": null}]
    """)
EMPTY = {"gemma4": "{}", "lfm2": "()"}


@pytest.mark.parametrize(("name", "text", "arguments"), SYNTAX)
def test_values_in_a_syntax_of_their_own(name, text, arguments):
    form = FORMATS[name]
    begin, _, end = spelt(form, ("get", {})).partition(EMPTY[name])
    _, [(_, written)] = read(form, begin + text + end)
    assert json.loads(written) == arguments


@pytest.mark.parametrize(
    ("name", "begin", "deeper"),
    [("gemma4", ":", "["), ("lfm2", "=", "["), ("minimax_m3", ">", "$TAG<item>")],
)
def test_values_that_nest_without_end_stop_a_call(name, begin, deeper):
    form = FORMATS[name]
    begun = spelt(form, ("get", {"tags": [""]})).partition("tags")[0]
    deep = deeper.replace("$TAG", form.tag) * 5000
    _, calls = read(form, f"{begun}tags{begin}{deep}")
    assert len(calls) == 1


ROOT = json.loads("""
    {"$defs": {"Colour": {"enum": ["red", "1"]}, "Loop": {"$ref": "#/$defs/Loop"}}}
    """)


@cases(
    "text, schema, written",
    r"""
    ["1", {"type": "string"}, "\"1\""]
    ["1", {"type": "number"}, "1"]
    ["1", {"$ref": "#/$defs/Colour"}, "\"1\""]
    ["1", {"$ref": "#/$defs/Loop"}, "1"]
    ["1", {"anyOf": [{"type": "string"}, {"type": "null"}]}, "\"1\""]
    ["null", {"anyOf": [{"type": "string"}, {"type": "null"}]}, "null"]
    ["\"a\"", {"type": ["string", "null"]}, "\"\\\"a\\\"\""]
    ["[1, {\"a\": \"é\"}]", {"type": "array"}, "[1, {\"a\": \"é\"}]"]
    ["NaN", {"type": "number"}, "\"NaN\""]
    ["-1e9999", {"type": "number"}, "-1e9999"]
    [$DEEP, null, $TEXT]
    """,
    DEEP="[" * 100_000,
    TEXT=f'"{"[" * 100_000}"',
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
def test_a_value_that_is_no_schema_has_no_types(schema):
    assert tool_calls.types_of(schema, {}) == set()


@pytest.mark.parametrize(
    "form", [form for form in FORMATS.values() if form.signs], ids=lambda form: form.name
)
def test_a_template_that_writes_no_calls_shows_signs_of_their_form(form):
    assert tool_detection.detect("{{ tools }} " + " ".join(form.signs)) is form
    assert tool_detection.detect("{{ tool_calls }} <tool_call>") is GENERIC


LISTED = [form for form in FORMATS.values() if form is not GENERIC and not form.history]


WRITTEN = ToolCall("abcdef123", "f", '{"a": "b", "c": 1}')


@pytest.mark.parametrize("form", LISTED, ids=lambda form: form.name)
def test_the_form_of_a_call_that_a_template_writes(form):
    """A call's id is the client's, or a number; blanks change nothing."""
    text = write_calls(form, [WRITTEN])
    found = tool_detection.detect_written(f"x{text}y", WRITTEN)
    assert write_calls(found, [WRITTEN]) == text
    spread = re.sub(r"(?<=[>:,])(?=\S)", "  ", text)
    found = tool_detection.detect_written(f"x{spread}y", WRITTEN)
    assert "".join(write_calls(found, [WRITTEN]).split()) == "".join(text.split())


@pytest.mark.parametrize("name", ["harmony", "llama4"])
def test_a_form_that_differs_in_earlier_turns(name):
    form = FORMATS[name]
    text = form.history.replace("$NAME", "f").replace("$ARGS", "{}")
    assert tool_detection.detect_written(f"x{text}y", ToolCall("1", "f", "{}")) is form


def test_calls_of_no_known_form():
    call = ToolCall("1", "f", "{}")
    assert tool_detection.detect_written("<call><tool_call>f({})</call>", call) is None


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
    marks = """[TOOL_CALLS] <|python_tag|> <think> </tool_call> <|channel|> [/THINK] <|"|>
        <|channel> <channel|> <tool_call|> ]<]minimax[>[ <|sep|> ｜DSML｜ <|START_RESPONSE|>
        <|inner_suffix|>"""
    assert set(marks.split()) <= TOOL_MARKS

    assert sum("tool▁call" in mark for mark in TOOL_MARKS) == 4, "DeepSeek's"
    assert not set("".join(TOOL_MARKS)) & set(" \n=")
