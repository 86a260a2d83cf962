"""What API clients send every day, at a verifier with a key and at a drafter: taken, or refused in words they know.

`client_bodies.json` has what real clients sent (of those with tools, one for each form of answer), as `bench/clients
--record` wrote it down; they are not needed here. Of each answer is read what the client that asked would read.
"""

import json
from pathlib import Path

import jsonschema
import pytest
from processes import Json, sim_text
from served import CONTEXT, PAGE, SAID, Answer, Served

ASKED: list[Json] = json.loads(Path(__file__).with_name("client_bodies.json").read_text())
NULLS = (
    *(
        "model",
        "user",
        "seed",
        "stop",
        "stream",
        "stream_options",
        "logit_bias",
        "n",
        "logprobs",
        "top_p",
        "top_k",
    ),
    *(
        "presence_penalty",
        "frequency_penalty",
        "response_format",
        "tools",
        "tool_choice",
        "parallel_tool_calls",
    ),
    *(
        "metadata",
        "store",
        "modalities",
        "audio",
        "prediction",
        "reasoning_effort",
        "functions",
        "function_call",
    ),
    *(
        "service_tier",
        "web_search_options",
        "grammar",
        "json_schema",
        "min_p",
        "cache_prompt",
        "mirostat",
        "draft_n",
    ),
    *("guided_json", "top_logprobs", "suffix", "echo", "best_of", "resume", "strategy", "nonsense"),
)


def test_null_is_left_out(server: Served):
    """A field that is null is a field that is not there, known or not."""
    nulls = dict.fromkeys(NULLS)
    answer = server.complete(**nulls)
    assert answer.texts == [sim_text("once", 12)]
    assert "x-specmesh-ignored" not in answer.headers
    assert server.chat(**nulls, max_completion_tokens=None).texts == [
        sim_text("user: Hi\nassistant: ", 12)
    ]


def test_max_tokens(server: Served):
    """-1 goes on to the end of the context, 0 has the prompt only."""
    long = server.complete(prompt="x" * (CONTEXT - 30), max_tokens=-1)
    assert (long.usage, long.choices[0]["finish_reason"]) == ((CONTEXT - 30, 30), "length")
    assert server.chat(max_tokens=-1, stop=["\x00"]).usage[1] > 128
    for stream in (False, True):
        none = server.complete(max_tokens=0, stream=stream, stream_options={"include_usage": True})
        told = none.chunks() if stream else [none.json()]
        choices = [choice for one in told for choice in one["choices"]]
        assert "".join(choice["text"] for choice in choices) == ""
        assert choices[-1]["finish_reason"] == "length"
        assert told[-1]["usage"]["completion_tokens"] == 0
    assert server.complete(max_tokens=0).usage == (4, 0)


def test_prompts(server: Served):
    """Each prompt of a list has its choices, numbered as OpenAI does, and they are those it has alone."""
    prompts = ["once", [104, 105], ""]
    alone = [server.complete(prompt=one, n=2, seed=5, temperature=100, top_k=50) for one in prompts]
    told = [text for one in alone for text in one.texts]
    together = server.complete(prompt=prompts, n=2, seed=5, temperature=100, top_k=50)
    assert together.texts == told
    assert len(set(told)) == 6
    assert [choice["index"] for choice in together.choices] == list(range(6))
    usage = tuple(sum(one.usage[part] for one in alone) for part in (0, 1))
    assert together.usage == usage == (4 + 2 + 1, 6 * 12)
    streamed, wanted = [""] * 6, {"stream": True, "stream_options": {"include_usage": True}}
    *chunks, last = server.complete(
        prompt=prompts, n=2, seed=5, temperature=100, top_k=50, **wanted
    ).chunks()
    for chunk in chunks:
        [choice] = chunk["choices"]
        streamed[choice["index"]] += choice["text"]
    assert streamed == told
    assert (last["usage"]["prompt_tokens"], last["usage"]["completion_tokens"]) == usage


def test_unknown_fields(server: Served):
    """Ignored, and said so in a header that no name can break."""
    odd = "a\r\nb: \u20ac" + "x" * 200
    message = {
        "role": "user",
        "content": [{"type": "text", "text": "Hi", "cache_control": {}}],
        "mood": "good",
    }
    answer = server.chat(
        message, nonsense=1, **{odd: 2}, user="me", dry_base=1.75, xtc_probability=0
    )
    assert answer.texts == [sim_text("user: Hi\nassistant: ", 12)]
    told = answer.headers["x-specmesh-ignored"]
    assert {"nonsense", "dry_base"} < set(told.split(", "))
    assert (told.isascii(), "\n" in told, len(told) < 400) == (True, False, True)


def test_a_trailing_assistant_message_goes_on(server: Served):
    """Its text is the beginning of what comes, to the last space; an answer begins where that is asked for."""
    begun = {"role": "assistant", "content": "The sky  "}
    goes_on = [sim_text("user: Hi\nassistant: The sky  ", 12)]
    begins = [sim_text("user: Hi\nassistant: The sky  \nassistant: ", 12)]
    assert server.chat(*SAID, begun).texts == goes_on
    assert server.chat(*SAID, begun, add_generation_prompt=False).texts == goes_on
    assert (
        server.chat(*SAID, begun, continue_final_message=True, add_generation_prompt=False).texts
        == goes_on
    )
    parts = {
        "role": "assistant",
        "content": [{"type": "text", "text": "The "}, {"type": "text", "text": "sky  "}],
    }
    assert server.chat(*SAID, parts).texts == goes_on
    assert server.chat(*SAID, begun, continue_final_message=False).texts == begins
    assert server.chat(*SAID, begun, add_generation_prompt=True).texts == begins
    assert server.chat(*SAID, {"role": "assistant"}).texts == [
        sim_text("user: Hi\nassistant: ", 12)
    ]
    streamed = server.chat(*SAID, begun, stream=True).chunks()
    assert (
        "".join(one["choices"][0]["delta"].get("content") or "" for one in streamed) == goes_on[0]
    )


def test_a_page_that_is_allowed(server: Served):
    """Its browser may ask, and read the answer; no other page's."""
    wanted = {
        "Access_Control_Request_Method": "POST",
        "Access_Control_Request_Headers": "authorization,content-type",
    }
    preflight = server.ask(
        "OPTIONS", "/v1/chat/completions", Origin=PAGE, Authorization="", **wanted
    )
    assert (preflight.status, preflight.headers["access-control-allow-origin"]) == (200, PAGE)
    assert "authorization" in preflight.headers["access-control-allow-headers"].lower()
    answer = server.ask(
        "POST",
        "/v1/completions",
        {"prompt": "once", "max_tokens": 2, "temperature": 0},
        Origin=PAGE,
    )
    assert (answer.texts, answer.headers["access-control-allow-origin"]) == (
        [sim_text("once", 2)],
        PAGE,
    )
    exposed = answer.headers["access-control-expose-headers"].lower()
    assert "x-specmesh-ignored" in exposed
    assert "x-specmesh-merged" in exposed
    broken = server.ask("POST", "/v1/completions", {"prompt": 1}, Origin=PAGE)
    assert (broken.status, broken.headers["access-control-allow-origin"]) == (400, PAGE)
    evil = server.ask("OPTIONS", "/v1/completions", Origin="https://evil.example", **wanted)
    assert evil.status == 400
    assert "access-control-allow-origin" not in evil.headers


@pytest.mark.parametrize("asked", ASKED, ids=lambda asked: f"{asked['client']}{asked['path']}")
def test_a_client_is_answered(served: dict[str, Served], role: str, asked: Json):
    """What it reads is there. The drafter, which wants no key, is sent one all the same."""
    body, chat = asked["body"], "chat" in asked["path"]
    key = {"Authorization": f"Bearer {served['verifier'].key}"} if asked["key"] else {}
    answer = served[role].ask(asked["method"], asked["path"], body, **asked["headers"] | key)
    streams = body is not None and body.get("stream")
    assert answer.headers["content-type"].startswith(
        "text/event-stream" if streams else "application/json"
    )
    if body is None:
        assert [model["id"] for model in answer.json()["data"]] == ["sim-target"]
    elif "input" in body:
        check_response(answer, body)
    else:
        check_answer(
            answer.chunks() if streams else [answer.json()], body, streams=bool(streams), chat=chat
        )


def check_answer(told: list[Json], body: Json, *, streams: bool, chat: bool) -> None:
    """An answer, or its chunks in order: who speaks, the texts asked for, one end of each, the usage if asked for."""
    count = len(body["prompt"]) if isinstance(body.get("prompt"), list) else 1
    kind = ("chat.completion" if chat else "text_completion") + ".chunk" * (chat and streams)
    assert {(one["object"], type(one["created"]), one["model"]) for one in told} == {
        (kind, int, "sim-target")
    }
    assert len({one["id"] for one in told}) == 1
    assert told[0]["id"].partition("-")[0] in {"chatcmpl", "cmpl"}
    if not streams or body.get("stream_options"):
        usage, most = told[-1]["usage"], body.get("max_tokens") or body["max_completion_tokens"]
        assert 0 < usage["completion_tokens"] <= most * count
        assert usage["prompt_tokens"] > 0
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
        assert not streams or told.pop()["choices"] == []
    choices: list[Json] = [choice for one in told for choice in one["choices"]]
    assert not streams or len(choices) == len(told)
    roles = (
        [choice["delta" if streams else "message"].get("role") for choice in choices]
        if chat
        else ["assistant"]
    )
    assert roles == ["assistant"] + [None if streams else "assistant"] * (len(roles) - 1)
    texts: dict[int, str] = {}
    for choice in choices:
        message = choice.get("message") or choice.get("delta") or choice
        said = [message.get("text") or message.get("content") or ""]
        said += [call["function"]["arguments"] for call in message.get("tool_calls") or ()]
        texts[choice["index"]] = "".join([texts.get(choice["index"], ""), *said])
    ends = [
        (choice["index"], choice["finish_reason"])
        for choice in choices
        if choice["finish_reason"] is not None
    ]
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
    told = [
        one["delta"] for one in heard if one["type"] == "response.function_call_arguments.delta"
    ]
    assert (call["type"], call["name"], call["arguments"]) == (
        "function_call",
        body["tools"][0]["name"],
        "".join(told),
    )
    jsonschema.validate(json.loads(call["arguments"]), body["tools"][0]["parameters"])


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
