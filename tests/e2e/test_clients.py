"""Requests that API clients send every day, at a verifier with a key and at a drafter.

`client_bodies.json` has requests of real clients (of those with tools, one for each form of
answer), as `bench/clients --record` wrote it. Of each answer the tests read what that client reads.
"""

import json
from functools import partial
from operator import itemgetter
from pathlib import Path

import jsonschema
import pytest
from harness.tables import cases
from processes import sim_text
from served import CONTEXT, PAGE, SAID

ASKED = json.loads(Path(__file__).with_name("client_bodies.json").read_text())
NULLS = """
model user seed stop stream stream_options logit_bias n logprobs top_p top_k presence_penalty
frequency_penalty response_format tools tool_choice parallel_tool_calls metadata store modalities
audio prediction reasoning_effort functions function_call service_tier web_search_options grammar
json_schema min_p cache_prompt mirostat draft_n guided_json top_logprobs suffix echo best_of resume
strategy nonsense
"""
USAGE = {"stream_options": {"include_usage": True}}
HI = sim_text("user: Hi\nassistant: ", 12)


def test_null_is_left_out(server):
    """A field that is null is a field that is not there, known or not."""
    nulls = dict.fromkeys(NULLS.split())
    answer = server.complete(**nulls)
    assert answer.texts == [sim_text("once", 12)]
    assert "x-specmesh-ignored" not in answer.headers
    assert server.chat(**nulls, max_completion_tokens=None).texts == [HI]


@pytest.mark.fault("E7.80")
def test_max_tokens_of_minus_one(server):
    """The text goes on to the end of the context."""
    answer = server.complete(prompt="x" * (CONTEXT - 30), max_tokens=-1)
    assert (answer.usage, answer.choices[0]["finish_reason"]) == ((CONTEXT - 30, 30), "length")


@pytest.mark.parametrize("stream", [False, True])
def test_max_tokens_of_zero(server, stream):
    answer = server.complete(max_tokens=0, stream=stream, **USAGE)
    bodies = answer.chunks() if stream else [answer.json()]
    choices = []
    for part in bodies:
        choices += part["choices"]
    assert {choice["text"] for choice in choices} == {""}
    assert choices[-1]["finish_reason"] == "length"
    usage = bodies[-1]["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (4, 0)


def test_prompts(server):
    """Each prompt of a list has its choices, numbered as OpenAI does.

    Those of a request of its own.
    """
    ask = partial(server.complete, n=2, seed=5, temperature=100, top_k=50)
    prompts = ["once", [104, 105], ""]
    texts = []
    for prompt in prompts:
        texts += ask(prompt=prompt).texts
    together = ask(prompt=prompts)
    assert together.texts == texts
    assert len(set(texts)) == 6
    assert [choice["index"] for choice in together.choices] == list(range(6))
    assert together.usage == (4 + 2 + 1, 6 * 12)
    *chunks, last = ask(prompt=prompts, stream=True, **USAGE).chunks()
    assert texts_of(chunks, 6) == texts
    assert last["usage"]["completion_tokens"] == 6 * 12


def texts_of(chunks, count):
    """Return the texts of a stream with so many choices."""
    texts = [""] * count
    for chunk in chunks:
        [choice] = chunk["choices"]
        texts[choice["index"]] += text_of(choice)
    return texts


def test_unknown_fields(server):
    """They are ignored, and named in a header."""
    content = [{"type": "text", "text": "Hi", "cache_control": {}}]
    message = {"role": "user", "content": content, "mood": "good"}
    answer = server.chat(message, nonsense=1, dry_base=1.75, user="me")
    assert answer.texts == [HI]
    names = answer.headers["x-specmesh-ignored"].split(", ")
    assert {"nonsense", "dry_base"} <= set(names)


@cases(
    "content, fields, end",
    """
    ["The sky  ", {}, ""]
    ["The sky  ", {"add_generation_prompt": false}, ""]
    ["The sky  ", {"continue_final_message": true, "add_generation_prompt": false}, ""]
    [[{"type": "text", "text": "The "}, {"type": "text", "text": "sky  "}], {}, ""]
    ["The sky  ", {"continue_final_message": false}, "\\nassistant: "]
    ["The sky  ", {"add_generation_prompt": true}, "\\nassistant: "]
    """,
)
def test_a_trailing_assistant_message_goes_on(server, content, fields, end):
    """The text continues it, to its last space; an answer begins only on request."""
    begun = {"role": "assistant", "content": content}
    expected = sim_text("user: Hi\nassistant: The sky  " + end, 12)
    assert server.chat(*SAID, begun, **fields).texts == [expected]


def test_a_page_that_is_allowed_asks_first(server):
    wanted = {"Access_Control_Request_Method": "POST", "Origin": PAGE, "Authorization": ""}
    preflight = server.ask("OPTIONS", "/v1/chat/completions", **wanted)
    assert preflight.status == 200
    assert preflight.headers["access-control-allow-origin"] == PAGE


def test_a_page_that_is_allowed_reads_the_answer(server):
    answer = server.ask("POST", "/v1/completions", {"prompt": "once", "max_tokens": 2}, Origin=PAGE)
    assert answer.status == 200
    assert answer.headers["access-control-allow-origin"] == PAGE
    exposed = answer.headers["access-control-expose-headers"].lower()
    assert {"x-specmesh-ignored", "x-specmesh-merged"} <= set(exposed.split(", "))


@pytest.mark.parametrize("asked", ASKED, ids=lambda asked: f"{asked['client']}{asked['path']}")
def test_a_client_is_answered(served, role, asked):
    """The answer has everything the client reads. The drafter wants no key, and ignores it."""
    body = asked["body"]
    headers = dict(asked["headers"])
    if asked["key"]:
        headers["Authorization"] = f"Bearer {served['verifier'].key}"
    answer = served[role].ask(asked["method"], asked["path"], body, **headers)
    if body is None:
        assert [model["id"] for model in answer.json()["data"]] == ["sim-target"]
    elif "input" in body:
        check_response(answer, body)
    elif body.get("stream"):
        assert answer.headers["content-type"].startswith("text/event-stream")
        check_chunks(answer.chunks(), body, chat="chat" in asked["path"])
    else:
        assert answer.headers["content-type"].startswith("application/json")
        check_answer(answer.json(), body, chat="chat" in asked["path"])


def prompts_of(body):
    prompt = body.get("prompt")
    return len(prompt) if isinstance(prompt, list) else 1


def check_chunks(chunks, body, *, chat):
    """Check the chunks of a stream in order."""
    for chunk in chunks:
        check_envelope(chunk, "chat.completion.chunk" if chat else "text_completion")
    assert len({chunk["id"] for chunk in chunks}) == 1
    if body.get("stream_options"):
        last = chunks.pop()
        assert last["choices"] == []
        check_usage(last["usage"], body)
    choices = [chunk["choices"][0] for chunk in chunks]
    ends = [choice for choice in choices if choice["finish_reason"] is not None]
    ends.sort(key=itemgetter("index"))
    texts = texts_of(chunks, prompts_of(body))
    for text, end in zip(texts, ends, strict=True):
        check_text(text, end["finish_reason"], body)
    if chat:
        roles = [choice["delta"].get("role") for choice in choices]
        assert roles == ["assistant"] + [None] * (len(roles) - 1)


def check_answer(answer, body, *, chat):
    check_envelope(answer, "chat.completion" if chat else "text_completion")
    check_usage(answer["usage"], body)
    choices = answer["choices"]
    assert [choice["index"] for choice in choices] == list(range(prompts_of(body)))
    for choice in choices:
        check_text(text_of(choice), choice["finish_reason"], body)
        if chat:
            assert choice["message"]["role"] == "assistant"


def check_envelope(part, kind):
    assert (part["object"], part["model"]) == (kind, "sim-target")
    assert type(part["created"]) is int
    assert part["id"].partition("-")[0] in {"chatcmpl", "cmpl"}


def check_usage(usage, body):
    most = body.get("max_tokens") or body["max_completion_tokens"]
    assert 0 < usage["completion_tokens"] <= most * prompts_of(body)
    assert usage["prompt_tokens"] > 0
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


def text_of(choice):
    """Return the text of a choice or its chunk, and the arguments of its calls."""
    message = choice.get("message") or choice.get("delta") or choice
    text = message.get("text") or message.get("content") or ""
    for call in message.get("tool_calls") or ():
        text += call["function"]["arguments"]
    return str(text)


def check_response(answer, body):
    """Check events whose last one has the call."""
    *texts, rest = answer.raw.decode().split("\n\n")
    events = [json.loads(text.partition("\ndata: ")[2]) for text in texts]
    assert (events[-1]["type"], rest) == ("response.completed", "")
    [call] = events[-1]["response"]["output"]
    [tool] = body["tools"][:1]
    arguments = ""
    for event in events:
        if event["type"] == "response.function_call_arguments.delta":
            arguments += event["delta"]
    assert (call["type"], call["name"]) == ("function_call", tool["name"])
    assert call["arguments"] == arguments
    jsonschema.validate(json.loads(arguments), tool["parameters"])


def check_text(text, finish, body):
    assert text
    grammar = body.get("grammar")
    wanted = body.get("response_format")
    if body.get("tool_choice", "none") != "none":
        assert finish == "tool_calls"
        jsonschema.validate(json.loads(text), body["tools"][0]["function"]["parameters"])
    else:
        assert finish in {"stop", "length"}
    if isinstance(grammar, str):
        assert (text, finish) == (json.loads(grammar.removeprefix("root ::= ")), "stop")
    if isinstance(wanted, dict):
        jsonschema.validate(json.loads(text), wanted["json_schema"]["schema"])
