"""The judges of templates and schemas see a loss, a refusal, and an invalid document."""

from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

BENCH = Path(__file__).parents[3] / "bench"
CHAT = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"


@pytest.fixture
def templates(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCH))
    return import_module("templates")


@pytest.fixture
def validity(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCH))
    return import_module("validity")


@pytest.mark.parametrize(
    ("source", "shape", "kind"),
    [
        (CHAT, "user", "rendered"),
        (CHAT, "tools", "merged"),
        ("Hello", "user", "refused"),
        ("{{ raise_exception('no') }}", "user", "refused"),
        ("{{ unknown.name }}", "user", "refused"),
        ("{{ ", "user", "FAILED"),
    ],
    ids=["rendered", "tools in words", "shows nothing", "refused", "error", "no template"],
)
def test_what_became_of_a_shape(templates: ModuleType, source: str, shape: str, kind: str):
    assert templates.outcomes(source)[shape].kind == kind


def test_a_lost_message_is_seen(templates: ModuleType, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(templates.TemplateTokenizer, "chat_text", lambda *_, **__: "Hello")
    assert templates.outcomes(CHAT)["user"].kind == "LOST"


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "uniqueItems": True}


@pytest.mark.parametrize(
    ("text", "wrong"),
    [('{"a": 1}', ""), ('{"a": "1"}', "/a: type:"), ('{"a": 1', "no JSON")],
    ids=["valid", "type", "no JSON"],
)
def test_violation(validity: ModuleType, text: str, wrong: str):
    assert validity.violation(SCHEMA, text)[: len(wrong) or None] == wrong


def test_repeated_names(validity: ModuleType):
    """An escaped spelling is the same name."""
    assert validity.repeated_names('[{"a": 1, "b": 2, "\\u0061": 3}]') == ["a"]


def test_ignored_keywords(validity: ModuleType):
    """A keyword is left out; a property of the same name stays."""
    schema = {"properties": {"not": {"not": {}, "pattern": "^(?!x)"}}, "enum": [{"not": 1}]}
    kept = {"properties": {"not": {}}, "enum": [{"not": 1}]}
    assert validity.without_ignored(schema) == kept
