"""Texts with calls of tools that each family's grammar allows, and refuses."""

import json
from typing import Any

import pytest
from llguidance import LLMatcher, LLTokenizer

from specmesh.core.reasoning import STYLES
from specmesh.core.sampling.constraint import Grammar, GrammarKind, check_grammar
from specmesh.core.tool_calls import FORMATS, ToolFormat
from specmesh.core.vocabulary.vocabulary import Vocabulary
from specmesh.engines.grammar import Grammars
from specmesh.engines.grammar_source import answer

BYTES = LLTokenizer("byte")
CITY = {"type": "string"}
DAYS = {"anyOf": [{"type": "integer"}, {"type": "null"}]}
GET = {
    "name": "get_weather",
    "parameters": {
        "type": "object",
        "properties": {"city": CITY, "days": DAYS, "unit": {"$ref": "#/$defs/Unit"}},
        "required": ["city", "unit"],
        "$defs": {"Unit": {"type": "string", "enum": ["C", "F"]}},
    },
}
TOOLS = [GET, {"name": "get_time", "description": "No arguments."}]
FORMS = pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)


def request(form: str, choice: Any = "auto", *, tools: Any = TOOLS, parallel: Any = True, thinking: str = "") -> str:
    return json.dumps({"tools": tools, "choice": choice, "parallel": parallel, "format": form, "thinking": thinking})


class Text:
    """How far a text keeps to a grammar, whether it may end there, and what is forced then."""

    def __init__(self, grammar: str, text: str) -> None:
        answered = answer({"kind": "tools", "text": grammar})
        assert "lark" in answered, answered
        matcher = LLMatcher(BYTES, str(answered["lark"]), log_level=0)
        data = text.encode()
        self.rest = data[matcher.try_consume_tokens(list(data)) :].decode("utf-8", "replace")
        self.may_end = not self.rest and matcher.is_accepting()
        self.forced = bytes(matcher.compute_ff_bytes()).decode()
        assert not matcher.is_error(), matcher.get_error()


def call(form: ToolFormat, name: str, **arguments: Any) -> str:
    """What follows the head."""
    body = json.dumps(arguments, ensure_ascii=False)
    if form.param_begin:
        spelt = {key: value if isinstance(value, str) else json.dumps(value) for key, value in arguments.items()}
        parts = (form.param_begin + key + form.param_middle + value + form.param_end for key, value in spelt.items())
        body = "".join(parts)
    return name + form.after + body + form.end


@FORMS
@pytest.mark.parametrize("choice", ["auto", "required", {"name": "get_weather"}])
def test_whole_calls_are_allowed(form: ToolFormat, choice: Any):
    grammar = request(form.name, choice)
    for arguments in ({"city": "Köln \\ <b>", "unit": "C"}, {"city": "", "days": 3, "unit": "F"}):
        assert Text(grammar, form.start + call(form, "get_weather", **arguments) + form.closing).may_end
    if form.bare:
        assert Text(grammar, form.head + call(form, "get_weather", city="Ulm", unit="C")).may_end


@FORMS
@pytest.mark.parametrize("choice", ["auto", "required"])
def test_what_is_no_call_of_these_tools_is_refused(form: ToolFormat, choice: str):
    def refused(name: str, **arguments: Any) -> str:
        return Text(request(form.name, choice), form.start + call(form, name, **arguments) + form.closing).rest

    assert refused("get_wine").startswith("ine")
    assert refused("get_time", city="Ulm")
    assert refused("get_weather", city="Ulm")
    assert refused("get_weather", unit="C")
    assert refused("get_weather", city="Ulm", unit="K").startswith("K")
    assert refused("get_weather", city="Ulm", days="some", unit="C").startswith(("some", '"some'))
    assert refused("get_weather", city="Ulm", days=1.5, unit="C").startswith(".5")
    assert refused("get_weather", city="Ulm", unit="C", other=1)
    assert refused("get_weather", city="Ulm", unit="C\n")
    if not form.param_begin:
        assert refused("get_weather", city=1, unit="C").startswith("1")


@FORMS
def test_a_text_is_free_up_to_the_mark(form: ToolFormat):
    grammar = request(form.name)
    for text in ("", "No.", '{"answer": 1}', f"Not {form.trigger[:-1]}", "<think>ü</think>\n", '{ "name": "get"'):
        assert Text(grammar, text).may_end
    said = Text(grammar, f"Look: {form.trigger}")
    assert not said.may_end
    assert said.forced.startswith(form.start.removeprefix(form.trigger) + "get_")
    assert Text(grammar, f"{form.trigger} so").rest.startswith(" so")
    assert Text(grammar, f"Look: {form.start}{call(form, 'get_time')}{form.closing}").may_end
    assert Text(grammar, f"{form.start}{call(form, 'get_time')}{form.closing} and").rest == " and"


@FORMS
def test_what_a_name_leaves_open_is_forced(form: ToolFormat):
    one = Text(request(form.name), f"{form.start}get_t")
    assert one.forced.startswith(call(form, "get_time").removeprefix("get_t"))
    assert Text(request(form.name, "required"), "").forced.startswith(form.start + "get_" if not form.bare else "")
    named = Text(request(form.name, {"name": "get_weather"}), form.start)
    opened = form.param_begin + "city" + form.param_middle if form.param_begin else '{"city": "'
    assert named.forced == "get_weather" + form.after + opened


@FORMS
def test_several_calls_where_they_may_be_parallel(form: ToolFormat):
    both = (form.between or "") + form.head
    text = form.start + both.join([call(form, "get_time")] * 3) + form.closing
    for choice in ("auto", "required"):
        assert Text(request(form.name, choice), text).may_end == (form.between is not None)
        assert Text(request(form.name, choice, parallel=False), text).rest
    assert Text(request(form.name, {"name": "get_time"}), text).rest


@pytest.mark.parametrize("style", STYLES.values(), ids=STYLES)
def test_a_thought_comes_first(style: Any):
    form = FORMATS["hermes"]
    made = form.start + call(form, "get_time")
    thought = f"I could {made}, or {form.trigger} or not{style.end}"
    for choice in ("auto", "required"):
        inside = request("hermes", choice, thinking=f"{style.name}!")
        assert Text(inside, f"{thought}\n\n{made}").may_end
        assert Text(inside, thought[:-1]).may_end == (choice == "auto")
        maybe = request("hermes", choice, thinking=style.name)
        assert Text(maybe, style.begin + thought + made).may_end
        assert Text(maybe, made).may_end
        assert not Text(maybe, style.begin + thought[:-1]).rest
    assert Text(request("hermes", "required", thinking=style.name), f"{style.begin}a{style.end}\n\nThen").rest == "Then"
    assert Text(request("hermes", "required", thinking=f"{style.name}!"), f"a{style.end} b").rest == " b"


HOSTILE = 'x": 1}, {"name": "y'


@pytest.mark.parametrize(
    ("grammar", "why"),
    [
        (request("hermes", tools=[{"name": HOSTILE}]), "a tool's name has at most 64 letters"),
        (request("hermes", tools=[{"name": "x" * 65}]), "a tool's name has at most 64 letters"),
        (request("hermes", tools=[{"name": "x"}, {"name": "x"}]), "two tools have the same name"),
        (request("hermes", tools=[]), "there are no tools"),
        (request("hermes", {"name": "get"}), "no tool is named 'get'"),
        (request("hermes", "any"), "choice must be auto, required or a name"),
        (request("none"), "does not describe tools: KeyError: 'none'"),
        (request("hermes", thinking="much"), "does not describe tools: KeyError: 'much'"),
        (request("hermes", tools={"name": "x"}), "does not describe tools"),
        (request("hermes", tools=[{"name": "x", "parameters": [1]}]), "does not describe tools"),
        (request("hermes", tools=[{"name": "x", "parameters": {"type": "string"}}]), "those of a JSON object"),
        (request("glm", tools=[{"name": "x", "parameters": {"properties": {"a</b>": {}}}}]), "parameter's name must"),
        (request("glm", tools=[{"name": "x", "parameters": {"properties": 1}}]), "does not describe tools"),
        (request("hermes", tools=[{"name": "x", "parameters": {"properties": {"a": {"type": "int"}}}}]), "int"),
        (request("glm", tools=[{"name": "x", "parameters": {"properties": {"a": {"type": "int"}}}}]), "int"),
        (request("hermes", tools=[{"name": "x", "parameters": {"properties": {"a": {"$ref": "#/b"}}}}]), "b"),
        ("{}", "does not describe tools: KeyError: 'format'"),
    ],
)
def test_what_cannot_be_called_says_why(grammar: str, why: str):
    answered = answer({"kind": "tools", "text": grammar})
    assert why in str(answered.get("refused")), answered


def test_names_stay_names():
    """Of parameters too, whatever they are."""
    tools = [{"name": "x.y-z_1", "parameters": {"properties": {'"}\\| /': {"type": "integer"}}}}]
    for name, key in (("hermes", json.dumps('"}\\| /')), ("glm", '"}\\| /')):
        form = FORMATS[name]
        assert Text(request(name, tools=tools), f"{form.start}x.y-z_1{form.after}").forced == ""
        begun = "{" if not form.param_begin else form.param_begin
        assert (
            key in Text(request(name, tools=tools), f'{form.start}x.y-z_1{form.after}{begun}"').forced
            or form.param_begin
        )


def test_a_constraint_forces_a_call_token_by_token():
    """Of a vocabulary where marks are tokens; and the text may end after the call."""
    marks = [b"<tool_call>", b"</tool_call>", b'{"name": "', b'", "arguments": ']
    vocabulary = Vocabulary((*(bytes([byte]) for byte in range(256)), *marks, b""), frozenset({260}))
    grammar = check_grammar(Grammar(GrammarKind.TOOLS, request("hermes", tools=TOOLS[1:])))
    assert grammar.field == "tools"
    grammars = Grammars(vocabulary)
    try:
        constraint = grammars.compile(grammar)
        assert constraint.allows(260)
        assert constraint.forced() == ()
        constraint.accept(256)
        spelt = b"".join(vocabulary.pieces[token] for token in constraint.forced())
        assert b'\n{"name": "get_time", "arguments": {}}\n</tool_call>'.startswith(spelt)
        assert len(spelt) > 30
    finally:
        grammars.close()
