"""Chat templates: a model's own, one from a file, none, and those that do not work."""

from contextlib import closing
from dataclasses import replace

import pytest
from harness.tables import cases

from specmesh.config import ModelSettings
from specmesh.core.fields import object_at
from specmesh.core.session_params import ChatMessage
from specmesh.core.text.tool_formats import ToolCall
from specmesh.engines.chat_template import answer
from specmesh.engines.llama.engine import LlamaVerifier
from specmesh.errors import RequestError

pytest.importorskip("llama_cpp")
pytestmark = pytest.mark.models

PLAIN = (
    "{% for m in messages %}{{ m.role }}={{ m.content }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}>{% endif %}"
)
SAID = (ChatMessage("system", "be"), ChatMessage("user", "hello"))
BEGUN = (*SAID, ChatMessage("assistant", " The sky  ", name="bot"))
EXPECTED = "system=be<|end|>user=hello<|end|>>"


def opened(make_gguf, template):
    path = str(make_gguf("chat", chat=template))
    return closing(
        LlamaVerifier(ModelSettings(engine="llama", model=path, ctx=64, max_sessions=1, threads=1))
    )


def test_own_template(make_gguf):
    """Special tokens at a text's ends are left out on demand, one written in it is read; /props
    tells `texts`."""
    with opened(make_gguf, PLAIN) as engine:
        told = engine.tokenizer
        assert told.chat_text(SAID, {}) == EXPECTED
        assert sum(token in told.vocabulary.end_ids for token in told.encode(EXPECTED)) == 2
        begun = "system=be<|end|>user=hello<|end|>assistant= The sky  "
        assert told.encode(told.chat_text(BEGUN, {}, continued=True)) == told.encode(begun)
        assert told.encode("a<|end|>", special=False)[-1:] == told.encode("a<|end|>")[-1:]
        assert set(told.texts.values()) >= {PLAIN, "<|end|>"}


@pytest.mark.parametrize("template", ["{% for", "{{ x | nosuchfilter }}", "{% if %}"])
def test_own_template_that_cannot_be_read(make_gguf, template):
    """A chat is refused with what is wrong with it, a model without one in other words."""
    with opened(make_gguf, template) as engine:
        with pytest.raises(RequestError, match=r"cannot be used: .+--chat-template") as refused:
            engine.tokenizer.chat_text(SAID, {})
        assert "no chat template" not in str(refused.value)
    with (
        opened(make_gguf, "") as engine,
        pytest.raises(RequestError, match="has no chat template: give"),
    ):
        engine.tokenizer.chat_text(SAID, {})


@pytest.mark.parametrize(
    "template", ["{{ raise_exception('roles must alternate') }}", "{{ messages[9].content }}"]
)
def test_template_that_refuses(make_gguf, template):
    with (
        opened(make_gguf, template) as engine,
        pytest.raises(RequestError, match="template refuses"),
    ):
        engine.tokenizer.chat_text(SAID, {})


def rendered(
    template,
    said=SAID,
    *,
    continued=False,
    **more,
):
    """What the child process answers, without a model; whether the template compiles where nothing
    was `said`."""
    messages = said and [message.fields() for message in said]
    request = {
        "template": template,
        "bos": "<s>",
        "eos": "</s>",
        "messages": messages,
        "continued": continued,
    }
    return answer(request | more)


@pytest.mark.parametrize(
    ("template", "text"),
    [
        (PLAIN, "system=be</s>user=hello</s>assistant= The sky  "),
        (
            PLAIN.replace("m.content", "m.content | trim"),
            "system=be</s>user=hello</s>assistant=The sky  ",
        ),
        (
            "{% for m in messages %}[{{ m.name }}:{{ m.content | tojson }}]{% endfor %}",
            '[:"be"][:"hello"][bot:" The sky  ',
        ),
        (
            "{{ messages[-1].content }}{% if add_generation_prompt %}>{% else %} END{% endif %}",
            " The sky  ",
        ),
    ],
)
def test_the_last_message_goes_on(template, text):
    assert rendered(template, BEGUN, continued=True) == {"text": text}
    assert rendered(template, BEGUN) != {"text": text}


def test_variables_of_a_chat():
    """They take the place of those that every template has: the answer's beginning, today's
    date."""
    template, today = (
        "{{ date_string }}{% if add_generation_prompt %}>{% endif %}",
        {"date_string": "1 May"},
    )
    assert rendered(template, variables=today | {"add_generation_prompt": False}) == {
        "text": "1 May"
    }
    assert rendered(template, variables=today) == {"text": "1 May>"}


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


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{{ bos_token }}{{ messages[0].content }}{{ eos_token }}", "<s>be</s>"),
        ("{% for m in messages %}\n    {{ m.role }}\n{% endfor %}", "    system\n    user\n"),
        (
            "{% for m in messages %}{% if m.role == 'user' %}{% break %}{% endif %}{{ m.role }}{% endfor %}",
            "system",
        ),
        ("{% generation %}{{ messages[1]['content'] }}{% endgeneration %}", "hello"),
        (
            "{{ {'é': [1, '<']} | tojson }}|{{ {'a': 1} | tojson(indent=1) }}",
            '{"é": [1, "<"]}|{\n "a": 1\n}',
        ),
        (
            "{% if tools %}t{% endif %}{{ tools is none }}{{ documents is defined }}{{ add_generation_prompt }}",
            "TrueFalseTrue",
        ),
        (
            "{{ strftime_now('%Y') | length }}{{ (date_string | length, datetime | length) }}",
            "4(11, 11)",
        ),
        (
            "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
            "2",
        ),
        (
            "{% set q = [] %}{% for m in messages %}{% set _ = q.append(m.role) %}{% endfor %}{{ q.pop(0) }} {{ q }}",
            "system ['user']",
        ),
        ("{{ messages | map(attribute='content') | tojson }}", '["be", "hello"]'),
    ],
)
def test_what_templates_of_models_use(template, text):
    """As transformers renders them: blocks are trimmed, loops have breaks, JSON is not escaped for
    HTML."""
    assert rendered(template) == {"text": text}


def test_what_a_template_changes_is_gone_with_the_text():
    """Another chat, and the same one again, begin with lists and objects of their own."""
    template = (
        "{% set _ = messages.append(1) %}{% set _ = tools.append(2) %}{% set _ = [0].append(3) %}"
        "{{ messages | length }} {{ tools }}"
    )
    for _ in range(2):
        assert rendered(template, variables={"tools": [1]}) == {"text": "3 [1, 2]"}


def test_what_json_lacks_is_refused():
    for value in ("nothing", "raise_exception"):
        assert "not JSON serializable" in str(rendered(f"{{{{ {value} | tojson }}}}"))


CALL = ToolCall("1", "f", '{"a": 1}')
CALLS = "{% for c in m.tool_calls or [] %}({{ c.function.name }} {{ c.function.arguments }}){% endfor %}"
LOOP = (
    ChatMessage("user", "Hi"),
    ChatMessage("assistant", "", tool_calls=(CALL,)),
    ChatMessage("tool", "3", name="f", tool_call_id="1"),
)


def traits_of(template):
    """What a template takes, as it is tried when it is loaded."""
    return object_at(rendered(template, None, probe=True), "traits")


def shown(template, said):
    """What a template makes of messages once it was tried; or why it refuses them."""
    traits = traits_of(template)
    told = rendered(template, said, traits=traits)
    return str(told.get("text", told.get("refused")))


@pytest.mark.parametrize("arguments", ["", "no JSON", '{"cut": ', "[1]", "null", "[" * 5000])
@pytest.mark.parametrize(
    ("loop", "as_text"),
    [
        ("{{ m.tool_calls[0].function.arguments.items() | list }}", False),
        (
            "{% set a = m.tool_calls[0].function.arguments %}{{ a if a is string else a | tojson }}",
            True,
        ),
    ],
    ids=["wants an object", "takes a text"],
)
def test_arguments_that_are_no_object(loop, as_text, arguments):
    """Nothing where nothing was written; else the text as it is, or none where the template wants
    an object."""
    called = f"{{% if m.tool_calls %}}{{{{ m.tool_calls[0].function.name }}}} {loop}{{% endif %}}"
    template = f"{{% for m in messages %}}[{{{{ m.content }}}}{called}]{{% endfor %}}"
    said = (LOOP[0], replace(LOOP[1], tool_calls=(replace(CALL, arguments=arguments),)), LOOP[2])
    kept = arguments if as_text and arguments else ("{}" if as_text else "[]")
    assert shown(template, said) == f"[Hi][f {kept}][3]"


@cases(
    "begin, wants_none",
    """
    ["{% if m.content is none %}", true]
    ["{% if m.content == '' %}", false]
    ["{% if 'x' not in m.content %}", false]
    """,
)
def test_content_beside_calls_is_as_the_template_can_take_it(begin, wants_none):
    template = f"{{% for m in messages %}}{begin}{CALLS}{{% else %}}{{{{ m.content }}}}{{% endif %}}{{% endfor %}}"
    said = (LOOP[0], LOOP[1], LOOP[2])
    if "not in" in begin:
        template = "{% for m in messages %}{{ m.content.split('x')[0] }}" + CALLS + "{% endfor %}"
    assert shown(template, said) == "Hi(f {'a': 1})3".replace("'", '"')
    assert traits_of(template)["no_content"] is wants_none


@pytest.mark.parametrize(
    ("template", "field"),
    [
        ("{{ m.reasoning_content }}", "reasoning_content"),
        ("{{ m.thinking }}", "thinking"),
        ("{{ m.reasoning }}", "reasoning"),
        (
            "{% if m.content is not string %}{{ m.content[0].thinking }}{{ m.content[1].text }}{% endif %}",
            "parts",
        ),
    ],
)
def test_a_thought_comes_where_the_template_finds_it(template, field):
    content = "{% if m.content is string %}{{ m.content }}{% endif %}"
    whole = f"{{% for m in messages %}}[{template}{content}]{{% endfor %}}"
    said = (LOOP[0], ChatMessage("assistant", "Yes.", reasoning="Hm."), ChatMessage("user", "So?"))
    assert traits_of(whole)["thoughts"] == field
    assert shown(whole, said) == "[Hi][Hm.Yes.][So?]"


def test_content_parts_for_a_template_that_wants_them():
    template = "{% for m in messages %}{{ m.role }}: {{ m.content[0].text | trim }}\n{% endfor %}"
    assert shown(template, SAID) == "system: be\nuser: hello\n"


def test_an_empty_list_of_tools_for_a_template_that_counts_them():
    template = "{{ tools | length }}{% for m in messages %} {{ m.content }}{% endfor %}"
    assert shown(template, SAID) == "0 be hello"


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


def test_what_a_template_writes_after_the_end_is_no_part_of_what_goes_on():
    """So a system message there is as good as dropped."""
    template = "{% for m in messages[1:] %}[{{ m.content }}]{% endfor %}{{ messages[0].content }}"
    traits = traits_of(template)
    told = rendered(template, BEGUN, continued=True, traits=traits)
    assert told == {"refused": "it does not show messages[0], of the role system"}
