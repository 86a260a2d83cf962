"""A conversation in the terminal."""

import builtins
import sys
from collections.abc import Generator
from unittest.mock import Mock

import pytest

from specmesh.cli.generate import Conversation
from specmesh.core.fields import Json


class FakeClient:
    """Answers in upper case, a letter per chunk, and notes what it was asked; `!` is Ctrl-C."""

    def __init__(self) -> None:
        self.asked: list[Json] = []
        self.closed = 0

    def complete(self, body: Json) -> Generator[Json, None, None]:
        self.asked.append({name: list(value) if isinstance(value, list) else value for name, value in body.items()})
        try:
            for letter in body["messages"][-1]["content"].upper():
                if letter == "!":
                    raise KeyboardInterrupt
                yield {"choices": [{"delta": {"content": letter}}]}
        finally:
            self.closed += 1


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch):
    """Makes input() return these lines; an exception among them is raised."""

    def lines(*said: str | type[BaseException]) -> None:
        monkeypatch.setattr(sys, "stdin", Mock(**{"isatty.return_value": True}))
        monkeypatch.setattr(builtins, "input", Mock(side_effect=[*said, EOFError]))

    return lines


def talk(**kind: object) -> FakeClient:
    client = FakeClient()
    Conversation(client, {"temperature": 0}, **kind).run()  # type: ignore[arg-type]
    return client


def roles(body: Json) -> list[tuple[str, str]]:
    return [(message["role"], message["content"]) for message in body["messages"]]  # type: ignore[attr-defined]


def test_what_was_said_is_asked_again(typed, capsys):
    """Each turn has the ones before, and the system's message first."""
    typed("hi", "", "you")
    client = talk(system="be")
    assert capsys.readouterr().out == "HI\nYOU\n"
    assert roles(client.asked[0]) == [("system", "be"), ("user", "hi")]
    assert roles(client.asked[1]) == [("system", "be"), ("user", "hi"), ("assistant", "HI"), ("user", "you")]
    assert client.asked[0]["temperature"] == 0


def test_commands(typed, capsys):
    """/clear begins anew, /bye ends, /help explains on stderr."""
    typed("hi", "/clear", "/help", "you", "/bye", "never")
    client = talk(system="be")
    assert roles(client.asked[1]) == [("system", "be"), ("user", "you")]
    assert len(client.asked) == 2
    told = capsys.readouterr()
    assert (told.out, told.err.count("/clear")) == ("HI\nYOU\n", 2)


def test_an_interrupted_answer_counts_as_far_as_it_came(typed, capsys):
    """Ctrl-C closes the stream, and the conversation goes on."""
    typed("ab!cd", KeyboardInterrupt, "x")
    client = talk()
    assert client.closed == 2
    assert roles(client.asked[1])[1] == ("assistant", "AB")
    assert capsys.readouterr().out == "AB\nX\n"
