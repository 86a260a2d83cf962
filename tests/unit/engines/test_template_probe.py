"""Traits of small chat templates, and prompts of chats that a template refuses in part."""

import json

import pytest
from called import messages_of
from harness.tables import cases
from rendered import TemplateTokenizer

from specmesh.core.requests import Request
from specmesh.core.sampling.constraint import Grammar, GrammarKind
from specmesh.core.sampling.sampler import SamplingParams
from specmesh.core.session_params import SessionParams
from specmesh.core.text.chat import RenderedChat, render
from specmesh.core.text.chat_message import ChatMessage
from specmesh.core.text.tool_formats import FORMATS, ToolCall
from specmesh.core.text.tool_writing import write_calls

pytest.importorskip("jinja2")

TOOLED = Grammar(
    GrammarKind.TOOLS,
    """{"tools": [{"name": "get_time", "description": "It is the time.",
        "parameters": {"type": "object"}}],
        "choice": "auto", "parallel": true, "format": "", "thinking": ""}""",
)
MESSAGES = messages_of("""
    S system Be brief.
    T system In French.
    D developer Be polite.
    U user Hi
    V user And?
    A assistant Yes.
    """)
SYSTEM, OTHER, _, USER, AGAIN, _ = MESSAGES.values()


def calling(call, *more, content=""):
    return ChatMessage("assistant", content, tool_calls=(call, *more))


CALL = ToolCall("toolu_01-A", "get_time", '{"zone": "CET"}')
NOON = ChatMessage("tool", "noon", tool_call_id="toolu_01-A")


def chat(template, *messages, tools=False):
    params = SessionParams(SamplingParams(), 9, grammar=TOOLED if tools else None)
    return render(Request(None, None, params, messages=messages), TemplateTokenizer(template))


def traits(template):
    return TemplateTokenizer(template).traits.as_json()


EACH = "{% for m in messages %}"
SHOW = "[{{ m.role }}|{{ m.content }}]"
END = "{% endfor %}"
ANY_ROLE = EACH + SHOW + END


def showing(condition):
    """Return a template that shows some messages only."""
    return f"{EACH}{{% if {condition} %}}{SHOW}{{% endif %}}{END}"


def refusing(condition, begin=EACH):
    """Return the beginning of a template that refuses some messages."""
    return f"{begin}{{% if {condition} %}}{{{{ raise_exception('no') }}}}{{% endif %}}"


TEMPLATES = {
    "any role": ANY_ROLE,
    "known": showing("m.role in ['system', 'user', 'assistant']"),
    "no system": showing("m.role in ['user', 'assistant']"),
    "refuses system": refusing("m.role == 'system'") + SHOW + END,
    "first system": refusing("m.role == 'system' and not loop.first") + SHOW + END,
    "alternates": refusing("(m.role == 'user') != (loop.index0 is even)") + SHOW + END,
    "with last user": (
        f"{EACH}{{% if m.role == 'user' and loop.last and messages[0].role == 'system' %}}"
        "<{{ messages[0].content }}>{% endif %}"
        f"{{% if m.role != 'system' %}}{SHOW}{{% endif %}}{END}"
    ),
    "developers": showing("m.role in ['developer', 'user']"),
}


@cases(
    "template, letters, text, merged",
    r"""
    ["any role", "DU", "[system|Be polite.][user|Hi]", []]
    ["known", "DU", "[system|Be polite.][user|Hi]", []]
    ["developers", "DU", "[developer|Be polite.][user|Hi]", []]
    ["no system", "SU", "[user|Be brief.\n\nHi]", ["system"]]
    ["no system", "DU", "[user|Be polite.\n\nHi]", ["system"]]
    ["refuses system", "SU", "[user|Be brief.\n\nHi]", ["system"]]
    ["refuses system", "S", "[user|Be brief.]", ["system"]]
    ["first system", "STU", "[system|Be brief.\n\nIn French.][user|Hi]", ["system"]]
    ["first system", "UATV", "[user|Hi][assistant|Yes.][user|In French.\n\nAnd?]", ["system"]]
    ["alternates", "UV", "[user|Hi\n\nAnd?]", ["user"]]
    ["alternates", "U", "[user|Hi]", []]
    ["alternates", "SU", "[user|Be brief.\n\nHi]", ["system"]]
    ["alternates", "DU", "[user|Be polite.\n\nHi]", ["system"]]
    ["alternates", "SUV", "[user|Be brief.\n\nHi\n\nAnd?]", ["system", "user"]]
    ["alternates", "UASV", "[user|Hi][assistant|Yes.][user|Be brief.\n\nAnd?]", ["system"]]
    ["alternates", "UAAV", "[user|Hi][assistant|Yes.\n\nYes.][user|And?]", ["assistant"]]
    ["alternates", "AU", "[user|][assistant|Yes.][user|Hi]", ["assistant"]]
    ["with last user", "SUA", "[user|Be brief.\n\nHi][assistant|Yes.]", ["system"]]
    """,
)
def test_messages_that_a_template_refuses_or_drops_are_joined(template, letters, text, merged):
    messages = map(MESSAGES.get, letters)
    assert chat(TEMPLATES[template], *messages) == RenderedChat(text, tuple(merged))


@pytest.mark.parametrize("template", ["no system", "refuses system"])
def test_tools_in_words_are_joined_to_the_users_first_message(template):
    """There need not be a system message."""
    shown = chat(TEMPLATES[template], USER, tools=True)
    assert shown.text.startswith("[user|You can call these tools")
    assert "get_time" in shown.text
    assert shown.text.endswith("\n\nHi]")


LISTED = "{% for t in tools or [] %}({{ t.function.name }}){% endfor %}"
HERMES = (
    f"{LISTED}{EACH}{SHOW}{{% for c in m.tool_calls or [] %}}<tool_call>\n"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}\n'
    "</tool_call>{% endfor %}{% endfor %}"
)
LOOP = (USER, calling(CALL), NOON)
WRITTEN = '<tool_call>\n{"name": "get_time", "arguments": {"zone": "CET"}}\n</tool_call>'


def test_a_template_that_writes_calls():
    expected = f"(get_time)[user|Hi][assistant|]{WRITTEN}[tool|noon]"
    assert chat(HERMES, *LOOP, tools=True).text == expected
    assert traits(HERMES)["tool_format"] == "hermes"


UNKNOWN = HERMES.replace("<tool_call>", "{# <tool_call> #}<x:call>").replace("</tool_call>", "</x>")


def test_a_mark_in_the_source_is_no_form_of_calls():
    """The template writes another form: tools are described in words, and calls are text."""
    shown = chat(UNKNOWN, *LOOP, tools=True).text
    assert traits(UNKNOWN)["tool_format"] == "generic"
    assert "<x:call>" not in shown
    assert "(get_time)" not in shown
    assert shown.count("<tool_call>") == 2


SILENT = f"{{# <tool_call> #}}{LISTED}{ANY_ROLE}"


def test_a_template_that_shows_tools_but_no_calls():
    """Its source has a sign of the form in which calls become text."""
    shown = chat(SILENT, *LOOP, tools=True).text
    assert shown == f"(get_time)[user|Hi][assistant|{WRITTEN}][tool|noon]"


@pytest.mark.parametrize("name", [name for name in FORMATS if name != "generic"])
def test_the_form_of_each_family_is_found(name):
    form = FORMATS[name]
    call = ToolCall("call_1-a", "callname", '{"alpha": "valueword", "beta": 7}')
    text = write_calls(form, [call])
    if form.history:
        text = form.history.replace("$NAME", call.name).replace("$ARGS", call.arguments)
    template = (
        f"{LISTED}{EACH}{SHOW}{{% if m.tool_calls %}}{{{{ shown }}}}{{% endif %}}{{% endfor %}}"
    )
    found = traits(f"{{% set shown = {json.dumps(text)} %}}{template}")
    same = FORMATS[found["written"]]
    assert write_calls(same, [call]) == write_calls(form, [call])


ONE_CALL = HERMES.replace(EACH, refusing("m.tool_calls and m.tool_calls | length > 1"))
NO_RESULTS = HERMES.replace(EACH, refusing("m.role == 'tool'"))
NO_TEXT = HERMES.replace(
    SHOW, f"{{% if not m.tool_calls or m.content is none %}}{SHOW}{{% endif %}}"
)
EACH_CALL = EACH + "{% for c in m.tool_calls or [] %}"
SHORT_IDS = HERMES.replace(EACH, refusing("c.id | length != 9", EACH_CALL) + END)
TWO = calling(CALL, ToolCall("b", "other", "{}"))


LOOPS = {
    "one call": (ONE_CALL, (USER, TWO, NOON), "get_time other noon"),
    "no text": (NO_TEXT, (USER, calling(CALL, content="Looking"), NOON), "Looking get_time noon"),
    "short ids": (SHORT_IDS, LOOP, "<tool_call> get_time noon"),
    "no results": (NO_RESULTS, LOOP, "<tool_call> get_time <tool_response> noon"),
    "turns": (TEMPLATES["alternates"], (*LOOP, AGAIN), "get_time noon And?"),
    "system": (TEMPLATES["first system"], (SYSTEM, *LOOP, OTHER), "get_time noon brief. French."),
}


@pytest.mark.parametrize(("template", "messages", "words"), LOOPS.values(), ids=LOOPS)
def test_no_text_and_no_call_of_a_loop_is_lost(template, messages, words):
    shown = chat(template, *messages, tools=True).text
    assert [word for word in words.split() if word not in shown] == []


@cases(
    "begin, end, name",
    """
    ["<think>", "</think>", "think"]
    ["<mm:think>", "</mm:think>", "minimax_m3"]
    """,
)
def test_the_marks_around_thoughts_that_a_template_puts_together(begin, end, name):
    """Neither is whole in its source."""
    template = (
        f"{{% set b = '{begin[:3]}' + '{begin[3:]}' %}}{{% set e = '{end[:3]}' + '{end[3:]}' %}}"
        f"{EACH}{{% if m.reasoning_content %}}{{{{ b + m.reasoning_content + e }}}}{{% endif %}}"
        f"{SHOW}{{% endfor %}}"
    )
    assert traits(template)["thinking"] == name


def test_a_template_that_refuses_everything_has_the_forms_of_its_source():
    found = traits("{# <think> tools <tool_call> #}{{ raise_exception('never') }}")
    assert (found["tool_format"], found["thinking"]) == ("hermes", "think")
