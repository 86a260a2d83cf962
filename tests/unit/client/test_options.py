"""The options, addresses and bodies that a client takes or refuses, each with an error of ours."""

import asyncio
import json
from collections import deque
from fractions import Fraction
from types import MappingProxyType

import pytest

from specmesh import AsyncClient, Client, errors
from specmesh.client import sync
from specmesh.client.connections import Connections
from specmesh.client.http_exchange import written
from specmesh.client.request_bodies import text_body
from specmesh.paths import MAX_SOCKET_PATH

CLIENTS = pytest.mark.parametrize("kind", [Client, AsyncClient])
SCHEMA = MappingProxyType({"type": "object"})
CYCLE = {}
CYCLE["a"] = CYCLE


class Index:
    """A whole number, as numpy has them."""

    def __index__(self):
        return 7


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (SCHEMA, {"type": "object"}),
        (deque(["a"]), ["a"]),
        (range(2), [0, 1]),
        ([Index()], [7]),
        (Fraction(1, 2), 0.5),
    ],
)
def test_values_that_are_as_good_as_json(value, expected):
    assert json.loads(written({"a": value})) == {"a": expected}


DEEP = []
for _ in range(10_000):
    DEEP = [DEEP]


@pytest.mark.parametrize("value", [{"a"}, b"a", object(), float("nan"), CYCLE, DEEP])
def test_values_that_are_no_json(value):
    with pytest.raises(errors.RequestError, match="no JSON"):
        written({"a": value})


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"prompt": "a\ud800"}, "prompt"),
        ({"stop": ["x", "a\udce9"]}, "stop[1]"),
        ({"prediction": {"content": "\udfff"}}, "prediction.content"),
        ({"messages": (MappingProxyType({"content": "\ud800"}),)}, "messages[0].content"),
    ],
)
def test_a_text_that_is_not_utf_8_is_refused_by_its_field(body, field):
    with pytest.raises(errors.RequestError, match="is not UTF-8") as caught:
        written({"max_tokens": 1, **body})
    assert caught.value.param == field


def test_bytes_of_a_command_line_that_are_utf_8_are_taken():
    """In a locale without UTF-8 Python keeps them as half surrogate pairs."""
    assert written({"prompt": "caf\udcc3\udca9"}) == '{"prompt": "café"}'.encode()


@CLIENTS
@pytest.mark.parametrize("option", ["temprature", "n", "stream", "tools"])
def test_an_option_that_there_is_not(kind, option):
    """The daemon would ignore it, or answer with what the client loses."""
    with pytest.raises(errors.RequestError, match=option) as caught:
        kind("/none").stream("x", **{option: 1})
    assert caught.value.param == option


@CLIENTS
@pytest.mark.parametrize("prompt", [b"abc", None, 5, {"a": 1}])
def test_no_prompt(kind, prompt):
    with pytest.raises(errors.RequestError) as caught:
        kind("/none").stream(prompt)
    assert caught.value.param == "prompt"


@CLIENTS
@pytest.mark.parametrize("messages", ["Hi", None, {"role": "user", "content": "Hi"}])
def test_no_messages(kind, messages):
    with pytest.raises(errors.RequestError) as caught:
        kind("/none").stream_chat(messages)
    assert caught.value.param == "messages"


@CLIENTS
@pytest.mark.parametrize(
    "address", ["", "/a\0b", b"/a", 5, "/" + "a" * MAX_SOCKET_PATH, "http://a..b/", "unix:///a"]
)
def test_no_address(kind, address):
    with pytest.raises(errors.ConfigError):
        kind(address)


def test_no_address_in_the_environment(monkeypatch):
    monkeypatch.setenv("SPECMESH_SOCKET", "/" + "a" * MAX_SOCKET_PATH)
    with pytest.raises(errors.ConfigError, match="too long"):
        Client()


@CLIENTS
@pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf"), "5", True])
def test_no_timeout(kind, timeout):
    with pytest.raises(errors.ConfigError, match="timeout"):
        kind("/none", timeout)


@CLIENTS
def test_no_key(kind):
    with pytest.raises(errors.ConfigError, match="API key"):
        kind("/none", api_key=None)


def test_a_closed_client():
    client = Client("/none")
    client.close()
    with pytest.raises(errors.RequestError, match="this client is closed"):
        client.stream("x")


def test_a_closed_asynchronous_client():
    client = AsyncClient("/none")
    asyncio.run(client.close())
    with pytest.raises(errors.RequestError, match="this client is closed"):
        client.stream("x")


def test_a_stream_that_is_made_while_its_client_is_closed(monkeypatch):
    """As by another thread: the stream would be left open."""
    client = Client("/none")

    class Late(sync.Stream):
        def __init__(self, *parts):
            client.close()
            super().__init__(*parts)

    monkeypatch.setattr(sync, "Stream", Late)
    with pytest.raises(errors.RequestError, match="this client is closed"):
        client.stream("x")


def test_a_connection_that_is_made_while_its_owner_is_closed():
    """Whoever made it learns that nobody will end it."""
    cut = []
    connections = Connections("stream", cut.append)
    connections.add("early")
    connections.close()
    with pytest.raises(errors.RequestError, match="this stream is closed"):
        connections.add("late")
    assert cut == ["early"]


def test_a_connection_that_has_ended_is_not_cut():
    cut = []
    connections = Connections("stream", cut.append)
    connections.add("over")
    connections.discard("over")
    connections.close()
    assert cut == []


FORM = {"type": "content", "content": "y"}


@pytest.mark.parametrize("prediction", ["y", FORM])
def test_a_prediction_goes_in_openais_form(prediction):
    body = text_body("x", {"prediction": prediction}, progress=False)
    assert body == {"prompt": "x", "prediction": FORM}


def test_an_option_without_a_value_is_left_to_the_daemon():
    body = text_body("x", {"seed": None, "top_k": 0}, progress=False)
    assert body == {"prompt": "x", "top_k": 0}
