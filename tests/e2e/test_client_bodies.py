"""What real clients sent, as `bench/clients.py --record` wrote it down, at a verifier with a key and at a drafter.

The clients themselves are not needed here: `client_bodies.json` has their requests (of those with tools, one for each
form of answer), and of each answer is read what the client that asked would read.
"""

import json
from pathlib import Path

import jsonschema
import pytest
from processes import Json, Mesh
from served import Answer, Served, serve

ASKED: list[Json] = json.loads(Path(__file__).with_name("client_bodies.json").read_text())


@pytest.fixture(scope="module")
def served(shared: Mesh) -> dict[str, Served]:
    return serve(shared, "step_ms=1,n_ctx=8000")


@pytest.mark.parametrize("asked", ASKED, ids=lambda asked: f"{asked['client']}{asked['path']}")
def test_a_client_is_answered(served: dict[str, Served], role: str, asked: Json):
    """What it reads is there. The drafter, which wants no key, is sent one all the same."""
    body, chat = asked["body"], "chat" in asked["path"]
    key = {"Authorization": f"Bearer {served['verifier'].key}"} if asked["key"] else {}
    answer = served[role].ask(asked["method"], asked["path"], body, **asked["headers"] | key)
    streams = body is not None and body.get("stream")
    assert answer.headers["content-type"].startswith("text/event-stream" if streams else "application/json")
    if body is None:
        assert [model["id"] for model in answer.json()["data"]] == ["sim-target"]
    elif "input" in body:
        check_response(answer, body)
    else:
        check_answer(answer.chunks() if streams else [answer.json()], body, streams=bool(streams), chat=chat)


def check_answer(told: list[Json], body: Json, *, streams: bool, chat: bool) -> None:
    """An answer at once, or its chunks in order: who speaks, texts as they were asked for, one end of each, the usage
    where it was asked for."""
    count = len(body["prompt"]) if isinstance(body.get("prompt"), list) else 1
    kind = ("chat.completion" if chat else "text_completion") + ".chunk" * (chat and streams)
    assert {(one["object"], type(one["created"]), one["model"]) for one in told} == {(kind, int, "sim-target")}
    assert len({one["id"] for one in told}) == 1
    assert told[0]["id"].partition("-")[0] in {"chatcmpl", "cmpl"}
    if not streams or body.get("stream_options"):
        check_usage(told[-1]["usage"], body, count)
        assert not streams or told.pop()["choices"] == []
    choices: list[Json] = [choice for one in told for choice in one["choices"]]
    assert not streams or len(choices) == len(told)
    roles = [choice["delta" if streams else "message"].get("role") for choice in choices] if chat else ["assistant"]
    assert roles == ["assistant"] + [None if streams else "assistant"] * (len(roles) - 1)
    texts: dict[int, str] = {}
    for choice in choices:
        texts[choice["index"]] = texts.get(choice["index"], "") + text_of(choice)
    ends = [(choice["index"], choice["finish_reason"]) for choice in choices if choice["finish_reason"] is not None]
    assert sorted(texts) == sorted(index for index, _ in ends) == list(range(count))
    assert streams or list(texts) == sorted(texts)
    for index, finish in ends:
        check_text(texts[index], finish, body)


def check_response(answer: Answer, body: Json) -> None:
    """Events, of which the last has the call."""
    *events, rest = answer.raw.decode().split("\n\n")
    heard = [json.loads(event.partition("\ndata: ")[2]) for event in events]
    assert (heard[-1]["type"], rest) == ("response.completed", "")
    [call] = heard[-1]["response"]["output"]
    told = [one["delta"] for one in heard if one["type"] == "response.function_call_arguments.delta"]
    assert (call["type"], call["name"], call["arguments"]) == ("function_call", body["tools"][0]["name"], "".join(told))
    jsonschema.validate(json.loads(call["arguments"]), body["tools"][0]["parameters"])


def text_of(choice: Json) -> str:
    """Its text, or that of its message or delta, or the arguments of its calls."""
    message = choice.get("message") or choice.get("delta") or {}
    calls = message.get("tool_calls") or ()
    text: str = choice["text"] if "text" in choice else message.get("content") or ""
    return text + "".join(call["function"]["arguments"] for call in calls)


def check_text(text: str, finish: object, body: Json) -> None:
    assert text
    calls = body.get("tool_choice", "none") != "none"
    assert finish in ({"tool_calls"} if calls else {"stop", "length"})
    grammar, wanted = body.get("grammar"), body.get("response_format")
    if isinstance(grammar, str):
        assert (text, finish) == (json.loads(grammar.removeprefix("root ::= ")), "stop")
    if isinstance(wanted, dict):
        jsonschema.validate(json.loads(text), wanted["json_schema"]["schema"])
    if calls:
        jsonschema.validate(json.loads(text), body["tools"][0]["function"]["parameters"])


def check_usage(usage: Json, body: Json, count: int) -> None:
    """Tokens are counted, and no more than were asked for."""
    most = body.get("max_tokens") or body["max_completion_tokens"]
    assert 0 < usage["completion_tokens"] <= most * count
    assert usage["prompt_tokens"] > 0
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
