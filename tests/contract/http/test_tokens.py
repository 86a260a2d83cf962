"""llama-server's resources: ids of a text, text of ids and of a chat, what is served; and what is not."""

from dataclasses import replace
from typing import Any

import pytest
from asgi_calls import EVENTS, FakeDaemon, ask, get

from specmesh.api.requests import ModelInfo
from specmesh.core.chat import Tokenizer
from specmesh.core.vocabulary.vocabulary import Vocabulary
from specmesh.engines.sim import SimSettings, SimVerifier
from specmesh.errors import NotOffered

CHAT = {"messages": [{"role": "user", "content": "Hi"}]}


class Target(SimVerifier):
    """It begins texts with a token of its own."""

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        return [1] * special + super().encode(text)


class Verifier(FakeDaemon):
    tokenizer: Tokenizer = Target(SimSettings(n_vocab=300))
    vocabulary: Vocabulary = tokenizer.vocabulary


class Drafter(FakeDaemon):
    @property
    def tokenizer(self) -> Tokenizer:
        raise NotOffered("ask the verifier")


@pytest.mark.parametrize(
    ("body", "tokens"),
    [
        ({"content": "hi", "add_special": True}, [1, 104, 105]),
        ({"content": ["hi", 299, "é"], "add_special": True}, [1, 104, 105, 299, 195, 169]),
        ({"content": "é", "with_pieces": True}, [{"id": 195, "piece": [195]}, {"id": 169, "piece": [169]}]),
        ({"content": ["h", 299], "with_pieces": True}, [{"id": 104, "piece": "h"}, {"id": 299, "piece": "<299>"}]),
        ({}, []),
    ],
)
def test_tokenize(body: object, tokens: list[object]):
    assert ask(Verifier(), "/tokenize", body).json() == {"tokens": tokens}


@pytest.mark.parametrize(("tokens", "text"), [([104, 105, 299], "hi<299>"), ([195, 169, 195], "é\ufffd"), (None, "")])
@pytest.mark.parametrize("daemon", [Verifier, Drafter])
def test_detokenize(daemon: type[FakeDaemon], tokens: object, text: str):
    """At a drafter too, which has the verifier's vocabulary."""
    made = daemon()
    made.vocabulary = Verifier.vocabulary
    assert ask(made, "/detokenize", {"tokens": tokens}).json() == {"content": text}


def test_apply_template():
    """What the same chat would be answered after."""
    assert ask(Verifier(), "/apply-template", CHAT).json() == {"prompt": "user: Hi\nassistant: "}
    begun = {"messages": [*CHAT["messages"], {"role": "assistant", "content": "Well"}]}
    assert ask(Verifier(), "/apply-template", begun).json() == {"prompt": "user: Hi\nassistant: Well"}


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/tokenize", {"content": ["a", -1]}, "content"),
        ("/tokenize", {"content": [300], "with_pieces": True}, "content"),
        ("/tokenize", {"content": "a", "parse_special": False}, "parse_special"),
        ("/detokenize", {"tokens": [300]}, "tokens"),
        ("/apply-template", {"messages": []}, "messages"),
    ],
)
def test_refusals_name_the_field(path: str, body: object, field: str):
    answer = ask(Verifier(), path, body)
    assert (answer.status, answer.json()["error"]["param"]) == (400, field)


def test_what_is_not_offered():
    for daemon, path in ((Drafter(), "/tokenize"), (Drafter(), "/apply-template"), (Verifier(), "/v1/embeddings")):
        answer = ask(daemon, path, CHAT)
        assert (answer.status, answer.json()["error"]["code"]) == (501, "not_offered")


def test_props():
    """llama-server's fields; what is not known is null."""
    told: Any = get(Verifier(), "/props").json()
    assert (told["model_path"], told["total_slots"], told["chat_template"]) == ("fake-model", None, None)
    assert told["default_generation_settings"] == {"n_ctx": None}
    assert told["build_info"].startswith("specmesh-")


@pytest.mark.parametrize(
    ("template", "ignored"),
    [
        ("{{ enable_thinking }}{{ add_generation_prompt }}", "reasoning_effort, effort"),
        ("{{ reasoning_effort }}", "effort, enable_thinking, add_generation_prompt"),
        ("", None),  # not known here: the verifier's
    ],
)
def test_variables_that_the_template_does_not_name(template: str, ignored: str | None):
    """Ignored, and said so, like fields that nobody reads."""
    variables = {"effort": 1, "enable_thinking": False}
    body = CHAT | {"reasoning_effort": "low", "chat_template_kwargs": variables, "add_generation_prompt": False}
    answer = ask(Templated(template), "/v1/chat/completions", body)
    assert answer.status == 200
    assert answer.headers.get("x-specmesh-ignored") == ignored


class Templated(FakeDaemon):
    def __init__(self, template: str) -> None:
        super().__init__(*EVENTS)
        self._texts = {"chat_template": template} if template else {}

    def served(self, name: str) -> ModelInfo:
        return replace(super().served(name), texts=self._texts)
