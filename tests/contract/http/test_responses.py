"""/v1/responses: its body, and its answer as items and events."""

import json
from dataclasses import replace
from functools import partial

import pytest
from asgi_calls import DONE, EVENTS, Answer, FakeDaemon, ask
from harness.tables import cases, each, rows

from specmesh import errors
from specmesh.api.dialects.base import AnswerHead
from specmesh.api.dialects.response_body import ResponseOrder, parse_response
from specmesh.api.dialects.responses import ResponseRenderer
from specmesh.api.kept_responses import ChatPart, GrowingChat, KeptResponses
from specmesh.api.stream import Call, Text, Thought, Usage
from specmesh.core.requests import Failed, Finished, Started
from specmesh.core.sampling.constraint import Grammar, GrammarKind
from specmesh.core.text.chat_message import ChatMessage
from specmesh.core.text.tool_formats import ToolCall
from specmesh.errors import RequestError

USER = {"role": "user", "content": "Hi"}
TOOL, OTHER, CALL, CALLED = rows("""
{"type": "function", "name": "add", "description": "Adds.", "parameters": {"type": "object"},
 "strict": true}
{"type": "function", "name": "end", "parameters": null}
{"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "add", "arguments": "{}",
 "status": "completed"}
{"id": "c1", "type": "function", "function": {"name": "add", "arguments": "{}"}}
""")
table = partial(rows, USER=USER, CALL=CALL, CALLED=CALLED)


def generation_of(**body):
    generation, _ = parse_response({"input": "Hi"} | body, KeptResponses())
    return generation


def messages_of(**body):
    """Return the messages of a body, as a chat template has them."""
    [request] = generation_of(**body).requests
    return [message.fields() for message in request.messages]


TURNS, MESSAGES = table("""
[
    {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Add."}]},
    {"role": "user",
     "content": [{"type": "input_text", "text": "H"}, {"type": "input_text", "text": "i"}]},
    {"type": "reasoning", "id": "rs_1", "summary": [],
     "content": [{"type": "reasoning_text", "text": "Hm"}]},
    {"type": "message", "role": "assistant",
     "content": [{"type": "output_text", "text": "So", "annotations": []}]},
    $CALL,
    {"type": "function_call", "call_id": "c2", "name": "add", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c1", "output": "3"},
    {"type": "function_call_output", "call_id": "c2",
     "output": [{"type": "input_text", "text": "4"}]},
    $CALL,
    $USER
]
[
    {"role": "system", "content": "Be brief.\\n\\nAdd."},
    $USER,
    {"role": "assistant", "reasoning_content": "Hm", "content": "So", "tool_calls": [
        $CALLED, {"id": "c2", "type": "function", "function": {"name": "add", "arguments": "{}"}}]},
    {"role": "tool", "tool_call_id": "c1", "content": "3"},
    {"role": "tool", "tool_call_id": "c2", "content": "4"},
    {"role": "assistant", "content": "", "tool_calls": [$CALLED]},
    $USER
]
""")


def test_a_text_is_one_message():
    assert messages_of() == [USER]


def test_items():
    """The items of an assistant's turn are one message, and so is the system's beginning."""
    assert messages_of(instructions="Be brief.", input=TURNS) == MESSAGES


FORM, FIELDS, ECHOED, NEUTRAL = rows("""
{"type": "json_schema", "name": "x", "strict": true,
 "schema": {"type": "object", "properties": {"a": {"type": "integer"}}}}
{"input": "Hi", "metadata": {"a": "b"}, "max_output_tokens": 7, "top_logprobs": 2,
 "include": ["message.output_text.logprobs", "other"],
 "reasoning": {"effort": "low", "summary": "auto"}, "temperature": 0, "top_p": 0.5,
 "stream": true, "seed": 3, "draft_n": 2, "model": "m", "user": "me"}
{"metadata": {"a": "b"}, "store": false, "max_output_tokens": 7, "top_p": 0.5, "temperature": 0}
{"background": false, "truncation": "disabled", "store": true, "tools": [], "tool_choice": "auto"}
""")


def test_fields():
    """Some have a name of their own, some go through, and the header names the others."""
    fields = FIELDS | {"text": {"format": FORM, "verbosity": "low"}}
    body, order = parse_response(fields, KeptResponses())
    [request] = body.requests
    params = request.params
    assert params.max_tokens == 7
    assert params.logprobs == 2
    assert params.draft_n == 2
    assert params.sampling.seed == 3
    assert params.sampling.temperature == 0
    assert params.sampling.top_p == 0.5
    assert body.stream
    assert body.model == "m"
    assert params.grammar == Grammar(GrammarKind.JSON_SCHEMA, json.dumps(FORM["schema"]))
    assert {"user", "text.verbosity", "reasoning.summary", "include"} <= set(body.ignored)
    assert request.template == {"reasoning_effort": "low"}
    echoed = json.loads(order.echoed)
    assert echoed["text"] == {"format": FORM}
    assert echoed.items() >= ECHOED.items()


def test_neutral_values_are_not_named():
    assert generation_of(**NEUTRAL).ignored == ()


def test_truncation_is_ignored():
    assert "truncation" in generation_of(truncation="auto").ignored


def grammar_of(**body):
    """Return the description of a body's tools."""
    grammar = generation_of(**body).requests[0].params.grammar
    assert grammar is not None
    return json.loads(grammar.text)


DESCRIBED = rows("""
{"name": "add", "description": "Adds.", "parameters": {"type": "object"}}
{"name": "end", "description": "",
 "parameters": {"type": "object", "properties": {}, "additionalProperties": false}}
""")


def test_tools():
    choice = {"type": "function", "name": "add"}
    told = grammar_of(tools=[TOOL, OTHER], tool_choice=choice, parallel_tool_calls=False)
    assert told["tools"] == DESCRIBED
    assert told["choice"] == {"name": "add"}
    assert told["parallel"] is False
    assert told["strict"] == ["add"]


def test_allowed_tools():
    end = {"type": "function", "name": "end"}
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [end]}
    told = grammar_of(tools=[TOOL, OTHER], tool_choice=allowed)
    assert [tool["name"] for tool in told["tools"]] == ["end"]
    assert told["choice"] == "required"


OTHER_TOOLS = rows(
    """
{"type": "web_search"}
{"type": "namespace", "name": "agents", "tools": [$TOOL]}
{"type": "custom", "name": "apply_patch", "format": {"type": "grammar"}}
{"type": "local_shell"}
""",
    TOOL=TOOL,
)


def test_other_tools_are_skipped_and_named():
    body = {"tools": [*OTHER_TOOLS, TOOL], "tool_choice": "required"}
    names = ("tools.web_search", "tools.namespace", "tools.custom", "tools.local_shell")
    assert generation_of(**body).ignored == names
    [tool] = grammar_of(**body)["tools"]
    assert tool["name"] == "add"


@cases(
    "choice, named",
    """
    [{"type": "web_search"}, true]
    [{"type": "custom", "name": "apply_patch"}, true]
    ["required", false]
    """,
)
def test_the_choice_of_a_skipped_tool_leaves_the_answer_free(choice, named):
    body = generation_of(tools=OTHER_TOOLS, tool_choice=choice)
    assert body.requests[0].params.grammar is None
    assert ("tool_choice" in body.ignored) == named


TOLD = rows(
    r"""
[{"type": "custom_tool_call", "call_id": "c1", "name": "patch", "input": "*** Begin"}, "assistant",
 "[custom_tool_call] {\"name\": \"patch\", \"input\": \"*** Begin\"}"]
[{"type": "custom_tool_call_output", "call_id": "c1", "output": "Done"}, "user",
 "[custom_tool_call_output] {\"output\": \"Done\"}"]
[{"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"query": "q"}},
 "assistant", "[web_search_call] {\"action\": {\"query\": \"q\"}}"]
[{"type": "local_shell_call", "call_id": "c1", "action": {"command": ["ls"]}}, "assistant",
 "[local_shell_call] {\"action\": {\"command\": [\"ls\"]}}"]
[{"type": "local_shell_call_output", "id": "c1", "output": "x"}, "user",
 "[local_shell_call_output] {\"output\": \"x\"}"]
[{"type": "mcp_approval_response", "approve": true}, "user",
 "[mcp_approval_response] {\"approve\": true}"]
[{"type": "compaction", "encrypted_content": "gAAAA"}, "assistant", "[compaction]"]
[{"type": "image_generation_call", "result": $BINARY}, "assistant",
 "[image_generation_call] {\"result\": \"(binary data)\"}"]
[{"type": "additional_tools", "role": "developer", "tools": []}, "system",
 "[additional_tools] {\"tools\": []}"]
[{"type": "of_tomorrow", "text": "é"}, "assistant", "[of_tomorrow] {\"text\": \"é\"}"]
""",
    BINARY="iVBO" * 100,
)


@pytest.mark.parametrize(("item", "role", "text"), TOLD)
def test_items_of_other_tools_are_told_in_words(item, role, text):
    told = messages_of(input=[USER, item, USER])[1]
    assert told == {"role": role, "content": text}


@cases("body", '{"input": null} {"input": []} {"input": [], "instructions": "Be brief."}')
def test_nothing_to_answer_is_refused_as_openai_does(body):
    answer = respond(FakeDaemon(), **body)
    assert answer.status == 400
    assert answer.error["code"] == "missing_required_parameter"


def test_a_turn_of_many_calls_is_read_at_once():
    """And the response that it goes on from stays as it was."""
    kept = KeptResponses(1)
    before = ChatMessage("assistant", "", tool_calls=(ToolCall("c1", "add", "{}"),))
    part = ChatPart(before=None, held=0, messages=[before], size=100)
    kept.keep("resp_1", "{}", part)
    _, order = parse_response({"input": [CALL] * 20_000, "previous_response_id": "resp_1"}, kept)
    assert len(order.conversation.messages[0].tool_calls) == 20_001
    assert part.messages == [before]


@cases(
    "given, text", r"""[{}, ""] [{"arguments": null}, ""] [{"arguments": {"a": 1}}, "{\"a\": 1}"]"""
)
def test_arguments_of_calls_that_are_no_text(given, text):
    call = {"type": "function_call", "call_id": "c1", "name": "add"} | given
    [request] = generation_of(input=[call]).requests
    assert request.messages[0].tool_calls == (ToolCall("c1", "add", text),)


def test_a_call_may_have_no_output():
    output = {"type": "function_call_output", "call_id": "c1", "output": None}
    message = messages_of(input=[CALL, output])[1]
    assert message == {"role": "tool", "tool_call_id": "c1", "content": ""}


@cases("role, read_as", '["function", "tool"] ["developer", "system"] ["user", "user"]')
def test_roles_of_messages(role, read_as):
    item = {"role": role, "content": "x"}
    assert messages_of(input=[USER, item])[1]["role"] == read_as


def test_the_type_of_a_message_may_be_null():
    assert messages_of(input=[USER | {"type": None}]) == [USER]


REFUSED = table("""
["input", 5, {}]
["input[0]", [5], [{}], [{"role": "user"}], [{"type": "item_reference", "id": "msg_1"}]]
["input[1]", [$USER, {"type": "function_call", "call_id": "c1", "arguments": "{}"}]]
["input[0].content[0]",
 [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]]
["input[0].output", [{"type": "function_call_output", "call_id": "c1", "output": 5}]]
["background", true] ["prompt", true] ["resumable", true] ["rounds", true] ["text", true, "x"]
["reasoning", true] ["include", true] ["n", true] ["sources", true]
["tools", 5, [5], [{"type": "function"}]]
["tool_choice", {"type": "web_search"}, []]
["text.format", "x", {"type": "grammar"}]
["text.format.schema", {"type": "json_schema", "name": "x"},
 {"type": "json_schema", "schema": null},
 {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}}]
["instructions", [1]] ["previous_response_id", [1]] ["metadata", [1]] ["store", [1]]
["temperature", [1]] ["echo", [1]]
["conversation", "x"] ["messages", "x"] ["max_output_tokens", "x"]
""")


@pytest.mark.parametrize(("param", "value"), each(REFUSED))
def test_refused(param, value):
    name = param.partition("[")[0]
    body = {name: value}
    if param.startswith("text.format"):
        body = {"text": {"format": value}}
    with pytest.raises(RequestError, match=name) as refused:
        generation_of(**body)
    assert refused.value.param == param


OUTPUT = rows(r"""
{"type": "reasoning", "content": [{"type": "reasoning_text", "text": "Hm"}]}
{"type": "message",
 "content": [{"type": "output_text", "text": "So", "annotations": [], "logprobs": []}]}
{"type": "function_call", "call_id": "c1", "name": "add", "arguments": "{\"a\":1}"}
{"type": "function_call", "call_id": "c2", "name": "end", "arguments": "{}"}
""")
USAGE = Usage(prompt=4, cached=1, generated=5, accepted=0, rejected=0)
[COUNTED] = rows("""
{"input_tokens": 4, "output_tokens": 5, "total_tokens": 9,
 "input_tokens_details": {"cache_write_tokens": 0, "cached_tokens": 1},
 "output_tokens_details": {"reasoning_tokens": 0, "accepted_prediction_tokens": 0,
                           "rejected_prediction_tokens": 0}}
""")
HEAD = AnswerHead("chatcmpl-" + 32 * "a", 7, "m")


def new_renderer(kept, *, store=False):
    order = ResponseOrder(GrowingChat(), 0, json.dumps({"store": store}), store=store)
    return ResponseRenderer(order, kept, HEAD)


def events_of(raw):
    """Return the server-sent events, which are numbered and named as their types."""
    events = []
    for number, text in enumerate(raw.split("\n\n")[:-1]):
        name, data = text.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        assert event.pop("sequence_number") == number
        events.append(event)
    return events


EVENT_TYPES = """created in_progress
output_item.added content_part.added reasoning_text.delta reasoning_text.delta
reasoning_text.done content_part.done output_item.done
output_item.added content_part.added output_text.delta output_text.delta
output_text.done content_part.done output_item.done
output_item.added function_call_arguments.delta function_call_arguments.delta
function_call_arguments.done output_item.done
output_item.added function_call_arguments.delta function_call_arguments.done output_item.done
completed"""


TEXTS = [Thought("H"), Thought("m"), Text("S"), Text("o")]
BEGUN = Call(index=0, id="c1", name="add")
ARGUMENTS = [Call(index=0, arguments=part) for part in ('{"a"', ":1}")]
ENDED = Call(index=1, id="c2", name="end", arguments="{}")


@pytest.fixture(scope="module")
def turn():
    """Return the events of a turn that thinks, writes and calls two tools."""
    renderer = new_renderer(KeptResponses())
    raw = ""
    contents = (*TEXTS, BEGUN, *ARGUMENTS, ENDED)
    for event in (Started(1, 1), *contents, Finished("tool_calls", (), {})):
        raw += renderer.part(0, [event])
    return events_of(raw + renderer.end(USAGE))


def test_types_of_a_turns_events(turn):
    """Each item begins, comes in pieces and ends before the next one."""
    types = [event["type"].removeprefix("response.") for event in turn]
    assert types == EVENT_TYPES.split()


def test_items_of_a_turn(turn):
    output = turn[-1]["response"]["output"]
    for item, expected in zip(output, OUTPUT, strict=True):
        assert item.items() >= expected.items()


def test_ids_of_a_turns_items(turn):
    ids = [item["id"] for item in turn[-1]["response"]["output"]]
    assert [name.partition("_")[0] for name in ids] == ["rs", "msg", "fc", "fc"]
    assert len(set(ids)) == 4


def test_events_name_their_items(turn):
    output = turn[-1]["response"]["output"]
    for event in turn[2:-1]:
        item = output[event["output_index"]]
        assert (event.get("item_id") or event["item"]["id"]) == item["id"]
        has_parts = item["type"] != "function_call" and "item_id" in event
        assert ("content_index" in event) == has_parts


def test_items_that_end_are_those_of_the_response(turn):
    ended = [event["item"] for event in turn if event["type"] == "response.output_item.done"]
    assert ended == turn[-1]["response"]["output"]


def test_the_last_event_of_a_turn(turn):
    response = turn[-1]["response"]
    assert response["id"] == "resp_" + 32 * "a"
    assert response["status"] == "completed"
    assert response["model"] == "m"
    assert response["created_at"] == 7
    assert response["usage"] == COUNTED


def respond(daemon, answer=None, **body):
    return ask(daemon, "/v1/responses", {"input": "Hi"} | body, answer=answer)


def stream(daemon, **options):
    return events_of(respond(daemon, stream=True, **options).body.decode())


STOPPED = (*EVENTS[:-1], replace(DONE, reason="stop"))


def test_streamed_and_whole_are_the_same():
    """Only names and times differ; the deltas of a stream are its text, without a [DONE]."""
    whole = respond(FakeDaemon(*STOPPED), top_logprobs=1).json()
    events = stream(FakeDaemon(*STOPPED), top_logprobs=1)
    streamed = events[-1]["response"]
    assert "".join(event.get("delta", "") for event in events) == "ABC"
    assert len(streamed["output"][0]["content"][0]["logprobs"]) == 3
    for response in (whole, streamed):
        assert response.pop("id")[5:] in response["output"][0].pop("id")
        del response["created_at"]
    assert whole == streamed
    assert whole["status"] == "completed"
    assert whole["output"][0]["status"] == "completed"
    assert whole["specmesh"]["prompt_token_ids"] == [104, 105]


EMPTY = (Started(1, 1), EVENTS[-1])


@pytest.mark.parametrize(("events", "text"), [(EVENTS, "ABC"), (EMPTY, "")])
def test_what_the_length_ends(events, text):
    """The response and its last item are incomplete, even an empty one."""
    *_, done, last = stream(FakeDaemon(*events))
    assert done["item"]["status"] == "incomplete"
    assert done["item"]["content"][0]["text"] == text
    assert last["type"] == "response.incomplete"
    assert last["response"]["status"] == "incomplete"
    assert last["response"]["incomplete_details"] == {"reason": "max_output_tokens"}


BROKE = Failed(errors.EngineError("broke"))


def test_an_error_in_the_text_is_the_last_event():
    daemon = FakeDaemon(*EVENTS[:2])
    answer = Answer()
    answer.on_part = lambda: daemon.orders[0].client.on_event(BROKE)
    *_, done, last = stream(daemon, answer=answer)
    assert done["item"]["status"] == "incomplete"
    assert last["type"] == "response.failed"
    assert last["response"]["error"] == {"code": "server_error", "message": "broke"}


def turns_of(daemon):
    """Return the roles and texts of the latest request."""
    return [(message.role, message.content) for message in daemon.orders[-1].request.messages]


class Store:
    """A daemon that keeps responses. names: ids of a conversation's responses, in order."""

    def __init__(self, most):
        self.daemon = FakeDaemon(*STOPPED)
        self.daemon.kept = KeptResponses(most)
        self.names = []

    def call(self, method, name):
        return ask(self.daemon, f"/v1/responses/{name}", {}, method)

    def ask(self, **body):
        return respond(self.daemon, **body)

    def go_on(self):
        previous = self.names[-1] if self.names else None
        answer = self.ask(instructions="Be brief.", previous_response_id=previous).json()
        self.names.append(answer["id"])
        return answer


@pytest.fixture
def store():
    return Store(2)


def test_a_conversation_goes_on_from_a_kept_response(store):
    for _ in range(3):
        assert store.go_on()["store"] is True
    turns = [("user", "Hi"), ("assistant", "ABC")] * 2
    assert turns_of(store.daemon) == [("system", "Be brief."), *turns, ("user", "Hi")]


def test_the_last_responses_are_kept(store):
    answers = [store.go_on() for _ in range(3)]
    assert store.call("GET", store.names[2]).json() == answers[2]
    assert store.call("GET", store.names[0]).status == 404


def test_a_deleted_response_is_gone(store):
    name = store.go_on()["id"]
    deleted = {"id": name, "object": "response", "deleted": True}
    assert store.call("DELETE", name).json() == deleted
    assert store.call("GET", name).status == 404
    assert store.call("DELETE", name).status == 404
    error = store.ask(previous_response_id=name).error
    assert error["param"] == "previous_response_id"


def test_a_response_that_is_not_stored(store):
    unkept = store.ask(store=False).json()
    assert unkept["store"] is False
    assert store.call("GET", unkept["id"]).status == 404


def test_a_daemon_that_keeps_none_names_the_option():
    error = Store(0).call("GET", "resp_1").error
    assert "--responses N" in error["message"]


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("reference", [{"type": "item_reference"}, {}])
def test_items_may_be_referred_to(store, streams, reference):
    """Their ids stand for them, as the AI SDK does it."""
    if streams:
        response = stream(store.daemon)[-1]["response"]
    else:
        response = store.ask().json()
    [item] = response["output"]
    question = {"role": "user", "content": "And?"}
    assert store.ask(input=[USER, reference | {"id": item["id"]}, question]).status == 200
    expected = [("user", "Hi"), ("assistant", "ABC"), ("user", "And?")]
    assert turns_of(store.daemon) == expected


def test_a_call_may_be_referred_to():
    """Its thoughts come with it, and its tool's output answers it."""
    kept = KeptResponses(1)
    renderer = new_renderer(kept, store=True)
    call = Call(index=0, arguments="{}", id="c1", name="add")
    renderer.part(0, [Thought("Hm"), call])
    renderer.end(USAGE)
    items = [{"type": "item_reference", "id": item["id"]} for item in renderer.output]
    output = {"type": "function_call_output", "call_id": "c1", "output": "2"}
    generation, _ = parse_response({"input": [USER, *items, output]}, kept)
    _, called, answered = generation.requests[0].messages
    assert called.reasoning == "Hm"
    assert called.tool_calls == (ToolCall("c1", "add", "{}"),)
    assert answered.role == "tool"
    assert answered.content == "2"


@cases("most, why", '[0, "--responses N"] [2, "is not kept"]')
@pytest.mark.parametrize("name", ["msg_1", "msg_" + "0" * 33, "", "_", "resp_" + "0" * 32])
def test_a_reference_to_what_is_not_kept(name, most, why):
    """The message gives the reason and the remedy."""
    items = [USER, {"type": "item_reference", "id": name}]
    with pytest.raises(RequestError, match=why) as refused:
        parse_response({"input": items}, KeptResponses(most))
    assert refused.value.param == "input[1]"


def test_an_item_goes_with_its_response():
    store = Store(1)
    [old] = store.ask().json()["output"]
    [new] = store.ask().json()["output"]
    assert store.ask(input=[USER, {"id": old["id"]}]).status == 400
    assert store.ask(input=[USER, {"id": new["id"]}]).status == 200
