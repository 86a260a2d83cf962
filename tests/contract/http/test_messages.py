"""Anthropic's /v1/messages: its body, its answer as blocks and events, its errors."""

import asyncio
import json
from dataclasses import replace

import pytest
from asgi_calls import DONE, EVENTS, Answer, FakeDaemon, JumpingLoop, Reader, ask, call, get
from harness.tables import cases, rows
from hypothesis import given
from hypothesis import strategies as st

from specmesh import errors
from specmesh.api import answer as api_answer
from specmesh.api import connection as api_connection
from specmesh.api.backend import Cancel
from specmesh.api.dialects.anthropic import MessageRenderer
from specmesh.api.dialects.base import AnswerHead
from specmesh.api.dialects.message_body import parse_messages_body
from specmesh.api.stream import TOOL_CALLS, Call, Text, Thought, Usage
from specmesh.core.request_frames import error_of
from specmesh.core.requests import Failed, Finished, Started, Tokens
from specmesh.core.sampling.constraint import Grammar, GrammarKind
from specmesh.errors import RequestError

USER = {"role": "user", "content": "Hi"}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
ADD, SEARCH, BASH = rows(
    """
    {"name": "add", "description": "Adds.", "input_schema": $SCHEMA}
    {"type": "web_search_20250305", "name": "web_search", "max_uses": 5}
    {"type": "bash_20250124", "name": "bash"}
    """,
    SCHEMA=SCHEMA,
)


def generation_of(**body):
    return parse_messages_body({"messages": [USER], "max_tokens": 9} | body)


def request_of(**body):
    [request] = generation_of(**body).requests
    return request


def messages_of(**body):
    """Return the messages of a body, as a chat template has them."""
    return [message.fields() for message in request_of(**body).messages]


WORDS = (
    '[server_tool_use] {"name": "web_search", "input": {"query": "x"}}'
    '[web_search_tool_result] {"content": [{"type": "web_search_result", "title": "X"}]}'
)
TURNS, MESSAGES = rows(
    """
[
    {"role": "user", "content": [
        {"type": "text", "text": "Look", "cache_control": {"type": "ephemeral"}},
        {"type": "text", "text": "here."}]},
    {"role": "assistant", "content": [
        {"type": "thinking", "thinking": "Hm", "signature": "x"},
        {"type": "redacted_thinking", "data": "x"},
        {"type": "text", "text": "So"},
        {"type": "tool_use", "id": "c1", "name": "add", "input": {"a": 1}},
        {"type": "tool_use", "id": "c2", "name": "add", "input": {}}]},
    {"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "c1", "content": "3"},
        {"type": "tool_result", "tool_use_id": "c2", "is_error": true,
         "content": [{"type": "text", "text": "no"}, {"type": "text", "text": "a"}]},
        {"type": "text", "text": "Go on."}]},
    {"role": "system", "content": "9 tokens left"},
    {"role": "assistant", "content": [
        {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "x"}},
        {"type": "web_search_tool_result", "tool_use_id": "s1",
         "content": [{"type": "web_search_result", "title": "X"}]},
        {"type": "tool_use", "id": "c3", "name": "add", "input": {"a": 2}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c3"}]}
]
[
    {"role": "system", "content": "Be brief.\\n\\nAdd."},
    {"role": "user", "content": "Look\\n\\nhere."},
    {"role": "assistant", "content": "So", "reasoning_content": "Hm", "tool_calls": [
        {"id": "c1", "type": "function", "function": {"name": "add", "arguments": "{\\"a\\": 1}"}},
        {"id": "c2", "type": "function", "function": {"name": "add", "arguments": "{}"}}]},
    {"role": "tool", "tool_call_id": "c1", "content": "3"},
    {"role": "tool", "tool_call_id": "c2", "content": "[error] no\\n\\na"},
    {"role": "user", "content": "Go on."},
    {"role": "user", "content": "9 tokens left"},
    {"role": "assistant",
     "content": $WORDS,
     "tool_calls": [
        {"id": "c3", "type": "function",
         "function": {"name": "add", "arguments": "{\\"a\\": 2}"}}]},
    {"role": "tool", "tool_call_id": "c3", "content": ""}
]
""",
    WORDS=WORDS,
)
SYSTEM = [{"type": "text", "text": "Be brief."}, {"type": "text", "text": "Add."}]


def test_blocks():
    assert messages_of(system=SYSTEM, messages=TURNS) == MESSAGES


@pytest.mark.parametrize("between", ["", "\nBe brief."])
def test_a_line_that_differs_in_each_request_is_left_out(between):
    """Claude Code's prompts would share nothing in the prefix cache with it."""
    told = f"x-anthropic-billing-header: cc_version=2; cch=1f;{between}"
    generation = generation_of(system=[{"type": "text", "text": told}, *SYSTEM])
    [request] = generation.requests
    expected = "Be brief.\n\nBe brief.\n\nAdd." if between else "Be brief.\n\nAdd."
    assert request.messages[0].content == expected
    assert "x-anthropic-billing-header" in generation.ignored


def test_a_system_message_at_the_beginning():
    first = {"role": "system", "content": "Add."}
    expected = [
        {"role": "system", "content": "Be brief."},
        {"role": "system", "content": "Add."},
        USER,
    ]
    assert messages_of(system="Be brief.", messages=[first, USER]) == expected


def test_an_assistants_message_at_the_end_is_continued():
    begun = {"role": "assistant", "content": [{"type": "text", "text": "I"}]}
    assert request_of(messages=[USER, begun]).continued


def test_messages_of_the_assistant_in_a_row_are_one_turn():
    """The last one is continued all the same."""
    turns = [
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "Hm"}]},
        {"role": "assistant", "content": "I"},
        {"role": "assistant", "content": [{"type": "text", "text": " am"}]},
    ]
    request = request_of(messages=[USER, *turns])
    joined = {"role": "assistant", "content": "I am", "reasoning_content": "Hm"}
    assert [message.fields() for message in request.messages] == [USER, joined]
    assert request.continued


def test_fields():
    """Some have a name of their own, some go through, and the header names the others."""
    generation = generation_of(
        model="m",
        stream=True,
        temperature=0,
        top_k=5,
        top_p=0.5,
        stop_sequences=["a", "b"],
        thinking={"type": "enabled", "budget_tokens": 1024},
        output_config={"effort": "low", "format": {"type": "json_schema", "schema": SCHEMA}},
        metadata={"user_id": "me"},
        service_tier="auto",
        context_management={"edits": []},
        of_tomorrow=1,
        draft_n=2,
    )
    [request] = generation.requests
    params = request.params
    assert (params.max_tokens, params.stop, params.draft_n) == (9, ("a", "b"), 2)
    sampling = params.sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p) == (0, 5, 0.5)
    assert params.grammar == Grammar(GrammarKind.JSON_SCHEMA, json.dumps(SCHEMA))
    assert request.template == {"enable_thinking": True}
    assert (generation.model, generation.stream) == ("m", True)
    assert set(generation.ignored) == {
        "metadata",
        "service_tier",
        "context_management",
        "of_tomorrow",
        "output_config.effort",
        "thinking.budget_tokens",
    }


@cases(
    "thinking, variables",
    """
    [{"type": "enabled"}, {"enable_thinking": true}]
    [{"type": "adaptive"}, {"enable_thinking": true}]
    [{"type": "disabled"}, {"enable_thinking": false}]
    [null, {}]
    """,
)
def test_thinking_is_a_variable_of_the_template(thinking, variables):
    assert request_of(thinking=thinking).template == variables


def tools_of(**body):
    """Return the description of the tools that an answer may call; None without any."""
    grammar = request_of(**body).params.grammar
    return grammar and json.loads(grammar.text)


@cases(
    "choice, expected",
    """
    [null, "auto"]
    [{"type": "auto"}, "auto"]
    [{"type": "any"}, "required"]
    [{"type": "tool", "name": "add"}, {"name": "add"}]
    [{"type": "tool", "name": "web_search"}, "auto"]
    """,
)
def test_the_choice_of_a_tool(choice, expected):
    described = tools_of(tools=[ADD, SEARCH], tool_choice=choice)
    assert (described["choice"], described["parallel"]) == (expected, True)
    [tool] = described["tools"]
    assert tool == {"name": "add", "description": "Adds.", "parameters": SCHEMA}


def test_no_tool_may_be_called():
    assert tools_of(tools=[ADD], tool_choice={"type": "none"}) is None


@pytest.mark.parametrize("kind", ["auto", "any"])
def test_one_call_at_a_time(kind):
    choice = {"type": kind, "disable_parallel_tool_use": True}
    assert tools_of(tools=[ADD], tool_choice=choice)["parallel"] is False


def test_other_tools_are_skipped_by_name():
    generation = generation_of(
        tools=[SEARCH, BASH, ADD | {"cache_control": {"type": "ephemeral"}}],
        tool_choice={"type": "tool", "name": "bash"},
    )
    assert set(generation.ignored) == {
        "tools.web_search_20250305",
        "tools.bash_20250124",
        "tool_choice",
        "cache_control",
    }


def test_other_tools_need_no_name():
    generation = generation_of(tools=[{"type": "mcp_toolset"}, {"type": "tool_search"}])
    assert set(generation.ignored) == {"tools.mcp_toolset", "tools.tool_search"}


@cases(
    "field, value, why",
    """
    ["messages", [], "at least one"]
    ["messages", ["Hi"], "messages[0] must have the role"]
    ["messages", [{"role": "tool", "content": "x"}], "messages[0] must have the role"]
    ["messages", [{"role": "user", "content": 1}], "messages[0].content must be a text"]
    ["messages", [{"role": "user"}], "messages[0].content must be a text"]
    ["messages", [{"role": "user", "content": ["x"]}], "content[0] must be a block"]
    ["messages", [{"role": "user", "content": [{"type": "text"}]}], "content[0] must be a block"]
    ["messages", [{"role": "user", "content": [{"text": "x"}]}], "content[0] must be a block"]
    ["messages", [{"role": "user", "content": [{"type": "tool_use", "id": "a", "name": "b"}]}],
     "content[0] must be a block"]
    ["messages", [{"role": "user", "content": [{"type": "image", "source": {}}]}],
     "messages[0].content[0] is of type image"]
    ["messages", [{"role": "user", "content": [{"type": "document", "source": {}}]}],
     "messages[0].content[0] is of type document"]
    ["messages", [{"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "image"}]}]}],
     "messages[0].content[0].content[0] is of type image"]
    ["messages", [{"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "a", "is_error": "true"}]}],
     "messages[0].content[0].is_error must be true or false"]
    ["messages", [{"role": "system", "content": 1}], "messages[0].content must be a text"]
    ["messages", [{"role": "system", "content": [{"type": "image"}]}],
     "messages[0].content[0] must be a text block"]
    ["system", 1, "system must be a text"]
    ["system", [{"type": "image"}], "system[0] must be a text block"]
    ["max_tokens", null, "max_tokens is missing"]
    ["max_tokens", -1, "max_tokens must be"]
    ["stop_sequences", "a", "stop_sequences must be a list"]
    ["stop_sequences", [1], "stop_sequences: "]
    ["thinking", {"type": "deep"}, "thinking.type must be"]
    ["tools", ["add"], "tools[0] must be a tool"]
    ["tools", [{"name": "add"}], "tools[0] must have a name and an input_schema"]
    ["tools", [{"name": 1, "input_schema": {}}], "tools[0] must have a name and an input_schema"]
    ["tools", [{"type": ["custom"], "name": "a"}], "tools[0].type must be a text"]
    ["tools", [{"type": "bash_20250124", "name": ["a"]}], "tools[0].name must be a text"]
    ["tool_choice", {"type": "auto", "disable_parallel_tool_use": "yes"},
     "tool_choice.disable_parallel_tool_use must be true or false"]
    ["tool_choice", {"type": "any"}, "tool_choice must be of type"]
    ["tool_choice", {"type": "tool", "name": "add"}, "tool_choice must be of type"]
    ["tool_choice", "auto", "tool_choice must be of type"]
    ["output_config", {"format": {"type": "json_schema"}}, "output_config.format.schema is missing"]
    ["n", 2, "n is not supported"]
    ["rounds", true, "rounds is not supported"]
    ["sources", true, "sources is not supported"]
    """,
)
def test_a_wrong_field_is_named(field, value, why):
    answer = say(FakeDaemon(*EVENTS), **{field: value})
    assert answer.status == 400
    assert answer.error["type"] == "invalid_request_error"
    assert why in answer.error["message"]


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["type", "text", "name", "id", "content"]), inner)
    ),
    max_leaves=8,
)
KINDS = ["text", "tool_use", "tool_result", "thinking", "image", "of_tomorrow", None]
IN_BLOCKS = ("text", "thinking", "id", "name", "input", "tool_use_id", "content", "is_error")
BLOCKS = st.fixed_dictionaries(
    {"type": st.sampled_from(KINDS)}, optional=dict.fromkeys(IN_BLOCKS, VALUES)
)
CONTENTS = VALUES | st.lists(BLOCKS, max_size=3)
TURN_OF = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "system"]), "content": CONTENTS}
)
FIELDS = dict.fromkeys(("tool_choice", "thinking", "output_config", "stop_sequences"), VALUES)
IN_TOOLS = dict.fromkeys(("type", "name", "input_schema", "description"), VALUES)
TOOLS = VALUES | st.lists(st.fixed_dictionaries({}, optional=IN_TOOLS), max_size=2)
BODIES = st.fixed_dictionaries(
    {},
    optional=FIELDS
    | {"tools": TOOLS, "system": CONTENTS, "messages": st.lists(TURN_OF, max_size=3)},
)


@given(BODIES)
def test_any_body_is_taken_or_refused_with_a_field(body):
    try:
        taken = request_of(**body).messages
    except RequestError as error:
        taken = error.param
    assert taken


# --- the answer

CALLING = Finished(TOOL_CALLS, (1, 2, 3), {"rounds": 4})
USAGE = Usage(prompt=3, cached=2, generated=5, accepted=1, rejected=0)
COUNTED, TURN, EVENTS_OF_TURN = rows("""
{"input_tokens": 1, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 2,
 "output_tokens": 5}
[
    {"type": "thinking", "thinking": "Hmm", "signature": "c3BlY21lc2g="},
    {"type": "text", "text": "So"},
    {"type": "tool_use", "id": "c1", "name": "add", "input": {"a": 1}},
    {"type": "tool_use", "id": "c2", "name": "end", "input": {}}
]
[
    ["content_block_start", 0, {"type": "thinking", "thinking": "", "signature": ""}],
    ["content_block_delta", 0, {"type": "thinking_delta", "thinking": "Hm"}],
    ["content_block_delta", 0, {"type": "thinking_delta", "thinking": "m"}],
    ["content_block_delta", 0, {"type": "signature_delta", "signature": "c3BlY21lc2g="}],
    ["content_block_stop", 0, null],
    ["content_block_start", 1, {"type": "text", "text": ""}],
    ["content_block_delta", 1, {"type": "text_delta", "text": "So"}],
    ["content_block_stop", 1, null],
    ["content_block_start", 2, {"type": "tool_use", "id": "c1", "name": "add", "input": {}}],
    ["content_block_delta", 2, {"type": "input_json_delta", "partial_json": "{\\"a\\":"}],
    ["content_block_delta", 2, {"type": "input_json_delta", "partial_json": " 1}"}],
    ["content_block_stop", 2, null],
    ["content_block_start", 3, {"type": "tool_use", "id": "c2", "name": "end", "input": {}}],
    ["content_block_delta", 3, {"type": "input_json_delta", "partial_json": "{}"}],
    ["content_block_stop", 3, null]
]
""")
PARTS = [
    [Started(7, 3), Thought("Hm")],
    [Thought("m"), Text("So")],
    [Call(index=0, id="c1", name="add"), Call(index=0, arguments='{"a":'), Text("")],
    [Call(index=0, arguments=" 1}"), Call(index=1, id="c2", name="end")],
    [Call(index=1, arguments="{}"), CALLING],
]


def renderer():
    return MessageRenderer(AnswerHead("chatcmpl-" + 32 * "a", 7, "m"))


def sent(text):
    """Return the data of events, each of which is of the type that its line names."""
    *events, rest = text.split("\n\n")
    assert rest == ""
    found = []
    for event in events:
        name, data = event.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


@pytest.fixture
def turn():
    """The events of a turn with thoughts, a text and calls."""
    writer = renderer()
    text = "".join(writer.part(0, part) for part in PARTS)
    return sent(text + writer.end(USAGE))


def test_the_events_of_blocks(turn):
    blocks = []
    for event in turn[2:-2]:
        shown = event.get("content_block") or event.get("delta")
        blocks.append([event["type"], event["index"], shown])
    assert blocks == EVENTS_OF_TURN


def test_the_first_events_of_a_turn(turn):
    start, ping = turn[:2]
    message = start["message"]
    assert (message["id"], message["model"]) == ("msg_" + 32 * "a", "m")
    assert (message["content"], message["stop_reason"]) == ([], None)
    assert message["usage"]["input_tokens"] == 3
    assert ping == {"type": "ping"}


def test_the_last_events_of_a_turn(turn):
    delta, stop = turn[-2:]
    assert delta["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}
    assert delta["usage"] == COUNTED
    assert delta["specmesh"]["report"] == {"rounds": 4}
    assert stop == {"type": "message_stop"}


def test_a_whole_turn():
    """It has the blocks of the stream."""
    events = [event for part in PARTS for event in part]
    message = json.loads(renderer().whole([events], USAGE))
    assert message["content"] == TURN
    assert message["stop_reason"] == "tool_use"
    assert message["usage"] == COUNTED


def test_text_and_calls_keep_their_order():
    events = [Call(index=0, id="c1", name="add"), Text("So"), Thought("Hm"), CALLING]
    message = json.loads(renderer().whole([events], USAGE))
    assert [block["type"] for block in message["content"]] == ["tool_use", "text", "thinking"]


@pytest.mark.parametrize(
    "arguments",
    [
        '{"a": "\\ud800"}',
        '{"a":1e999}',
        '{"a": %s}' % ("9" * 5000),
        '{"a": 0.10000000000000000555}',
    ],
)
def test_arguments_stay_as_the_model_wrote_them(arguments):
    """Not every reader of JSON could write them again."""
    events = [Call(index=0, id="c1", name="add", arguments=arguments), CALLING]
    written = renderer().whole([events], USAGE)
    assert f'"input": {arguments}}}' in written
    assert json.loads(written, parse_int=str)["content"][0]["name"] == "add"


DEEP = '{"a": ' * 10_000 + "1" + "}" * 10_000


@pytest.mark.parametrize("arguments", ["", '{"a": 1', "[1]", '{"a": NaN}', DEEP])
def test_a_call_that_was_cut_has_no_arguments(arguments):
    cut = replace(CALLING, reason="length")
    events = [Call(index=0, id="c1", name="add", arguments=arguments), cut]
    message = json.loads(renderer().whole([events], USAGE))
    assert message["content"][0]["input"] == {}
    assert message["stop_reason"] == "max_tokens"


@pytest.mark.parametrize(
    ("reason", "expected"), [("stop", "end_turn"), ("length", "max_tokens"), ("moved", "moved")]
)
def test_reasons(reason, expected):
    message = json.loads(renderer().whole([[replace(CALLING, reason=reason)]], USAGE))
    assert (message["content"], message["stop_reason"]) == ([], expected)


# --- over HTTP


def say(daemon, answer=None, path="/v1/messages", headers=(), **body):
    raw = [(b"content-type", b"application/json"), *headers]
    asked = {"messages": [USER], "max_tokens": 9} | body
    return ask(daemon, path, asked, answer=answer, headers=raw)


STOPPED = (*EVENTS[:-1], replace(DONE, reason="stop"))


@pytest.mark.parametrize("path", ["/v1/messages", "/messages"])
def test_a_message(path):
    answer = say(FakeDaemon(*STOPPED), path=path)
    message = answer.json()
    assert message["content"] == [{"type": "text", "text": "ABC"}]
    assert message["stop_reason"] == "end_turn"
    assert answer.headers["request-id"] == answer.headers["x-request-id"]
    assert message["id"][4:] in answer.headers["request-id"]


@pytest.mark.parametrize(
    ("stops", "found", "text"), [(["never", "C"], "C", "AB"), (["B", "BC"], "B", "A")]
)
def test_the_stop_sequence_is_named(stops, found, text):
    message = say(FakeDaemon(*STOPPED), stop_sequences=stops).json()
    assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", found)
    assert message["content"] == [{"type": "text", "text": text}]


def test_the_header_names_beta_features():
    beta = [(b"anthropic-beta", b"one-2025, two-2026"), (b"anthropic-beta", b"three")]
    answer = say(FakeDaemon(*STOPPED), metadata={}, headers=beta)
    assert answer.headers["x-specmesh-ignored"] == "metadata, one-2025, two-2026, three"


def test_other_dialects_do_not_name_them():
    headers = [(b"anthropic-beta", b"one-2025")]
    answer = ask(FakeDaemon(*EVENTS), "/v1/completions", {"prompt": "x"}, headers=headers)
    assert "x-specmesh-ignored" not in answer.headers


QUIET = api_answer.QUIET_INTERVAL


def say_by_timers(daemon, answer, path="/v1/messages"):
    """Ask for a stream on a loop that may jump: once it has begun, only timers are left."""
    body = {"messages": [USER], "max_tokens": 9, "stream": True}
    raw = json.dumps(body).encode()

    async def asked():
        try:
            await call(daemon, "POST", path, [raw], answer)
        finally:
            asyncio.get_running_loop().jump(jumps=False)

    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        runner.run(asked())


def test_a_stream_that_waits_has_pings():
    """A long prompt is read, and the client sees that it is."""
    daemon = FakeDaemon(EVENTS[0])
    answer = Answer()

    def go_on():
        asyncio.get_running_loop().jump()
        if answer.body.count(b"event: ping") == 4:
            answer.on_part = lambda: None
            for event in STOPPED[1:]:
                daemon.orders[0].client.on_event(event)

    answer.on_part = go_on
    say_by_timers(daemon, answer)
    events = sent(answer.body.decode())
    assert [event["type"] for event in events[:5]] == ["message_start", *["ping"] * 4]
    assert events[-1]["type"] == "message_stop"


def test_a_stream_with_text_has_no_more_pings():
    daemon = FakeDaemon(EVENTS[0])
    answer = Answer()

    def go_on():
        answer.on_part = lambda: None
        loop = asyncio.get_running_loop()
        for number, event in enumerate(STOPPED[1:], 1):
            loop.call_later(0.75 * number * QUIET, daemon.orders[0].client.on_event, event)
        loop.jump()

    answer.on_part = go_on
    say_by_timers(daemon, answer)
    assert answer.body.count(b"event: ping") == 1


def test_a_reader_that_is_behind_gets_no_pings():
    """It takes no more after the first part, and has one ping once it has caught up."""
    reader = Reader()
    answer = Answer(reader)

    def catch_up():
        reader.behind = False

    def pause():
        reader.behind = True
        answer.on_part = lambda: None
        loop = asyncio.get_running_loop()
        loop.call_later(5.5 * QUIET, catch_up)
        loop.call_later(6.5 * QUIET, answer.gone.set)
        loop.jump()

    answer.on_part = pause
    say_by_timers(FakeDaemon(EVENTS[0]), answer)
    assert answer.body.count(b"event: ping") == 2


def test_other_dialects_have_no_pings():
    answer = Answer()

    def stay():
        loop = asyncio.get_running_loop()
        loop.call_later(5.5 * QUIET, answer.gone.set)
        loop.jump()

    answer.on_part = stay
    say_by_timers(FakeDaemon(EVENTS[0]), answer, "/v1/chat/completions")
    assert len(answer.parts) == 1


# --- errors

FULL = Failed(errors.Busy("full"))


def test_a_busy_daemon_is_overloaded():
    answer = say(FakeDaemon(FULL))
    assert (answer.status, answer.headers["retry-after"]) == (529, "1")
    assert answer.json()["type"] == "error"
    assert answer.error["type"] == "overloaded_error"
    assert answer.headers["request-id"] == answer.json()["request_id"]


def test_an_error_in_the_text_is_the_last_event():
    daemon = FakeDaemon(*EVENTS[:2])
    answer = Answer()
    broke = Failed(errors.EngineError("broke"))
    answer.on_part = lambda: daemon.orders[0].client.on_event(broke)
    *_, last = sent(say(daemon, answer, stream=True).body.decode())
    assert last["type"] == "error"
    assert (last["error"]["type"], last["error"]["message"]) == ("api_error", "broke")


LONG = errors.PromptTooLong.of(9, 8)
LONGER = errors.PromptTooLong.of(9, 8, least=True)
NUMBERS = "9 tokens > 8 maximum"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (LONG, NUMBERS),
        (errors.PromptTooLong.read(str(LONG)), NUMBERS),
        (error_of("context", str(LONGER), "prompt"), NUMBERS),
        (error_of("context", "an older verifier's words", ""), "an older verifier's words"),
    ],
)
def test_a_long_prompt_in_the_words_that_clients_look_for(error, words):
    answer = say(FakeDaemon(Failed(error)))
    assert answer.error["message"] == f"prompt is too long: {words}"


VERSION = [(b"anthropic-version", b"2023-06-01")]


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (errors.RequestError("no"), 400, "invalid_request_error"),
        (errors.NoSuchModel.of("x"), 404, "not_found_error"),
        (errors.DaemonUnreachable("no"), 502, "api_error"),
        (errors.WentAway("no"), 529, "overloaded_error"),
        (errors.Starting("no"), 529, "overloaded_error"),
        (errors.InternalError(), 500, "api_error"),
    ],
)
def test_statuses(error, status, kind):
    answer = say(FakeDaemon(reason=error))
    assert (answer.status, answer.error["type"]) == (status, kind)


@pytest.mark.parametrize(
    ("method", "path", "status", "kind"),
    [
        ("GET", "/v1/messages", 405, "invalid_request_error"),
        ("POST", "/v1/messages/batches", 404, "not_found_error"),
        ("POST", "/v1/files", 404, "not_found_error"),
        ("GET", "/v1/models/unknown", 404, "not_found_error"),
        ("POST", "/v1/messages", 413, "request_too_large"),
    ],
)
def test_the_routers_errors(method, path, status, kind):
    """They have Anthropic's form for its clients."""
    answer = ask(FakeDaemon(*EVENTS), path, b" " * (2**21 + 1), method, headers=VERSION)
    assert (answer.status, answer.error["type"]) == (status, kind)
    assert answer.json()["type"] == "error"


def test_other_clients_errors_are_openais():
    answer = get(FakeDaemon(), "/v1/files")
    assert answer.error["code"] == "not_found"


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/completions"])
def test_a_connection_too_many(path):
    answer = asyncio.run(_refused(path))
    assert answer.status == (529 if path == "/v1/messages" else 503)
    assert answer.headers["connection"] == "close"


async def _refused(path):
    answer = Answer()
    scope = {"type": "http", "path": path, "headers": []}
    await api_connection.refuse_full(scope, None, answer.send)
    return answer


# --- the number of tokens


def test_a_drafter_counts_by_a_session_that_ends_as_it_begins():
    """Its session has no tokens, and is told to end before its prompt is read."""
    daemon = FakeDaemon(Started(7, 12))
    daemon.role = "drafter"
    answer = say(daemon, path="/v1/messages/count_tokens", metadata={})
    assert answer.json() == {"input_tokens": 12}
    assert answer.headers["x-specmesh-ignored"] == "metadata"
    asked, left = daemon.orders
    assert asked.request.params.max_tokens == 0
    assert left == Cancel(asked.client)


def test_a_count_that_is_refused():
    daemon = FakeDaemon(FULL)
    daemon.role = "drafter"
    answer = say(daemon, path="/v1/messages/count_tokens")
    assert (answer.status, answer.error["type"]) == (529, "overloaded_error")


@pytest.mark.parametrize(("least", "status"), [(False, 200), (True, 400)])
def test_a_count_beyond_the_context(least, status):
    """It is too much for a session, and no fault of a count, unless only a bound is known."""
    error = errors.PromptTooLong.of(9000, 4000, least=least)
    daemon = FakeDaemon(Failed(errors.PromptTooLong.read(str(error))))
    daemon.role = "drafter"
    answer = say(daemon, path="/v1/messages/count_tokens")
    assert (answer.status, answer.json().get("input_tokens")) == (status, None if least else 9000)


def test_a_count_of_a_session_that_ends_early():
    daemon = FakeDaemon(Tokens((65,), 0))
    daemon.role = "drafter"
    assert say(daemon, path="/v1/messages/count_tokens").status == 529
