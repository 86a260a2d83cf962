"""What real clients sent, as `bench/clients.py --record` wrote it down, at a verifier with a key and at a drafter.

The clients themselves are not needed here: `client_bodies.json` has their requests, and of each answer is read what the
client that asked would read.
"""

import http.client
import json
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import jsonschema
import pytest
from harness.ports import free_port
from processes import PATIENCE, Mesh

Json = dict[str, Any]
ASKED: list[Json] = json.loads(Path(__file__).with_name("client_bodies.json").read_text())
KEY = "sk-a-key-of-these-tests"
ENDS = ("stop", "length")


@pytest.fixture(scope="module")
def urls(shared: Mesh) -> dict[str, str]:
    """A verifier that wants a key and a drafter that wants none, which is sent one all the same."""
    keys = shared.folder / "api-keys"
    keys.touch(0o600)
    keys.write_text(KEY)
    ports = free_port(), free_port()
    shared.verifier("step_ms=1,n_ctx=8000", "--http", f"127.0.0.1:{ports[0]}", "--api-key-file", keys)
    shared.drafter("alpha=0.8", "--http", f"127.0.0.1:{ports[1]}")
    return {"verifier": f"http://127.0.0.1:{ports[0]}", "drafter": f"http://127.0.0.1:{ports[1]}"}


@pytest.mark.parametrize("daemon", ["verifier", "drafter"])
@pytest.mark.parametrize("asked", ASKED, ids=lambda asked: f"{asked['client']}{asked['path']}")
def test_a_client_is_answered(urls: dict[str, str], daemon: str, asked: Json):
    """What it reads is there."""
    raw = answered(urls[daemon], asked)
    body = asked["body"]
    if body is None:
        assert [model["id"] for model in json.loads(raw)["data"]] == ["sim-target"]
    elif body.get("stream"):
        check_stream(raw, body, chat="chat" in asked["path"])
    else:
        check_whole(json.loads(raw), body, chat="chat" in asked["path"])


def answered(url: str, asked: Json) -> bytes:
    """The body of its answer, whose status is 200."""
    headers = asked["headers"] | ({"Authorization": f"Bearer {KEY}"} if asked["key"] else {})
    parts = urlsplit(url)
    with closing(http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=PATIENCE)) as connection:
        raw = None if asked["body"] is None else json.dumps(asked["body"])
        connection.request(str(asked["method"]), str(asked["path"]), raw, headers)
        answer = connection.getresponse()
        told = answer.read()
    assert answer.status == 200, told
    streams = isinstance(asked["body"], dict) and asked["body"].get("stream")
    kind = "text/event-stream" if streams else "application/json"
    assert (answer.getheader("Content-Type") or "").startswith(kind)
    return told


def check_whole(answer: Json, body: Json, *, chat: bool) -> None:
    """An answer at once: a choice for each prompt, texts as they were asked for, the usage."""
    assert answer["object"] == ("chat.completion" if chat else "text_completion")
    check_head(answer)
    choices: list[Json] = answer["choices"]
    assert [choice["index"] for choice in choices] == list(range(prompts(body)))
    for choice in choices:
        if chat:
            assert choice["message"]["role"] == "assistant"
        check_text(choice["message"]["content"] if chat else choice["text"], choice["finish_reason"], body)
    check_usage(answer["usage"], body)


def check_stream(raw: bytes, body: Json, *, chat: bool) -> None:
    """Chunks of one answer, in order: who speaks, the text, one end, the usage where it was asked for, [DONE]."""
    *events, end, rest = raw.decode().split("\n\n")
    assert (end, rest) == ("data: [DONE]", "")
    chunks: list[Json] = [json.loads(event.removeprefix("data: ")) for event in events]
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk" if chat else "text_completion"}
    assert len({chunk["id"] for chunk in chunks}) == 1
    for chunk in chunks:
        check_head(chunk)
    if body.get("stream_options"):
        last = chunks.pop()
        assert last["choices"] == []
        check_usage(last["usage"], body)
    choices: list[Json] = [choice for chunk in chunks for choice in chunk["choices"]]
    assert len(choices) == len(chunks)
    texts: dict[object, str] = {}
    for choice in choices:
        said = choice["delta"].get("content") if chat else choice["text"]
        texts[choice["index"]] = texts.get(choice["index"], "") + (said or "")
    if chat:
        first, *others = (choice["delta"].get("role") for choice in choices)
        assert (first, set(others)) == ("assistant", {None})
    assert sorted(texts) == list(range(prompts(body)))
    ends = {choice["index"]: choice["finish_reason"] for choice in choices if choice["finish_reason"] is not None}
    assert len(ends) == sum(choice["finish_reason"] is not None for choice in choices) == len(texts)
    for index, text in texts.items():
        check_text(text, ends[index], body)


def prompts(body: Json) -> int:
    """How many answers a body asks for."""
    prompt = body.get("prompt")
    return len(prompt) if isinstance(prompt, list) else 1


def check_head(answer: Json) -> None:
    """What every answer and chunk begins with."""
    assert str(answer["id"]).partition("-")[0] in {"chatcmpl", "cmpl"}
    assert (type(answer["created"]), answer["model"]) == (int, "sim-target")


def check_text(text: object, finish: object, body: Json) -> None:
    """A text, of the form that was asked for."""
    assert isinstance(text, str)
    assert text
    assert finish in ENDS
    grammar, wanted = body.get("grammar"), body.get("response_format")
    if isinstance(grammar, str):
        assert (text, finish) == (json.loads(grammar.removeprefix("root ::= ")), "stop")
    if isinstance(wanted, dict):
        jsonschema.validate(json.loads(text), wanted["json_schema"]["schema"])


def check_usage(usage: object, body: Json) -> None:
    """Tokens are counted, and no more than were asked for."""
    assert isinstance(usage, dict)
    most = body.get("max_tokens") or body.get("max_completion_tokens")
    assert isinstance(most, int)
    assert 0 < usage["completion_tokens"] <= most * prompts(body)
    assert usage["prompt_tokens"] > 0
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
