"""The judges of templates and schemas see a loss, a refusal, and an invalid document."""

import re
from importlib import import_module
from pathlib import Path

import pytest
from harness.tables import cases

BENCH = Path(__file__).parents[3] / "bench"
CHAT = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"


@pytest.fixture
def bench(monkeypatch):
    """Import a program of bench/."""
    monkeypatch.syspath_prepend(str(BENCH))
    return import_module


@pytest.fixture
def templates(bench):
    return bench("templates")


@pytest.fixture
def validity(bench):
    return bench("validity")


@cases(
    "source, shape, kind",
    """
    [$CHAT, "user", "rendered"]
    [$CHAT, "tools", "merged"]
    ["Hello", "user", "refused"]
    ["{{ raise_exception('no') }}", "user", "refused"]
    ["{{ unknown.name }}", "user", "refused"]
    ["{{ ", "user", "FAILED"]
    """,
    CHAT=CHAT,
)
def test_what_became_of_a_shape(templates, source, shape, kind):
    assert templates.outcomes(source)[shape].kind == kind


def test_a_lost_message_is_seen(templates, monkeypatch):
    monkeypatch.setattr(templates.TemplateTokenizer, "chat_text", lambda *_, **__: "Hello")
    assert templates.outcomes(CHAT)["user"].kind == "LOST"


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "uniqueItems": True}


@pytest.mark.parametrize(
    ("text", "wrong"),
    [('{"a": 1}', "^$"), ('{"a": "1"}', "/a: type:"), ('{"a": 1', "no JSON")],
)
def test_violation(validity, text, wrong):
    assert re.match(wrong, validity.violation(SCHEMA, text))


def test_repeated_names(validity):
    """An escaped spelling is the same name."""
    assert validity.repeated_names('[{"a": 1, "b": 2, "\\u0061": 3}]') == ["a"]


def test_ignored_keywords(validity):
    """A keyword is left out; a property of the same name stays."""
    schema = {"properties": {"not": {"not": {}, "pattern": "^(?!x)"}}, "enum": [{"not": 1}]}
    kept = {"properties": {"not": {}}, "enum": [{"not": 1}]}
    assert validity.without_ignored(schema) == kept
