"""/v1/responses: a body as a chat's, and what a chat says as items and events."""

import json
from typing import Any

import pytest
from asgi_calls import EVENTS, Answer, FakeDaemon, ask

from specmesh import errors
from specmesh.api.dialects.base import AnswerHead
from specmesh.api.dialects.responses import ResponseOrder, ResponseRenderer, parse_response
from specmesh.api.generation import Generation
from specmesh.api.kept_responses import ChatPart, GrowingChat, KeptResponses
from specmesh.api.stream import Call, Text, Thought, Usage
from specmesh.core.requests import ClientEvent, Failed, Finished, Started
from specmesh.core.sampling.constraint import Grammar, GrammarKind
from specmesh.core.session_params import ChatMessage
from specmesh.core.text.tool_formats import ToolCall
from specmesh.errors import RequestError

USER = {"role": "user", "content": "Hi"}
TOOL = {
    "type": "function",
    "name": "add",
    "description": "Adds.",
    "parameters": {"type": "object"},
    "strict": True,
}
OTHER = {"type": "function", "name": "end", "parameters": None}
CALL = {
    "type": "function_call",
    "id": "fc_1",
    "call_id": "c1",
    "name": "add",
    "arguments": "{}",
    "status": "completed",
}
CALLED = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": "{}"}}


def generation_of(**body: object) -> Generation:
    """Return the generation of a body."""
    generation, _ = parse_response({"input": "Hi"} | body, KeptResponses())
    return generation


def messages_of(**body: object) -> list[dict[str, object]]:
    """Return the messages of a body, as a chat template has them."""
    [request] = generation_of(**body).requests
    return [message.fields() for message in request.messages]


def test_items():
    """A text is one; what an assistant does in one turn is one message, and what systems say first is one."""
    assert messages_of() == [USER]
    items = [
        {
            "type": "message",
            "role": "developer",
            "content": [{"type": "input_text", "text": "Add."}],
        },
        {
            "role": "user",
            "content": [{"type": "input_text", "text": "H"}, {"type": "input_text", "text": "i"}],
        },
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": "Hm"}],
        },
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "So", "annotations": []}],
        },
        CALL,
        CALL | {"call_id": "c2"},
        {"type": "function_call_output", "call_id": "c1", "output": "3"},
        {
            "type": "function_call_output",
            "call_id": "c2",
            "output": [{"type": "input_text", "text": "4"}],
        },
        CALL,
        USER,
    ]
    calls = [CALLED, CALLED | {"id": "c2"}]
    assert messages_of(instructions="Be brief.", input=items) == [
        {"role": "system", "content": "Be brief.\n\nAdd."},
        USER,
        {"role": "assistant", "reasoning_content": "Hm", "content": "So", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "c1", "content": "3"},
        {"role": "tool", "tool_call_id": "c2", "content": "4"},
        {"role": "assistant", "content": "", "tool_calls": [CALLED]},
        USER,
    ]


def test_fields():
    """Those with a name of their own, those that go through, and those that the header names."""
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    form = {"type": "json_schema", "name": "x", "schema": schema, "strict": True}
    own = {
        "max_output_tokens": 7,
        "top_logprobs": 2,
        "include": ["message.output_text.logprobs", "other"],
    }
    ours = {
        "text": {"format": form, "verbosity": "low"},
        "reasoning": {"effort": "low", "summary": "auto"},
    }
    same = {
        "temperature": 0,
        "top_p": 0.5,
        "stream": True,
        "seed": 3,
        "draft_n": 2,
        "model": "m",
        "user": "me",
    }
    body, order = parse_response(
        {"input": "Hi", "metadata": {"a": "b"}} | own | ours | same, KeptResponses()
    )
    echoed = json.loads(order.echoed)
    params = body.requests[0].params
    assert (params.max_tokens, params.logprobs, params.draft_n, params.sampling.seed) == (
        7,
        2,
        2,
        3,
    )
    assert (params.sampling.temperature, params.sampling.top_p, body.stream, body.model) == (
        0,
        0.5,
        True,
        "m",
    )
    assert params.grammar == Grammar(GrammarKind.JSON_SCHEMA, json.dumps(schema))
    assert {"user", "text.verbosity", "reasoning.summary", "include"} <= set(body.ignored)
    assert (echoed["metadata"], echoed["text"], echoed["store"]) == (
        {"a": "b"},
        {"format": form},
        False,
    )
    assert (echoed["max_output_tokens"], echoed["top_p"], echoed["temperature"]) == (7, 0.5, 0)
    assert body.requests[0].template == {"reasoning_effort": "low"}
    neutral = {
        "background": False,
        "truncation": "disabled",
        "store": True,
        "tools": [],
        "tool_choice": "auto",
    }
    assert generation_of(**neutral).ignored == ()
    assert "truncation" in generation_of(truncation="auto").ignored


def test_tools():
    """One that must be called; only those that may be."""
    told = grammar_of(
        tools=[TOOL, OTHER],
        tool_choice={"type": "function", "name": "add"},
        parallel_tool_calls=False,
    )
    nothing = {"type": "object", "properties": {}, "additionalProperties": False}
    assert told["tools"] == [
        {"name": "add", "description": "Adds.", "parameters": {"type": "object"}},
        {"name": "end", "description": "", "parameters": nothing},
    ]
    assert (told["choice"], told["parallel"], told["strict"]) == ({"name": "add"}, False, ["add"])
    allowed = {
        "type": "allowed_tools",
        "mode": "required",
        "tools": [{"type": "function", "name": "end"}],
    }
    told = grammar_of(tools=[TOOL, OTHER], tool_choice=allowed)
    assert ([one["name"] for one in told["tools"]], told["choice"]) == (["end"], "required")


def grammar_of(**body: object) -> dict[str, Any]:
    """Return the description of a body's tools."""
    grammar = generation_of(**body).requests[0].params.grammar
    assert grammar is not None
    told: dict[str, Any] = json.loads(grammar.text)
    return told


OTHER_TOOLS: list[dict[str, Any]] = [
    {"type": "web_search"},
    {"type": "namespace", "name": "agents", "tools": [TOOL]},
    {"type": "custom", "name": "apply_patch", "format": {"type": "grammar"}},
    {"type": "local_shell"},
]


def test_other_tools_are_skipped_and_named():
    body = {"tools": [*OTHER_TOOLS, TOOL], "tool_choice": "required"}
    names = ("tools.web_search", "tools.namespace", "tools.custom", "tools.local_shell")
    assert generation_of(**body).ignored == names
    assert [one["name"] for one in grammar_of(**body)["tools"]] == ["add"]


@pytest.mark.parametrize(
    ("choice", "named"),
    [
        ({"type": "web_search"}, True),
        ({"type": "custom", "name": "apply_patch"}, True),
        ("required", False),
    ],
)
def test_the_choice_of_a_skipped_tool_leaves_the_answer_free(choice: object, named: bool):
    body = generation_of(tools=OTHER_TOOLS, tool_choice=choice)
    assert body.requests[0].params.grammar is None
    assert ("tool_choice" in body.ignored) == named


TOLD: list[tuple[dict[str, Any], str, str]] = [
    (
        {"type": "custom_tool_call", "call_id": "c1", "name": "patch", "input": "*** Begin"},
        "assistant",
        '[custom_tool_call] {"name": "patch", "input": "*** Begin"}',
    ),
    (
        {"type": "custom_tool_call_output", "call_id": "c1", "output": "Done"},
        "user",
        '[custom_tool_call_output] {"output": "Done"}',
    ),
    (
        {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"query": "q"}},
        "assistant",
        '[web_search_call] {"action": {"query": "q"}}',
    ),
    (
        {"type": "local_shell_call", "call_id": "c1", "action": {"command": ["ls"]}},
        "assistant",
        '[local_shell_call] {"action": {"command": ["ls"]}}',
    ),
    (
        {"type": "local_shell_call_output", "id": "c1", "output": "x"},
        "user",
        '[local_shell_call_output] {"output": "x"}',
    ),
    (
        {"type": "mcp_approval_response", "approve": True},
        "user",
        '[mcp_approval_response] {"approve": true}',
    ),
    ({"type": "compaction", "encrypted_content": "gAAAA"}, "assistant", "[compaction]"),
    (
        {"type": "image_generation_call", "result": "iVBO" * 100},
        "assistant",
        '[image_generation_call] {"result": "(binary data)"}',
    ),
    (
        {"type": "additional_tools", "role": "developer", "tools": []},
        "system",
        '[additional_tools] {"tools": []}',
    ),
    ({"type": "of_tomorrow", "text": "é"}, "assistant", '[of_tomorrow] {"text": "é"}'),
]


@pytest.mark.parametrize(
    ("item", "role", "text"), TOLD, ids=lambda one: one["type"] if isinstance(one, dict) else ""
)
def test_items_of_other_tools_are_told_in_words(item: dict[str, Any], role: str, text: str):
    assert messages_of(input=[USER, item, USER])[1] == {"role": role, "content": text}


@pytest.mark.parametrize(
    "body", [{"input": None}, {"input": []}, {"input": [], "instructions": "Be brief."}]
)
def test_nothing_to_answer_is_refused_as_openai_does(body: dict[str, Any]):
    answer = respond(FakeDaemon(), **body)
    assert (answer.status, answer.json()["error"]["code"]) == (400, "missing_required_parameter")


def test_a_turn_of_many_calls_is_read_at_once():
    """And the response that it goes on from stays as it was."""
    kept = KeptResponses(1)
    before = [ChatMessage("assistant", "", tool_calls=(ToolCall("c1", "add", "{}"),))]
    part = ChatPart(before=None, held=0, messages=list(before), size=100)
    kept.keep("resp_1", "{}", part)
    _, order = parse_response({"input": [CALL] * 20_000, "previous_response_id": "resp_1"}, kept)
    assert len(order.conversation.messages[0].tool_calls) == 20_001
    assert part.messages == before


@pytest.mark.parametrize(
    ("given", "text"), [({}, ""), ({"arguments": None}, ""), ({"arguments": {"a": 1}}, '{"a": 1}')]
)
def test_arguments_of_calls_that_are_no_text(given: dict[str, Any], text: str):
    call = {"type": "function_call", "call_id": "c1", "name": "add"} | given
    [request] = generation_of(input=[call]).requests
    assert request.messages[0].tool_calls == (ToolCall("c1", "add", text),)


def test_a_call_may_have_no_output():
    output = {"type": "function_call_output", "call_id": "c1", "output": None}
    message = messages_of(input=[CALL, output])[1]
    assert message == {"role": "tool", "tool_call_id": "c1", "content": ""}


@pytest.mark.parametrize(
    ("role", "read_as"), [("function", "tool"), ("developer", "system"), ("user", "user")]
)
def test_roles_of_messages(role: str, read_as: str):
    item = {"role": role, "content": "x"}
    assert messages_of(input=[USER, item])[1]["role"] == read_as


def test_the_type_of_a_message_may_be_null():
    assert messages_of(input=[USER | {"type": None}]) == [USER]


REFUSED: list[tuple[str, object]] = [
    *(("input", value) for value in (5, {})),
    *(
        ("input[0]", [value])
        for value in (5, {}, {"role": "user"}, {"type": "item_reference", "id": "msg_1"})
    ),
    ("input[1]", [USER, {"type": "function_call", "call_id": "c1", "arguments": "{}"}]),
    (
        "input[0].content[0]",
        [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}],
    ),
    ("input[0].output", [{"type": "function_call_output", "call_id": "c1", "output": 5}]),
    *(
        (name, True)
        for name in (
            "background",
            "prompt",
            "resumable",
            "rounds",
            "text",
            "reasoning",
            "include",
            "n",
        )
    ),
    *(("tools", value) for value in (5, [5], [{"type": "function"}])),
    *(("tool_choice", value) for value in ({"type": "web_search"}, [])),
    *(
        ("text.format", value)
        for value in ("x", {"type": "json_schema", "name": "x"}, {"type": "grammar"})
    ),
    *(
        (name, [1])
        for name in (
            "instructions",
            "previous_response_id",
            "metadata",
            "store",
            "temperature",
            "echo",
        )
    ),
    *((name, "x") for name in ("conversation", "messages", "text", "max_output_tokens")),
]


@pytest.mark.parametrize(("param", "value"), REFUSED)
def test_refused(param: str, value: object):
    name = param.partition("[")[0]
    body = {"text": {"format": value}} if param == "text.format" else {name: value}
    with pytest.raises(RequestError) as refused:
        generation_of(**body)
    assert refused.value.param == param
    assert param.partition("[")[0] in str(refused.value)


USAGE = Usage(prompt=4, cached=1, generated=5, accepted=0, rejected=0)
HEAD = AnswerHead("chatcmpl-" + 32 * "a", 7, "m")
RESPONSE = "resp_" + 32 * "a"


def events_of(raw: str) -> list[dict[str, Any]]:
    """Server-sent events, numbered one after the other, each named as its type."""
    events = list[dict[str, Any]]()
    for number, event in enumerate(raw.split("\n\n")[:-1]):
        name, data = event.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert (name, events[-1].pop("sequence_number")) == (f"event: {events[-1]['type']}", number)
    return events


ITEMS = """created in_progress
output_item.added content_part.added reasoning_text.delta reasoning_text.delta reasoning_text.done content_part.done
output_item.done output_item.added content_part.added output_text.delta output_text.delta output_text.done
content_part.done output_item.done output_item.added function_call_arguments.delta function_call_arguments.delta
function_call_arguments.done output_item.done output_item.added function_call_arguments.delta
function_call_arguments.done output_item.done completed"""


def test_events_of_a_turn_with_everything():
    """What is thought, said and called are items one after the other, each begun, told in pieces and ended."""
    order = ResponseOrder(GrowingChat(), 0, '{"store": false}', store=False)
    renderer = ResponseRenderer(order, KeptResponses(), HEAD)
    thoughts = [Thought(letter) for letter in "Hm"]
    texts = [Text(letter) for letter in "So"]
    pieces = [Call(index=0, arguments=piece) for piece in ('{"a"', ":1}")]
    first = [Call(index=0, id="c1", name="add"), *pieces]
    second = Call(index=1, arguments="{}", id="c2", name="end")
    end = Finished("tool_calls", (), {})
    parts = [Started(1, 1), *thoughts, *texts, *first, second, end]
    raw = "".join(renderer.part(0, [event]) for event in parts) + renderer.end(USAGE)
    events = events_of(raw)
    assert " ".join(event["type"].removeprefix("response.") for event in events) == ITEMS.replace(
        "\n", " "
    )
    response = events[-1]["response"]
    thought, message, call, other = response["output"]
    assert [response[name] for name in ("id", "status", "model", "created_at")] == [
        RESPONSE,
        "completed",
        "m",
        7,
    ]
    assert (thought["type"], thought["content"]) == (
        "reasoning",
        [{"type": "reasoning_text", "text": "Hm"}],
    )
    assert message["content"] == [
        {"type": "output_text", "text": "So", "annotations": [], "logprobs": []}
    ]
    assert (call["call_id"], call["name"], call["arguments"]) == ("c1", "add", '{"a":1}')
    assert (other["call_id"], other["name"], other["arguments"]) == ("c2", "end", "{}")
    assert [one["id"].partition("_")[0] for one in response["output"]] == ["rs", "msg", "fc", "fc"]
    assert len({one["id"] for one in response["output"]}) == 4
    assert [
        event["item"] for event in events if event["type"] == "response.output_item.done"
    ] == response["output"]
    for event in events[2:-1]:
        item = response["output"][event["output_index"]]
        assert (event.get("item_id") or event["item"]["id"]) == item["id"]
        assert ("content_index" in event) == (
            item["type"] != "function_call" and "item_id" in event
        )
    usage, read = response["usage"], {"cache_write_tokens": 0, "cached_tokens": 1}
    drafts = {"accepted_prediction_tokens": 0, "rejected_prediction_tokens": 0}
    assert (usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]) == (4, 5, 9)
    assert (usage["input_tokens_details"], usage["output_tokens_details"]) == (
        read,
        {"reasoning_tokens": 0} | drafts,
    )


def respond(daemon: FakeDaemon, answer: Answer | None = None, **body: object) -> Answer:
    return ask(daemon, "/v1/responses", {"input": "Hi"} | body, answer=answer)


STOPPED = (*EVENTS[:-1], Finished("stop", (104, 105), EVENTS[-1].report))  # type: ignore[union-attr]


def test_streamed_and_whole_are_the_same():
    """But for their names and times; a stream has the text in what it tells, too, and no [DONE]."""
    answers = [
        respond(FakeDaemon(*STOPPED), stream=stream, top_logprobs=1) for stream in (False, True)
    ]
    whole, events = answers[0].json(), events_of(answers[1].body.decode())
    streamed = events[-1]["response"]
    assert "".join(event["delta"] for event in events if "delta" in event) == "ABC"
    assert len(events[-1]["response"]["output"][0]["content"][0]["logprobs"]) == 3
    for response in (whole, streamed):
        assert response.pop("id")[5:] in response["output"][0].pop("id")
        del response["created_at"]
    assert whole == streamed
    assert (whole["status"], whole["output"][0]["status"]) == ("completed", "completed")
    assert whole["specmesh"]["prompt_token_ids"] == [104, 105]


@pytest.mark.parametrize(("events", "text"), [(EVENTS, "ABC"), ((Started(1, 1), EVENTS[-1]), "")])
def test_what_the_length_ends(events: tuple[ClientEvent, ...], text: str):
    """The response and its last item are incomplete, even an empty one."""
    *_, done, last = events_of(respond(FakeDaemon(*events), stream=True).body.decode())
    assert (done["item"]["status"], done["item"]["content"][0]["text"]) == ("incomplete", text)
    assert (last["type"], last["response"]["status"]) == ("response.incomplete", "incomplete")
    assert last["response"]["incomplete_details"] == {"reason": "max_output_tokens"}


def test_errors():
    """Before anything was told it is a status, later the last event of the stream."""
    failed = Failed(errors.EngineError("broke"))
    assert [respond(FakeDaemon(failed), stream=stream).status for stream in (False, True)] == [
        500,
        500,
    ]
    daemon, answer = FakeDaemon(*EVENTS[:2]), Answer()
    answer.on_part = lambda: daemon.orders[0].client.on_event(failed)  # type: ignore[union-attr]
    respond(daemon, answer, stream=True)
    *_, done, last = events_of(answer.body.decode())
    assert (done["item"]["status"], last["type"]) == ("incomplete", "response.failed")
    assert last["response"]["error"] == {"code": "server_error", "message": "broke"}


def test_kept_responses():
    """The last ones can be gone on from, shown and forgotten; none with store false, and none where none are kept."""
    daemon = FakeDaemon(*STOPPED)

    def asked(method: str, path: str = "", **body: object) -> Answer:
        return ask(daemon, f"/v1/responses{path}", {"input": "Hi"} | body, method, kept=kept)

    kept = KeptResponses(2)
    names = list[str]()
    for _ in range(3):
        answer = asked(
            "POST", instructions="Be brief.", previous_response_id=names[-1] if names else None
        ).json()
        assert answer["store"] is True
        names.append(answer["id"])
    said = [(one.role, one.content) for one in daemon.orders[-1].request.messages]  # type: ignore[union-attr]
    assert said == [
        ("system", "Be brief."),
        *[("user", "Hi"), ("assistant", "ABC")] * 2,
        ("user", "Hi"),
    ]
    assert asked("GET", f"/{names[2]}").json() == answer
    assert asked("GET", f"/{names[0]}").status == 404
    assert asked("DELETE", f"/{names[2]}").json() == {
        "id": names[2],
        "object": "response",
        "deleted": True,
    }
    assert [asked(method, f"/{names[2]}").status for method in ("GET", "DELETE")] == [404, 404]
    assert (
        asked("POST", previous_response_id=names[2]).json()["error"]["param"]
        == "previous_response_id"
    )
    unkept = asked("POST", store=False).json()
    assert (unkept["store"], asked("GET", f"/{unkept['id']}").status) == (False, 404)
    kept = KeptResponses()
    assert "--responses N" in asked("GET", f"/{names[1]}").json()["error"]["message"]


def test_items_may_be_referred_to():
    """By the ids that they were given, as the AI SDK does it; of a streamed response, too."""
    kept, daemon = KeptResponses(4), FakeDaemon(*STOPPED)

    def asked(**body: object) -> Answer:
        return ask(daemon, "/v1/responses", {"input": "Hi"} | body, kept=kept)

    first = asked().json()["output"]
    streamed = events_of(asked(stream=True).body.decode())[-1]["response"]["output"]
    question = {"role": "user", "content": "And?"}
    for [item] in (first, streamed):
        for reference in ({"type": "item_reference", "id": item["id"]}, {"id": item["id"]}):
            assert asked(input=[USER, reference, question]).status == 200
            said = [(one.role, one.content) for one in daemon.orders[-1].request.messages]  # type: ignore[union-attr]
            assert said == [("user", "Hi"), ("assistant", "ABC"), ("user", "And?")]


def test_a_call_may_be_referred_to():
    """With what was thought before it, and answered by its tool's output."""
    kept = KeptResponses(1)
    order = ResponseOrder(GrowingChat(), 0, '{"store": true}', store=True)
    renderer = ResponseRenderer(order, kept, HEAD)
    call = Call(index=0, arguments="{}", id="c1", name="add")
    renderer.part(0, [Thought("Hm"), call])
    renderer.end(USAGE)
    items = [
        USER,
        *({"type": "item_reference", "id": one["id"]} for one in renderer.output),
        {"type": "function_call_output", "call_id": "c1", "output": "2"},
    ]
    generation, _ = parse_response({"input": items}, kept)
    _, called, answered = generation.requests[0].messages
    assert (called.reasoning, called.tool_calls) == ("Hm", (ToolCall("c1", "add", "{}"),))
    assert (answered.role, answered.content) == ("tool", "2")


@pytest.mark.parametrize("most", [0, 2])
@pytest.mark.parametrize("name", ["msg_1", "msg_" + "0" * 33, "", "_", "resp_" + "0" * 32])
def test_a_reference_to_what_is_not_kept(name: str, most: int):
    """The message says so, and what to do."""
    with pytest.raises(
        RequestError, match="--responses N" if not most else "is not kept"
    ) as refused:
        parse_response(
            {"input": [USER, {"type": "item_reference", "id": name}]}, KeptResponses(most)
        )
    assert refused.value.param == "input[1]"


def test_an_item_goes_with_its_response():
    kept, daemon = KeptResponses(1), FakeDaemon(*STOPPED)
    first, second = (
        ask(daemon, "/v1/responses", {"input": "Hi"}, kept=kept).json()["output"] for _ in range(2)
    )
    items = [[USER, {"type": "item_reference", "id": one["id"]}] for one in (*first, *second)]
    answers = [ask(daemon, "/v1/responses", {"input": one}, kept=kept) for one in items]
    assert [answer.status for answer in answers] == [400, 200]
