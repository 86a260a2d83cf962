"""Chats: what a template is to render of one with tools, and its answer's form; thoughts and calls read from answers in
each family's form, wherever a text is cut."""

import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from called import Call, spelt
from hypothesis import example, given
from hypothesis import strategies as st

from specmesh.core import reasoning, tool_calls
from specmesh.core.chat import for_template, prompt_of, with_format
from specmesh.core.fields import Json
from specmesh.core.reasoning import ThoughtSplitter, thinking
from specmesh.core.requests import Request
from specmesh.core.sampling.constraint import Grammar, GrammarKind
from specmesh.core.sampling.sampler import SamplingParams
from specmesh.core.session_params import ChatMessage, SessionParams
from specmesh.core.tool_calls import (
    FORMATS,
    ArgumentsPart,
    CallBegin,
    CallParser,
    TextPart,
    ToolCall,
    ToolFormat,
)
from specmesh.core.vocabulary.vocabulary import Vocabulary

ASKED = {
    "tools": [{"name": "f", "parameters": {}}],
    "choice": "auto",
    "parallel": True,
    "format": "",
    "thinking": "",
}
LOOP = (
    ChatMessage("user", "Hi"),
    ChatMessage("assistant", "", tool_calls=(ToolCall("1", "f", "{}"),)),
    ChatMessage("tool", "a", tool_call_id="1"),
    ChatMessage("user", "And?"),
)
KNOWS = "{% if tools %}<tool_call>{% endif %}{{ m.tool_calls }}"


def params(grammar: Grammar | None = None) -> SessionParams:
    return SessionParams(SamplingParams(), 9, grammar=grammar)


TOOLED = params(Grammar(GrammarKind.TOOLS, json.dumps(ASKED)))


def test_a_template_that_knows_tools():
    texts = {"chat_template": KNOWS, "tool_format": "hermes"}
    messages, variables = for_template(Request(None, None, TOOLED, messages=LOOP), texts)
    assert tuple(messages) == LOOP
    assert variables["tools"] == [{"type": "function", "function": {"name": "f", "parameters": {}}}]


@pytest.mark.parametrize(
    ("name", "call"),
    [("generic", '{"name": "f", "arguments": {}}'), ("mistral_args", "[TOOL_CALLS]f[ARGS]{}")],
)
def test_a_template_that_knows_none(name: str, call: str):
    """Tools are described in words, calls are text, and what came of them is the user's, whose turn it is once."""
    request = Request(None, None, TOOLED, messages=LOOP)
    (system, _, called, answered), variables = for_template(
        request, {"chat_template": "", "tool_format": name}
    )
    assert (system.role, called.role, answered.role, variables) == (
        "system",
        "assistant",
        "user",
        {},
    )
    assert '{"name": "f", "parameters": {}}' in system.content
    assert call in called.content
    assert (answered.content, called.tool_calls) == (
        "<tool_response>\na\n</tool_response>\nAnd?",
        (),
    )
    plain, _ = for_template(Request(None, None, params(), messages=LOOP), {"chat_template": ""})
    assert [one.role for one in plain] == ["user", "assistant", "user"]


def test_the_form_of_an_answer():
    """As the template has it, once; in a JSON answer no thought can end."""
    texts = {"chat_template": KNOWS + "<think>", "tool_format": "hermes"}
    made = with_format(TOOLED, texts, "assistant: <think>\n")
    assert (made.thinking, json.loads(made.grammar.text)["format"]) == ("think!", "hermes")
    assert with_format(made, {"chat_template": "", "tool_format": "glm"}, "") == made
    assert (
        with_format(params(Grammar(GrammarKind.JSON_SCHEMA, "{}")), texts, "<think>").thinking == ""
    )
    assert with_format(params(), texts, "Hi").thinking == "think"


class Target:
    """Ids are characters' codes; the template begins a thought."""

    vocabulary = Vocabulary(tuple(bytes([one]) for one in range(128)), frozenset({9, 7}))
    texts = {"chat_template": "<think>"}  # noqa: RUF012

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        return list(text.encode()) if special else []

    def chat_text(
        self, messages: Sequence[ChatMessage], variables: Json, *, continued: bool = False
    ) -> str:
        return f"{messages[0].content} {variables} {continued}<think>"


CHAT = (ChatMessage("user", "Hi"),)
THOUGHT = tuple(b"Hi {'a': 1} True<think>")


@pytest.mark.parametrize(
    ("request_", "ids", "thinking"),
    [
        (Request("Hi<think>", None, params()), tuple(b"Hi<think>"), ""),
        (Request("", None, params(), id="cmpl-1"), (7,), ""),
        (
            Request("no", None, params(), messages=CHAT, template={"a": 1}, continued=True),
            THOUGHT,
            "think!",
        ),
        (Request("no", (72, 999), params(), messages=CHAT), (72, 999), "think"),
        (Request(None, THOUGHT, params(), id="chatcmpl-1"), THOUGHT, "think!"),
        (Request(None, THOUGHT, params(), id="cmpl-1"), THOUGHT, ""),
    ],
    ids=["text", "empty", "chat", "ids before a chat", "a chat resumed", "a completion resumed"],
)
def test_what_is_to_be_continued(request_: Request, ids: tuple[int, ...], thinking: str):
    """Ids, else a chat, else a text; a chat's answer has the form of the template: one resumed by ids is known by
    its name."""
    made, form = prompt_of(request_, Target())
    assert (made, form.thinking) == (ids, thinking)


# --- thoughts told from answers

HARMONY = (
    "<|channel|>analysis<|message|>Hm, 2.<|end|><|start|>assistant<|channel|>commentary<|message|>I look.<|end|>"
    "<|start|>assistant<|channel|>analysis<|message|>So. <|end|><|start|>assistant<|channel|>final<|message|> 4 <b>"
)
CALL = "<|channel|>commentary to=functions.x <|constrain|>json<|message|>{}"
CASES = [
    (
        "think",
        "<think>\na <b>\n\nc\n</think>\n\nThe <think> answer \n",
        "a <b>\n\nc",
        "The <think> answer \n",
    ),
    ("think", "\n <think></think>x", "", "x"),
    ("think", " plain <think>x</think>", "", " plain <think>x</think>"),
    ("think", "<thin", "", "<thin"),
    ("think", " \n", "", " \n"),
    ("think", "<think> cut </thi", "cut </thi", ""),
    ("think!", "\nIt is \n </think>\n4", "It is", "4"),
    ("think!", "no end \n", "no end", ""),
    ("brackets", "[THINK]a[/THINK]b", "a", "b"),
    ("harmony", HARMONY, "Hm, 2.So.", "I look.4 <b>"),
    ("harmony", "<|channel|>analysis<|message|>T<|end|><|start|>assistant" + CALL, "T", CALL),
    ("harmony", "no <|channels", "", "no <|channels"),
    ("", "<think>a</think>", "", "<think>a</think>"),
]


def cut_up(text: str, cuts: list[int]) -> list[str]:
    return [
        text[begin:end]
        for begin, end in pairwise([0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)])
    ]


@pytest.mark.parametrize(("named", "text", "thought", "answer"), CASES)
@given(st.lists(st.integers(0, 300), max_size=8))
@example(list(range(300)))
@example([])
def test_a_split_is_the_same_wherever_a_text_is_cut(
    named: str, text: str, thought: str, answer: str, cuts: list[int]
):
    splitter, told = ThoughtSplitter(named), ["", ""]
    for piece in cut_up(text, cuts):
        told = [
            old + new for old, new in zip(told, splitter.feed(piece, over=not cuts), strict=True)
        ]
    assert [old + new for old, new in zip(told, splitter.feed("", over=True), strict=True)] == [
        thought,
        answer,
    ]


def test_what_cannot_be_a_mark_is_told_at_once():
    splitter = ThoughtSplitter("think!")
    assert splitter.feed("It is <") == ("It is", "")
    assert splitter.feed("b> so</think>\nAn") == (" <b> so", "An")
    assert splitter.feed("swer <") == ("", "swer <")


@pytest.mark.parametrize(
    ("template", "prompt", "named"),
    [
        ("{{ content.split('</think>')[-1] }}", "<|assistant|>", "think"),
        ("{{ '<think>\\n' }}", "<|assistant|><think>\n", "think!"),
        (
            "'<|channel|>analysis<|message|>' + message.thinking + '<|end|>'",
            "<|start|>assistant",
            "harmony",
        ),
        ("{{ messages[0].content }}", "<think>", ""),
    ],
)
def test_a_template_shows_the_marks_of_its_thoughts(template: str, prompt: str, named: str):
    assert thinking(reasoning.detect(template), prompt) == named


# --- calls of tools

TOOLS = [
    {
        "name": "get",
        "parameters": {"properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
    },
    {"name": "get_time"},
]
GIVEN: dict[str, Any] = {"city": 'Köln "}{[<b>\\', "days": 3}
NO_CALLS = ["", "none", "{", '{"name": "Bob"}', "[TOOL_CALLS]"]
NO_CALLS += ["<tool_call>", "<tool_call>\n{", "<|channel|>commentary"]
FORMS = pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)


def read(
    form: ToolFormat, text: str, cuts: list[int], *, at_once: bool = False
) -> tuple[str, list[tuple[str, str]]]:
    """The text, and the name and arguments of each call."""
    parser, said, calls = CallParser(form, TOOLS), "", list[tuple[str, str]]()
    fed = [(piece, at_once) for piece in cut_up(text, cuts)]
    for event in (
        event for piece, over in [*fed, ("", True)] for event in parser.feed(piece, over=over)
    ):
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
    asked: list[Call] = [("get", GIVEN), ("get_time", {}), ("get", {})][
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
    st.lists(st.integers(0, 400), max_size=8),
)
def test_what_is_told_does_not_depend_on_cuts(
    form: ToolFormat, before: str, calls: list[Call], lost: int, cuts: list[int]
):
    """Not of texts either that end early, or name no tool."""
    text = spelt(form, *calls, before=before) if calls else before
    text = text[: len(text) - lost % (len(text) + 1)]
    assert (
        read(form, text, cuts)
        == read(form, text, list(range(len(text))))
        == read(form, text, [], at_once=True)
    )


@FORMS
def test_what_is_no_call_is_text(form: ToolFormat):
    for text in [
        *NO_CALLS,
        spelt(form, ("other", {}), before="x"),
        form.start,
        f"x {form.trigger} y",
    ]:
        assert read(form, text, []) == (text, [])


def test_a_call_is_told_as_it_comes():
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
def test_half_of_a_further_call_is_no_text(form: ToolFormat):
    one, two = (spelt(form, *[("get", {})] * count).removesuffix(form.closing) for count in (1, 2))
    named = len(f"{one}{form.between}{form.head}get{form.after}")
    assert [read(form, two[:end], []) for end in range(len(one), named)] == [
        ("", [("get", "{}")])
    ] * (named - len(one))


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
def test_an_argument_between_marks_becomes_json_as_its_schema_says(
    text: str, schema: Any, written: str
):
    assert tool_calls.as_json(text, schema, ROOT) == written


@FORMS
def test_a_template_shows_the_form_of_its_calls(form: ToolFormat):
    assert tool_calls.detect("{{ tools }} " + " ".join(form.signs)) is form
    assert tool_calls.detect("{{ tool_calls }} " + " ".join(form.signs)) is FORMATS["generic"]


def test_marks_that_may_be_control_tokens():
    marks = tool_calls.TOOL_MARKS
    assert {
        "[TOOL_CALLS]",
        "<|python_tag|>",
        "<think>",
        "</tool_call>",
        "<|channel|>",
        "[/THINK]",
    } <= marks
    assert sum("tool▁call" in mark for mark in marks) == 4
    assert not any(set(mark) & set(' \n"=') for mark in marks)
