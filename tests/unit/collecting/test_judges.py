"""What judges by collected files sees a loss, a refusal, and a document that is no valid one."""

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
        ("Hello", "user", "LOST"),
        ("{{ raise_exception('no') }}", "user", "refused"),
        ("{{ unknown.name }}", "user", "refused"),
        ("{{ ", "user", "FAILED"),
    ],
    ids=["rendered", "tools in words", "lost", "refused", "error", "no template"],
)
def test_what_became_of_a_shape(templates: ModuleType, source: str, shape: str, kind: str):
    assert templates.outcomes(source)[shape].kind == kind


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "uniqueItems": True}


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ('{"a": 1}', 0),
        ('{"a": "1"}', 1),
        ('{"a": 1, "\\u0061": 2}', 1),
        ('{"a": 1', 1),
    ],
    ids=["valid", "type", "a name twice", "no JSON"],
)
def test_violations(validity: ModuleType, text: str, wrong: int):
    assert len(list(validity.violations(SCHEMA, text))) == wrong


def test_ignored_keywords(validity: ModuleType):
    """A keyword is left out where it is one, not where a property has its name."""
    schema = {"properties": {"not": {"not": {}, "pattern": "^(?!x)"}}, "enum": [{"not": 1}]}
    kept = {"properties": {"not": {}}, "enum": [{"not": 1}]}
    assert validity.without_ignored(schema) == kept
