"""What real clients sent, as `bench/clients.py --record` wrote it down, at a verifier with a key and at a drafter.

The clients themselves are not needed here: `client_bodies.json` has their requests (of those with tools, one for each
form of answer), and of each answer is read what the client that asked would read.
"""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from processes import Mesh
from served import Answer, Served, serve

Json = dict[str, Any]
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
    elif streams:
        check_stream(answer, body, chat=chat)
    else:
        check_whole(answer, body, chat=chat)


def check_whole(answer: Answer, body: Json, *, chat: bool) -> None:
    """An answer at once: a choice for each prompt, texts as they were asked for, the usage."""
    check_head(answer.json(), "chat.completion" if chat else "text_completion")
    assert [choice["index"] for choice in answer.choices] == list(range(prompts(body)))
    for choice in answer.choices:
        assert not chat or choice["message"]["role"] == "assistant"
        check_text(said(choice["message"]) if chat else choice["text"], choice["finish_reason"], body)
    check_usage(answer.json()["usage"], body)


def check_stream(answer: Answer, body: Json, *, chat: bool) -> None:
    """Chunks of one answer, in order: who speaks, the text, one end, the usage where it was asked for, [DONE]."""
    chunks = answer.chunks()
    assert len({chunk["id"] for chunk in chunks}) == 1
    for chunk in chunks:
        check_head(chunk, "chat.completion.chunk" if chat else "text_completion")
    if body.get("stream_options"):
        last = chunks.pop()
        assert last["choices"] == []
        check_usage(last["usage"], body)
    choices: list[Json] = [choice for chunk in chunks for choice in chunk["choices"]]
    assert len(choices) == len(chunks)
    texts: dict[int, str] = {}
    for choice in choices:
        text = said(choice["delta"]) if chat else choice["text"]
        texts[choice["index"]] = texts.get(choice["index"], "") + text
    if chat:
        first, *others = (choice["delta"].get("role") for choice in choices)
        assert (first, set(others)) == ("assistant", {None})
    ends = [(choice["index"], choice["finish_reason"]) for choice in choices if choice["finish_reason"] is not None]
    assert sorted(texts) == sorted(index for index, _ in ends) == list(range(prompts(body)))
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


def said(message: Json) -> str:
    """The content of a message or a delta, or the arguments of its calls."""
    calls = message.get("tool_calls") or ()
    return (message.get("content") or "") + "".join(call["function"]["arguments"] for call in calls)


def prompts(body: Json) -> int:
    """How many answers a body asks for."""
    prompt = body.get("prompt")
    return len(prompt) if isinstance(prompt, list) else 1


def check_head(answer: Json, kind: str) -> None:
    """What every answer and chunk begins with."""
    assert answer["object"] == kind
    assert str(answer["id"]).partition("-")[0] in {"chatcmpl", "cmpl"}
    assert (type(answer["created"]), answer["model"]) == (int, "sim-target")


def check_text(text: object, finish: object, body: Json) -> None:
    """A text, of the form that was asked for."""
    assert isinstance(text, str)
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


def check_usage(usage: Json, body: Json) -> None:
    """Tokens are counted, and no more than were asked for."""
    most = body.get("max_tokens") or body["max_completion_tokens"]
    assert 0 < usage["completion_tokens"] <= most * prompts(body)
    assert usage["prompt_tokens"] > 0
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
