"""Chat templates: a model's own, one from a file, none, and those that do not work."""

import json
import re
from contextlib import closing
from dataclasses import replace

import pytest
from harness.tables import cases

from specmesh.config import ModelSettings
from specmesh.core.fields import object_at
from specmesh.core.text.chat_message import ChatMessage
from specmesh.core.text.tool_formats import ToolCall
from specmesh.engines.llama.engine import LlamaVerifier
from specmesh.engines.template_renderer import answer
from specmesh.errors import RequestError

pytest.importorskip("llama_cpp")
pytestmark = pytest.mark.models

PLAIN = (
    "{% for m in messages %}{{ m.role }}={{ m.content }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}>{% endif %}"
)
SAID = (ChatMessage("system", "be"), ChatMessage("user", "hello"))
BEGUN = (*SAID, ChatMessage("assistant", " The sky  ", name="bot"))


def opened(make_gguf, template):
    path = str(make_gguf("chat", chat=template))
    return closing(
        LlamaVerifier(ModelSettings(engine="llama", model=path, ctx=64, max_sessions=1, threads=1))
    )


@pytest.fixture
def tokenizer(make_gguf):
    with opened(make_gguf, PLAIN) as engine:
        yield engine.tokenizer


def test_own_template(tokenizer):
    text = tokenizer.chat_text(SAID, {})
    assert text == "system=be<|end|>user=hello<|end|>>"
    assert sum(token in tokenizer.vocabulary.end_ids for token in tokenizer.encode(text)) == 2
    assert set(tokenizer.texts.values()) >= {PLAIN, "<|end|>"}


def test_own_template_goes_on(tokenizer):
    text = tokenizer.chat_text(BEGUN, {}, continued=True)
    expected = "system=be<|end|>user=hello<|end|>assistant= The sky  "
    assert tokenizer.encode(text) == tokenizer.encode(expected)


def test_special_tokens_in_a_text_are_read(tokenizer):
    """Those at its ends are left out on demand."""
    text = "a<|end|>"
    assert tokenizer.encode(text, special=False)[-1:] == tokenizer.encode(text)[-1:]


@cases(
    "template, why",
    """
    ["{% for", "^(?!.*no chat template).*cannot be used: .+--chat-template"]
    ["{{ x | nosuchfilter }}", "cannot be used: .+--chat-template"]
    ["{{ messages[9].content }}", "template refuses"]
    ["", "has no chat template: give"]
    """,
)
def test_own_template_that_cannot_be_used(make_gguf, template, why):
    with opened(make_gguf, template) as engine, pytest.raises(RequestError, match=why):
        engine.tokenizer.chat_text(SAID, {})


def rendered(template, messages=SAID, **more):
    """Return the answer of the child process; without messages it only compiles the template."""
    fields = messages and [message.fields() for message in messages]
    request = {"template": template, "bos": "<s>", "eos": "</s>", "messages": fields}
    return answer(request | {"continued": False} | more)


@cases(
    "template, text",
    r"""
    [$PLAIN, "system=be</s>user=hello</s>assistant= The sky  "]
    [$TRIM, "system=be</s>user=hello</s>assistant=The sky  "]
    ["{% for m in messages %}[{{ m.name }}:{{ m.content | tojson }}]{% endfor %}",
     "[:\"be\"][:\"hello\"][bot:\" The sky  "]
    ["{{ messages[-1].content }}{% if add_generation_prompt %}>{% else %} END{% endif %}",
     " The sky  "]
    """,
    PLAIN=PLAIN,
    TRIM=PLAIN.replace("m.content", "m.content | trim"),
)
def test_the_last_message_goes_on(template, text):
    assert rendered(template, BEGUN, continued=True) == {"text": text}
    assert rendered(template, BEGUN) != {"text": text}


@cases(
    "variables, text",
    """
    [{"date_string": "1 May"}, "1 May>"]
    [{"date_string": "1 May", "add_generation_prompt": false}, "1 May"]
    """,
)
def test_variables_of_a_chat(variables, text):
    """They replace those of every template: the beginning of the answer, and today's date."""
    template = "{{ date_string }}{% if add_generation_prompt %}>{% endif %}"
    assert rendered(template, variables=variables) == {"text": text}


@pytest.mark.fault("E6.71")
@cases(
    "template",
    """
    "{{ ''.__class__.__mro__[1].__subclasses__() }}"
    "{{ messages.__iadd__([1]) }}"
    "{{ messages.__class__.__base__ ~ '' }}{{ ''|attr('__class__')|attr('mro') }}"
    "{{ cycler.__init__.__globals__.os.system('true') }}"
    "{{ raise_exception.__globals__ }}{{ raise_exception.__globals__['json'] }}"
    "{{ '{0.__class__.__mro__}'.format(1) }}{{ ('{0.__class__}'.format)(1).x.y }}"
    "{% include '/etc/passwd' %}"
    "{% import 'os' as os %}"
    """,
)
def test_template_is_in_a_sandbox(template):
    assert rendered(template, None) == {"text": ""}
    assert [*rendered(template)] == ["refused"]


TEMPLATES = r"""
{{ bos_token }}{{ messages[0].content }}{{ eos_token }}
-> "<s>be</s>"
{% for m in messages %}#    {{ m.role }}#{% endfor %}
-> "    system\n    user\n"
{% for m in messages %}
{% if m.role == 'user' %}{% break %}{% endif %}{{ m.role }}
{% endfor %}
-> "system"
{% generation %}{{ messages[1]['content'] }}{% endgeneration %}
-> "hello"
{{ {'é': [1, '<']} | tojson }}|{{ {'a': 1} | tojson(indent=1) }}
-> "{\"é\": [1, \"<\"]}|{\n \"a\": 1\n}"
{% if tools %}t{% endif %}
{{ tools is none }}{{ documents is defined }}{{ add_generation_prompt }}
-> "TrueFalseTrue"
{{ strftime_now('%Y') | length }}{{ (date_string | length, datetime | length) }}
-> "4(11, 11)"
{% set ns = namespace(n=0) %}
{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}
-> "2"
{% set q = [] %}{% for m in messages %}
{% set _ = q.append(m.role) %}{% endfor %}{{ q.pop(0) }} {{ q }}
-> "system ['user']"
{{ messages | map(attribute='content') | tojson }}
-> "[\"be\", \"hello\"]"
"""
"""Templates with their texts; a `#` is a line break."""
EXAMPLES = re.findall(r"((?:[^-].*\n)+)-> (.*)\n", TEMPLATES.lstrip())


@pytest.mark.parametrize(("template", "text"), EXAMPLES)
def test_templates_of_models(template, text):
    """As in transformers, blocks are trimmed, loops have breaks, and JSON is not escaped."""
    source = template.replace("\n", "").replace("#", "\n")
    assert rendered(source) == {"text": json.loads(text)}


def test_changes_of_a_template_are_gone_with_the_text():
    """Each text begins with lists and objects of its own."""
    template = (
        "{% set _ = messages.append(1) %}{% set _ = tools.append(2) %}{% set _ = [0].append(3) %}"
        "{{ messages | length }} {{ tools }}"
    )
    for _ in range(2):
        assert rendered(template, variables={"tools": [1]}) == {"text": "3 [1, 2]"}


@pytest.mark.parametrize("value", ["nothing", "raise_exception"])
def test_values_that_json_lacks_are_refused(value):
    assert "not JSON serializable" in str(rendered(f"{{{{ {value} | tojson }}}}"))


CALL = ToolCall("1", "f", '{"a": 1}')
CALLS = (
    "{% for c in m.tool_calls or [] %}"
    "({{ c.function.name }} {{ c.function.arguments }}){% endfor %}"
)
LOOP = (
    ChatMessage("user", "Hi"),
    ChatMessage("assistant", "", tool_calls=(CALL,)),
    ChatMessage("tool", "3", name="f", tool_call_id="1"),
)


def traits_of(template):
    """Return the traits that are found when a template is loaded."""
    return object_at(rendered(template, None, probe=True), "traits")


def shown(template, messages):
    """Return the text of messages by a template's traits, or the reason of its refusal."""
    answered = rendered(template, messages, traits=traits_of(template))
    return str(answered.get("text", answered.get("refused")))


def calling(loop, arguments):
    """Return the text of a loop by a template that writes the arguments of its call."""
    called = f"{{% if m.tool_calls %}}{{{{ m.tool_calls[0].function.name }}}} {loop}{{% endif %}}"
    template = f"{{% for m in messages %}}[{{{{ m.content }}}}{called}]{{% endfor %}}"
    call = replace(LOOP[1], tool_calls=(replace(CALL, arguments=arguments),))
    return shown(template, (LOOP[0], call, LOOP[2]))


AS_OBJECT = "{{ m.tool_calls[0].function.arguments.items() | list }}"
AS_TEXT = "{% set a = m.tool_calls[0].function.arguments %}{{ a if a is string else a | tojson }}"


@pytest.mark.parametrize("arguments", ["", "no JSON", '{"cut": ', "[1]", "null", "[" * 5000])
def test_arguments_that_are_no_object(arguments):
    """A template gets an object if it wants one, and the text otherwise; none are an empty one."""
    assert calling(AS_OBJECT, arguments) == "[Hi][f []][3]"
    assert calling(AS_TEXT, arguments) == f"[Hi][f {arguments or '{}'}][3]"


EITHER = f"{CALLS}{{% else %}}{{{{ m.content }}}}{{% endif %}}"


@pytest.mark.parametrize(
    ("body", "wants_none"),
    [
        ("{% if m.content is none %}" + EITHER, True),
        ("{% if m.content == '' %}" + EITHER, False),
        ("{{ m.content.split('x')[0] }}" + CALLS, False),
    ],
)
def test_content_with_calls_is_as_the_template_can_take_it(body, wants_none):
    template = "{% for m in messages %}" + body + "{% endfor %}"
    assert shown(template, LOOP) == 'Hi(f {"a": 1})3'
    assert traits_of(template)["no_content"] is wants_none


PARTS = (
    "{% if m.content is not string %}{{ m.content[0].thinking }}{{ m.content[1].text }}{% endif %}"
)


@pytest.mark.parametrize(
    ("field", "template"),
    [
        ("reasoning_content", "{{ m.reasoning_content }}"),
        ("thinking", "{{ m.thinking }}"),
        ("reasoning", "{{ m.reasoning }}"),
        ("parts", PARTS),
    ],
)
def test_a_thought_comes_in_the_templates_field(field, template):
    content = "{% if m.content is string %}{{ m.content }}{% endif %}"
    whole = f"{{% for m in messages %}}[{template}{content}]{{% endfor %}}"
    thought = ChatMessage("assistant", "Yes.", reasoning="Hm.")
    assert traits_of(whole)["thoughts"] == field
    assert shown(whole, (LOOP[0], thought, LOOP[0])) == "[Hi][Hm.Yes.][Hi]"


@cases(
    "template, text",
    r"""
    ["{% for m in messages %}{{ m.role }}: {{ m.content[0].text | trim }}\n{% endfor %}",
     "system: be\nuser: hello\n"]
    ["{{ tools | length }}{% for m in messages %} {{ m.content }}{% endfor %}", "0 be hello"]
    """,
)
def test_content_parts_and_empty_tools_for_a_template_that_wants_them(template, text):
    assert shown(template, SAID) == text


@pytest.mark.parametrize(
    "template",
    [
        "{% for m in messages %}{% if m.role != 'system' %}{{ m.content }}{% endif %}{% endfor %}",
        "{{ messages[-1].content }}",
        "{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}",
    ],
)
def test_a_message_that_a_template_drops_is_refused(template):
    assert shown(template, SAID) == "it does not show messages[0], of the role system"


def test_a_call_that_a_template_drops_is_refused():
    template = "{% for m in messages %}[{{ m.content }}]{% endfor %}"
    assert shown(template, LOOP) == "it does not show messages[1], of the role assistant"


def test_a_message_after_the_one_that_goes_on_is_dropped():
    template = "{% for m in messages[1:] %}[{{ m.content }}]{% endfor %}{{ messages[0].content }}"
    answered = rendered(template, BEGUN, continued=True, traits=traits_of(template))
    assert answered == {"refused": "it does not show messages[0], of the role system"}
