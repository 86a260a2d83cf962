"""Small chat templates that are particular as those of real models are: what is found in them, and
the prompts of chats that they refuse or drop something of."""

import json

import pytest
from harness.tables import cases, rows
from rendered import TemplateTokenizer

from specmesh.core.requests import Request
from specmesh.core.sampling.constraint import Grammar, GrammarKind
from specmesh.core.sampling.sampler import SamplingParams
from specmesh.core.session_params import ChatMessage, SessionParams
from specmesh.core.text.chat import RenderedChat, render
from specmesh.core.text.tool_formats import FORMATS, ToolCall, write_calls

pytest.importorskip("jinja2")

TOOL = json.loads("""
    {"name": "get_time", "description": "Tells it.", "parameters": {"type": "object"}}
    """)
(ASKED,) = rows(
    """
    {"tools": [$TOOL], "choice": "auto", "parallel": true, "format": "", "thinking": ""}
    """,
    TOOL=TOOL,
)
TOOLED = Grammar(GrammarKind.TOOLS, json.dumps(ASKED))

SYSTEM, OTHER = ChatMessage("system", "Be brief."), ChatMessage("system", "In French.")
DEVELOPER = ChatMessage("developer", "Be polite.")
USER, AGAIN = ChatMessage("user", "Hi"), ChatMessage("user", "And?")
ANSWER = ChatMessage("assistant", "Yes.")


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
ANY_ROLE = f"{EACH}{SHOW}{{% endfor %}}"
KNOWN = (
    f"{EACH}{{% if m.role in ['system', 'user', 'assistant'] %}}{SHOW}{{% endif %}}{{% endfor %}}"
)
NO_SYSTEM = f"{EACH}{{% if m.role in ['user', 'assistant'] %}}{SHOW}{{% endif %}}{{% endfor %}}"
REFUSES_SYSTEM = (
    f"{EACH}{{% if m.role == 'system' %}}{{{{ raise_exception('no system role') }}}}{{% endif %}}"
    f"{SHOW}{{% endfor %}}"
)
FIRST_SYSTEM = (
    f"{EACH}{{% if m.role == 'system' and not loop.first %}}"
    "{{ raise_exception('only first') }}"
    f"{{% endif %}}{SHOW}{{% endfor %}}"
)
ALTERNATES = (
    f"{EACH}{{% if (m.role == 'user') != (loop.index0 is even) %}}"
    "{{ raise_exception('roles must alternate') }}"
    f"{{% endif %}}{SHOW}{{% endfor %}}"
)
WITH_LAST_USER = (
    f"{EACH}{{% if m.role == 'user' and loop.last and messages[0].role == 'system' %}}"
    f"<{{{{ messages[0].content }}}}>{{% endif %}}{{% if m.role != 'system' %}}{SHOW}{{% endif %}}"
    "{% endfor %}"
)
DEVELOPERS = f"{EACH}{{% if m.role in ['developer', 'user'] %}}{SHOW}{{% endif %}}{{% endfor %}}"


@pytest.mark.parametrize(
    ("template", "messages", "text", "merged"),
    [
        (ANY_ROLE, (DEVELOPER, USER), "[system|Be polite.][user|Hi]", ()),
        (KNOWN, (DEVELOPER, USER), "[system|Be polite.][user|Hi]", ()),
        (DEVELOPERS, (DEVELOPER, USER), "[developer|Be polite.][user|Hi]", ()),
        (NO_SYSTEM, (SYSTEM, USER), "[user|Be brief.\n\nHi]", ("system",)),
        (NO_SYSTEM, (DEVELOPER, USER), "[user|Be polite.\n\nHi]", ("system",)),
        (REFUSES_SYSTEM, (SYSTEM, USER), "[user|Be brief.\n\nHi]", ("system",)),
        (REFUSES_SYSTEM, (SYSTEM,), "[user|Be brief.]", ("system",)),
        (FIRST_SYSTEM, (SYSTEM, OTHER, USER), "[system|Be brief.\n\nIn French.][user|Hi]", ("system",)),
        (
            FIRST_SYSTEM,
            (USER, ANSWER, OTHER, AGAIN),
            "[user|Hi][assistant|Yes.][user|In French.\n\nAnd?]",
            ("system",),
        ),
        (ALTERNATES, (USER, AGAIN), "[user|Hi\n\nAnd?]", ("user",)),
        (ALTERNATES, (ANSWER, USER), "[user|][assistant|Yes.][user|Hi]", ("assistant",)),
        (
            WITH_LAST_USER,
            (SYSTEM, USER, ANSWER),
            "[user|Be brief.\n\nHi][assistant|Yes.]",
            ("system",),
        ),
    ],
)  # fmt: skip
def test_what_a_template_refuses_or_drops_is_joined(template, messages, text, merged):
    assert chat(template, *messages) == RenderedChat(text, merged)


@pytest.mark.parametrize("template", [NO_SYSTEM, REFUSES_SYSTEM])
def test_tools_in_words_are_joined_to_the_users_first_message(template):
    """Also where the client sent no system message."""
    shown = chat(template, USER, tools=True)
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
    """The template writes another one: the tools are told in words, and earlier calls as text."""
    shown = chat(UNKNOWN, *LOOP, tools=True).text
    assert traits(UNKNOWN)["tool_format"] == "generic"
    assert "<x:call>" not in shown
    assert "(get_time)" not in shown
    assert shown.count("<tool_call>") == 2


SILENT = f"{{# <tool_call> #}}{LISTED}{ANY_ROLE}"


def test_a_template_that_shows_tools_but_no_calls():
    """Its source has a sign of their form, in which they become text."""
    shown = chat(SILENT, *LOOP, tools=True).text
    assert shown == f"(get_time)[user|Hi][assistant|{WRITTEN}][tool|noon]"


@pytest.mark.parametrize("name", [name for name in FORMATS if name != "generic"])
def test_the_form_of_each_family_is_found(name):
    """As its template writes a call with two arguments."""
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


ONE_CALL = HERMES.replace(
    EACH, f"{EACH}{{% if m.tool_calls and m.tool_calls | length > 1 %}}{{{{ raise_exception('one') }}}}{{% endif %}}"
)  # fmt: skip
NO_TEXT = HERMES.replace(
    SHOW, f"{{% if not m.tool_calls or m.content is none %}}{SHOW}{{% endif %}}"
)
SHORT_IDS = HERMES.replace(
    EACH,
    f"{EACH}{{% for c in m.tool_calls or [] %}}{{% if c.id | length != 9 %}}"
    "{{ raise_exception('ids must be nine letters') }}{% endif %}{% endfor %}",
)
NO_RESULTS = HERMES.replace(
    EACH, f"{EACH}{{% if m.role == 'tool' %}}{{{{ raise_exception('no tools') }}}}{{% endif %}}"
)


@pytest.mark.parametrize(
    ("template", "messages", "words"),
    [
        (ONE_CALL, (USER, calling(CALL, ToolCall("b", "other", "{}")), NOON), ["get_time", "other", "noon"]),
        (NO_TEXT, (USER, calling(CALL, content="I look."), NOON), ["I look.", "get_time", "noon"]),
        (SHORT_IDS, LOOP, ["<tool_call>", "get_time", "noon"]),
        (NO_RESULTS, LOOP, ["<tool_call>", "get_time", "<tool_response>", "noon"]),
        (ALTERNATES, (*LOOP, AGAIN), ["get_time", "noon", "And?"]),
        (FIRST_SYSTEM, (SYSTEM, *LOOP, OTHER), ["get_time", "noon", "Be brief.", "In French."]),
    ],
    ids=["one call", "no text", "short ids", "no results", "turns", "first system"],
)  # fmt: skip
def test_no_text_and_no_call_of_a_loop_is_lost(template, messages, words):
    shown = chat(template, *messages, tools=True).text
    assert [word for word in words if word not in shown] == []


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
