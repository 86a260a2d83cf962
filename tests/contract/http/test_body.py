"""Bodies: every field is checked, and a field that is not supported is refused."""

import json
from functools import partial

import pytest
from harness import tables
from harness.tables import each, rows
from hypothesis import given
from hypothesis import strategies as st

from specmesh.api.dialects.chat import parse_chat
from specmesh.api.dialects.completions import parse_completion
from specmesh.api.generation import BegunBy
from specmesh.core.draft_length import MAX_DRAFTS
from specmesh.core.sampling.constraint import Grammar, GrammarKind
from specmesh.core.sampling.sampler import Penalties, SamplingParams
from specmesh.core.session_params import LARGEST_MAX_TOKENS
from specmesh.core.text.chat_message import ChatMessage
from specmesh.core.text.tool_formats import ToolCall
from specmesh.errors import MissingField, RequestError

USER, BEGUN, TOOL, OTHER_TOOL, SCHEMA = rows("""
{"role": "user", "content": "Hi"}
{"role": "assistant", "content": "The"}
{"type": "function", "function": {"name": "f"}}
{"type": "function", "function": {"name": "g"}}
{"type": "object", "properties": {"a": {"type": "integer"}}}
""")
FORMAT = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}
GBNF = 'root ::= "a"'
LONG = {"title": "x" * 70_000}
NAME = "cmpl-" + 32 * "0"
cases = partial(
    tables.cases,
    USER=USER,
    BEGUN=BEGUN,
    TOOL=TOOL,
    OTHER=OTHER_TOOL,
    SCHEMA=SCHEMA,
    FORMAT=FORMAT,
    GBNF=GBNF,
    LONG=LONG,
    NAME=NAME,
    MOST=LARGEST_MAX_TOKENS,
    KINDS="text, json_object, or json_schema",
)


def completion(**fields):
    [request] = parse_completion({"prompt": "x"} | fields).requests
    return request


def chat(**fields):
    [request] = parse_chat({"messages": [USER]} | fields).requests
    return request


def messages_of(*messages):
    """Return the messages of a chat as they are read."""
    return chat(messages=list(messages)).messages


def sampling(**fields):
    return completion(**fields).params.sampling


def refused_field(read=completion, why=".", **fields):
    """Return the field for which a body is refused."""
    with pytest.raises(RequestError, match=why) as refused:
        read(**fields)
    return refused.value.param


[EVERY_FIELD] = rows("""
{"prompt": [1, 2], "stream": true, "stream_options": {"include_usage": true}, "draft_n": 3,
 "rounds": true, "cache_prompt": false, "model": "m", "max_tokens": 7, "temperature": 0,
 "top_k": 5, "top_p": 0.5, "seed": 9}
""")


def test_every_field():
    body = parse_completion(EVERY_FIELD)
    [request] = body.requests
    params = request.params
    assert body.stream
    assert body.include_usage
    assert body.model == "m"
    assert body.ignored == ()
    assert request.rounds
    assert request.reconnect_timeout == 30.0
    assert request.prompt_ids == (1, 2)
    assert params.max_tokens == 7
    assert params.draft_n == 3
    assert not params.cache_prompt
    assert params.sampling == SamplingParams(temperature=0.0, top_k=5, top_p=0.5, seed=9)


REFUSED = rows("""
["prompt", null, 5, [], [1, "2"], [true], [1.0], ["a", 1], [["a"]], {}]
["prediction", "x", 5, true, [], [{"type": "text", "text": "x"}]]
["mirostat", 1] ["dry_multiplier", 1] ["top_n_sigma", 1] ["guided_json", 1]
["min_tokens", 5] ["n_predict", 5] ["best_of", 5] ["typical_p", 5] ["model", 5] ["grammar", 5]
["stop_token_ids", [1]]
["max_tokens", -2, 1.5, "9", true, 2147483648]
["temperature", -0.1, 101, NaN, Infinity, "1", true]
["top_p", -0.1, 1.1]
["top_k", -2, 0.5]
["seed", -9223372036854775809, 18446744073709551616, "s"]
["draft_n", -1, "many", true]
["draft_sources", "suffix", ["suffix", "page"], [1], [null], [["suffix"]], {"suffix": true}, true]
["stream", 1, "yes"]
["reconnect_timeout", -1]
["stop", [1], {"x": 1}]
["stream_options", "all"]
["n", 0, 9, true]
["echo", 1]
["logprobs", -1, 21, true]
["top_logprobs", 3]
["suffix", "x"]
["presence_penalty", 101]
["frequency_penalty", "1"]
["repeat_penalty", 0, -1]
["repetition_penalty", 0, -1, 101, "1", true]
["repeat_last_n", -2]
["min_p", 1.1]
["strategy", "lossy", 1]
["threshold", 0, 1.1]
["logit_bias", {"7": -101}, {"-1": 1}, {"x": 1}, {"1": true}, [[1]], [5], "5"]
""")
BIASES = dict.fromkeys(map(str, range(1025)), 1)
LONG_STOPS = ["stop", ["x"] * 65, "x" * 1025, ["x" * 1024] * 17]
TOO_MUCH = [
    ["prompt", ["a"] * 129],
    ["temperature", 10**400],
    ["draft_n", MAX_DRAFTS + 1],
    ["logit_bias", BIASES],
    LONG_STOPS,
]
TAKEN = rows("""
["mirostat", 0, null] ["dry_multiplier", 0, null] ["min_tokens", 0, null]
["suffix", []] ["stop_token_ids", []]
["typical_p", 1.0] ["best_of", 1.0] ["n", 1.0] ["min_p", 1.0] ["threshold", 1.0]
["top_n_sigma", -1.0]
["stop", null, [], ""]
["response_format", {"type": "text"}]
["echo", false, true]
["logprobs", null, false, 20]
["presence_penalty", 0, -100]
["repeat_penalty", 0.5]
["repetition_penalty", null, 1, 1.1]
["strategy", null, "probabilistic", "greedy"]
["logit_bias", {}, [], null]
["max_tokens", null, -1, 7.0] ["seed", null, -1, 7.0] ["top_k", null, -1, 7.0]
["repeat_last_n", null, -1, 7.0]
["temperature", null, 100]
["draft_n", null, "auto", 0, 2.0]
["draft_sources", null, [], ["suffix"], ["remote", "mtp", "local", "grammar", "prediction"]]
["reconnect_timeout", 0]
""")
JUST_ENOUGH = [["stop", ["x"] * 64, ["x" * 1024] * 16], ["draft_n", MAX_DRAFTS]]


@pytest.mark.parametrize(
    ("given", "read"),
    [
        (None, None),
        ([], ()),
        (["remote", "suffix", "remote"], ("remote", "suffix")),
        (["local", "grammar"], ("grammar", "local")),
    ],
)
def test_sources_of_drafts_are_kept_once_and_in_one_order(given, read):
    assert completion(draft_sources=given).params.draft_sources == read


def test_a_refusal_names_the_sources_there_are():
    assert refused_field(why="grammar, prediction, remote, suffix, mtp, local", draft_sources=["x"])


@pytest.mark.parametrize(("name", "value"), each(REFUSED, TOO_MUCH))
def test_refused(name, value):
    assert refused_field(why=name, **{name: value}) == name


@pytest.mark.parametrize(("name", "value"), each(TAKEN, JUST_ENOUGH))
def test_taken(name, value):
    """Neutral values of OpenAI's, llama-server's and vLLM's fields, nulls and edges are taken."""
    assert not parse_completion({"prompt": "x", name: value}).ignored


@pytest.mark.parametrize("seed", [7, 2**32 - 1, 2**32 + 1, 2**64 - 2, -(2**63)])
def test_seeds(seed):
    assert sampling(seed=seed).seed == seed % 2**32


def test_a_random_seed():
    seeds = {sampling(seed=-1).seed for _ in range(4)}
    assert len(seeds) > 1


def test_penalties():
    fields = {"repeat_penalty": 1.1, "repeat_last_n": 5}
    found = sampling(**fields, presence_penalty=0.5, frequency_penalty=-1)
    assert found.penalties == Penalties(1.1, -1.0, 0.5, 5)


@cases("biases", '{"50256": -100, "7": 0.5} [[50256, -100], [7, 0.5]]')
def test_biases(biases):
    """OpenAI writes them as an object, and llama-server also as pairs."""
    assert sampling(logit_bias=biases).logit_bias == ((50256, -100.0), (7, 0.5))


@cases(
    "fields, penalty, window",
    """
    [{"repetition_penalty": 1.3}, 1.3, -1]
    [{"repetition_penalty": 1.3, "repeat_last_n": 5}, 1.3, 5]
    [{"repetition_penalty": 1.3, "repeat_penalty": 1.3}, 1.3, -1]
    [{"repetition_penalty": 1.3, "repeat_penalty": 1}, 1.3, -1]
    [{"repetition_penalty": 1, "repeat_penalty": 1.3}, 1.3, 64]
    [{"repetition_penalty": 1.0}, 1.0, 64]
    """,
)
def test_the_repetition_penalty_of_vllm(fields, penalty, window):
    """It is another name of repeat_penalty, for the whole text."""
    found = sampling(**fields).penalties
    assert (found.repeat, found.window) == (penalty, window)


def test_two_penalties_of_one_kind():
    fields = {"repetition_penalty": 1.3, "repeat_penalty": 1.2}
    assert refused_field(why="differ", **fields) == "repetition_penalty"


def json_values(inner):
    texts = st.text(max_size=5)
    return st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3)


LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
JSON = st.recursive(LEAVES, json_values, max_leaves=6)
FIELDS = [row[0] for row in REFUSED]
NAMES = st.sampled_from([*FIELDS, "resume", "resumable", "reconnect_timeout", "other"])


@given(st.dictionaries(NAMES, JSON, max_size=6) | JSON)
def test_any_json(body):
    try:
        request = parse_completion(body).requests[0]
    except RequestError:
        return
    assert isinstance(body, dict)
    assert (request.prompt is None) != (request.prompt_ids is None) or request.named_only
    assert request.params.max_tokens >= 0
    assert request.params.draft_n is None or 0 <= request.params.draft_n <= MAX_DRAFTS


def test_resume_by_id():
    only = completion(resume={"id": NAME})
    assert only.id == NAME
    assert only.named_only
    assert only.prompt is None
    assert only.prompt_ids is None


@pytest.mark.parametrize(
    ("parse", "more"),
    [(parse_completion, {}), (parse_completion, {"prompt": 5, "seed": 4}), (parse_chat, {})],
)
def test_resume_with_ids(parse, more):
    """The prompt's ids and those that the text has so far, which its client knows."""
    ids = {"prompt_token_ids": [1, 2], "token_ids": [3]}
    resume = {"id": "chat" + NAME, "model": "m", "model_hash": "f00d"} | ids
    body = parse({"resume": resume} | more)
    [request] = body.requests
    assert request.id == "chat" + NAME
    assert not request.named_only
    assert body.began == BegunBy("m", "f00d")
    assert request.prompt_ids == (1, 2)
    assert request.generated == (3,)
    assert request.known == 1


def test_resume_before_the_first_id():
    assert completion(resume={"id": NAME, "prompt_token_ids": [1]}).generated == ()


@cases(
    "value",
    """
    5 {} {"id": 5} {"id": "cmpl-1"}
    {"id": "cmpl-000000000000000000000000000000000"}
    {"id": "CMPL-00000000000000000000000000000000"}
    {"id": $NAME, "other": 1}
    {"id": $NAME, "model": 5}
    {"id": $NAME, "model_hash": 5}
    {"id": $NAME, "prompt_token_ids": []}
    {"id": $NAME, "prompt_token_ids": [-1]}
    {"id": $NAME, "prompt_token_ids": [1], "token_ids": [true]}
    {"id": $NAME, "prompt_token_ids": [1], "token_ids": "x"}
    """,
)
def test_resume_that_cannot_be(value):
    assert refused_field(resume=value) == "resume"


def test_chat():
    """Messages of text, whole or in parts."""
    parts = [{"type": "text", "text": "a"}, {"text": "b", "image_url": None}]
    system = {"role": "system", "content": "s", "name": None}
    request = chat(messages=[system, {"role": "user", "content": parts}])
    assert request.messages == (ChatMessage("system", "s"), ChatMessage("user", "ab"))
    assert (request.prompt, request.prompt_ids) == (None, None)


@cases(
    "limits, most",
    """
    [{}, $MOST]
    [{"max_tokens": 5}, 5]
    [{"max_tokens": 5, "max_completion_tokens": 7}, 7]
    """,
)
def test_limits_of_a_chat(limits, most):
    assert chat(**limits).params.max_tokens == most


@cases(
    "param, fields",
    """
    ["messages", {"messages": null}]
    ["messages", {"messages": []}]
    ["messages", {"messages": "hi"}]
    ["messages", {"messages": [$USER, $BEGUN, $BEGUN]}]
    ["messages[0]", {"messages": ["hi"]}]
    ["messages[0]", {"messages": [{"content": "hi"}]}]
    ["messages[0]", {"messages": [{"role": 5, "content": "hi"}]}]
    ["messages[0]", {"messages": [{"role": "user"}]}]
    ["messages[0]", {"messages": [{"role": "user", "content": null}]}]
    ["messages[0]", {"messages": [{"role": "user", "content": "Hi", "name": 5}]}]
    ["messages[0].content[0]", {"messages": [{"role": "user", "content": ["hi"]}]}]
    ["messages[0].content[0]", {"messages": [{"role": "user", "content": [{"type": "odd"}]}]}]
    ["messages[0].tool_calls[0]",
     {"messages": [{"role": "assistant", "content": "The", "tool_calls": [{"id": "1"}]}]}]
    ["messages", {"continue_final_message": true}]
    ["continue_final_message", {"messages": [$USER, $BEGUN], "continue_final_message": "yes"}]
    ["continue_final_message", {"continue_final_message": true, "add_generation_prompt": true}]
    ["tools", {"tools": {}}]
    ["tools", {"tools": [{"type": "function"}]}]
    ["grammar", {"tools": [$TOOL], "grammar": $GBNF}]
    ["tool_choice",
     {"tools": [$TOOL], "tool_choice": {"type": "function", "function": {"name": "other"}}}]
    ["tool_choice", {"tools": [$TOOL], "tool_choice": {"type": "web_search"}}]
    ["tool_choice",
     {"tools": [$TOOL], "tool_choice": {"type": "allowed_tools",
                                        "allowed_tools": {"mode": "required", "tools": []}}}]
    ["tool_choice", {"tools": [$TOOL], "tool_choice": "always"}]
    ["tool_choice", {"tool_choice": "required"}]
    ["top_logprobs", {"logprobs": true, "top_logprobs": 21}]
    ["top_logprobs", {"logprobs": false, "top_logprobs": 1}]
    ["best_of", {"best_of": 2}]
    ["echo", {"echo": true}]
    """,
)
def test_no_chat(param, fields):
    assert refused_field(chat, **fields) == param


@cases(
    "message, text",
    """
    [{"role": "tool", "content": null, "tool_call_id": "1"}, ""]
    [{"role": "assistant", "content": null, "refusal": "I can't."}, "I can't."]
    [{"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}, "No."]
    [{"role": "user", "content": [{"type": "input_text", "text": "Hi"}]}, "Hi"]
    [{"role": "assistant", "content": [{"type": "output_text", "text": "Hi"}]}, "Hi"]
    [{"role": "assistant", "content": "Hi", "refusal": null, "audio": null}, "Hi"]
    """,
)
def test_texts_of_messages(message, text):
    assert messages_of(USER, message, USER)[1].content == text


def test_a_function_of_old_is_a_tool():
    """Its call and its result are those of a tool."""
    function = {"name": "f", "arguments": "{}"}
    called = {"role": "assistant", "content": None, "function_call": function}
    answered = {"role": "function", "name": "f", "content": "3"}
    _, call, result = messages_of(USER, called, answered)
    assert call == ChatMessage("assistant", "", tool_calls=(ToolCall("", "f", "{}"),))
    assert result == ChatMessage("tool", "3", name="f")


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_thoughts_of_messages(field):
    thinking = BEGUN | {field: "Hm"}
    assert messages_of(USER, thinking, USER)[1].reasoning == "Hm"


@cases(
    "part",
    """
    {"type": "thinking", "thinking": "Hm"}
    {"type": "thinking", "thinking": [{"type": "text", "text": "Hm"}]}
    {"type": "reasoning", "text": "Hm"}
    {"type": "reasoning", "reasoning": "Hm"}
    """,
)
def test_thoughts_in_parts_of_messages(part):
    message = {"role": "assistant", "content": [part, {"type": "text", "text": "Hi"}]}
    assert messages_of(USER, message, USER)[1] == ChatMessage("assistant", "Hi", reasoning="Hm")


@cases(
    "function, text",
    r"""
    [{"name": "f"}, ""]
    [{"name": "f", "arguments": null}, ""]
    [{"name": "f", "arguments": {"a": "é"}}, "{\"a\": \"é\"}"]
    [{"name": "f", "arguments": [1]}, "[1]"]
    """,
)
def test_arguments_of_calls_that_are_no_text(function, text):
    called = {"role": "assistant", "tool_calls": [{"id": "1", "function": function}]}
    _, message = messages_of(USER, called)
    assert message.tool_calls == (ToolCall("1", "f", text),)


def test_the_call_of_a_custom_tool_is_told_as_that_of_a_function():
    """The result of a call names it, so the chat goes on only with the call."""
    custom = {"id": "1", "type": "custom", "custom": {"name": "patch", "input": "*** Begin"}}
    called = {"role": "assistant", "content": None, "tool_calls": [custom]}
    _, message = messages_of(USER, called)
    assert message.tool_calls == (ToolCall("1", "patch", '{"input":"*** Begin"}'),)


@cases(
    "tools, choice, names, chosen",
    """
    [[$TOOL], "any", ["f"], "required"]
    [[{"function": {"name": "f"}}], "required", ["f"], "required"]
    [[{"type": "custom", "custom": {"name": "c"}}, $TOOL], "required", ["f"], "required"]
    [[{"type": "custom", "custom": {"name": "c"}}, $TOOL], {"type": "custom"}, ["f"], "auto"]
    [[$TOOL, $OTHER],
     {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [$TOOL]}},
     ["f"], "required"]
    [[$TOOL, $OTHER],
     {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "g"}]},
     ["g"], "auto"]
    """,
)
def test_which_tools_may_be_called(tools, choice, names, chosen):
    told = tools_of(tools=tools, tool_choice=choice)
    assert [tool["name"] for tool in told["tools"]] == names
    assert told["choice"] == chosen


def test_tools_that_are_no_functions_are_skipped_and_named():
    tools = [{"type": "custom", "custom": {"name": "c"}}, {"type": "web_search"}]
    body = parse_chat({"messages": [USER], "tools": tools})
    assert body.ignored == ("tools.custom", "tools.web_search")


@cases(
    "part",
    """
    {"type": "image_url", "image_url": {"url": "x"}, "text": "see this"}
    {"type": "text", "text": "see this", "image_url": {"url": "x"}}
    {"text": "see this", "image": "iVBORw0KGgo="}
    {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}
    {"type": "text"}
    "hi"
    """,
)
def test_no_images(part):
    """An image for a model without eyes is refused, never dropped."""
    content = [{"type": "text", "text": "Hi"}, part]
    why = r"^messages\[0\].content\[1\] must be a text part: images, audio"
    refused_field(chat, why, messages=[{"role": "user", "content": content}])


@cases(
    "messages, fields, continued, template",
    """
    [[$USER], {"add_generation_prompt": false}, false, {"add_generation_prompt": false}]
    [[$USER, $BEGUN], {"add_generation_prompt": false}, true, {}]
    [[$USER, $BEGUN, $BEGUN], {"continue_final_message": false}, false, {}]
    """,
)
def test_a_prompt_without_the_beginning_of_an_answer(messages, fields, continued, template):
    """The template gets the field; a message that is continued has no beginning anyway."""
    request = chat(messages=messages, **fields)
    assert (request.continued, request.template) == (continued, template)


def test_several_answers():
    body = parse_completion({"prompt": ["x", "y"], "n": 3})
    assert (len(body.requests), body.choices) == (2, 3)
    assert parse_chat({"messages": [USER], "n": 8}).choices == 8


@cases(
    "name, fields",
    """
    ["n", {"n": 2, "resumable": true}]
    ["n", {"n": 2, "resume": {"id": $NAME}}]
    ["echo", {"echo": true, "resume": {"id": $NAME}}]
    ["prompt", {"prompt": ["x", "y"], "resumable": true}]
    """,
)
def test_a_text_that_is_resumed_is_one(name, fields):
    assert refused_field(**fields) == name


def grammar(**fields):
    """Return the grammar of a completion; a chat has the same."""
    found = completion(**fields).params.grammar
    assert chat(**fields).params.grammar == found
    return found


@cases(
    "fields, schema",
    """
    [{"json_schema": $SCHEMA}, $SCHEMA]
    [{"response_format": $FORMAT}, $SCHEMA]
    [{"response_format": {"type": "json_object", "schema": $SCHEMA}}, $SCHEMA]
    [{"response_format": {"type": "json_object"}}, {"type": "object"}]
    [{"response_format": {"type": "json_object", "schema": null}}, {"type": "object"}]
    """,
)
def test_a_schema(fields, schema):
    assert grammar(**fields) == Grammar(GrammarKind.JSON_SCHEMA, json.dumps(schema))


def test_a_grammar():
    assert grammar(grammar=GBNF) == Grammar(GrammarKind.GBNF, GBNF)


NO_SCHEMA = [None, "{}", {}, {"schema": None}, {"name": "a"}, {"schema_": SCHEMA}]


@pytest.mark.parametrize("schema", NO_SCHEMA)
def test_a_schema_that_is_missing(schema):
    """It is refused as OpenAI does."""
    with pytest.raises(MissingField, match="json_object for any object") as refused:
        chat(response_format={"type": "json_schema", "schema": SCHEMA, "json_schema": schema})
    assert refused.value.param == "response_format.json_schema.schema"


@cases(
    "fields, field, why",
    """
    [{"response_format": "json"}, "response_format", $KINDS]
    [{"response_format": {"type": "xml"}}, "response_format", $KINDS]
    [{"response_format": {"type": "json_schema", "json_schema": {"schema": 3}}}, "response_format",
     "schema must be a JSON object"]
    [{"response_format": {"type": "json_object", "schema": 3}}, "response_format",
     "schema must be a JSON object"]
    [{"json_schema": "{}"}, "json_schema", "must be a JSON object"]
    [{"grammar": " "}, "grammar", "empty"]
    [{"grammar": $GBNF, "json_schema": $SCHEMA}, "grammar", "one of"]
    [{"json_schema": $SCHEMA, "response_format": {"type": "json_object"}}, "json_schema", "one of"]
    [{"json_schema": $LONG}, "json_schema", "bytes"]
    """,
)
def test_a_grammar_that_is_refused(fields, field, why):
    assert refused_field(why=why, **fields) == field


# --- tools and a schema


def tools_of(**fields):
    """Return the description of a chat's tools in its grammar."""
    found = chat(**fields).params.grammar
    assert found is not None
    assert found.kind is GrammarKind.TOOLS
    return dict(json.loads(found.text))


@cases(
    "fields, schema",
    """
    [{"response_format": $FORMAT}, $SCHEMA]
    [{"response_format": {"type": "json_object"}}, {"type": "object"}]
    [{"json_schema": $SCHEMA}, $SCHEMA]
    [{"response_format": $FORMAT, "tool_choice": "auto"}, $SCHEMA]
    [{"response_format": $FORMAT, "tool_choice": "required"}, null]
    [{"response_format": {"type": "text"}}, null]
    """,
)
def test_a_schema_binds_the_text_of_a_chat_that_calls_no_tool(fields, schema):
    assert tools_of(tools=[TOOL], **fields).get("schema") == schema


def test_without_a_choice_only_the_schema_counts():
    found = chat(tools=[TOOL], tool_choice="none", json_schema=SCHEMA).params.grammar
    assert found == Grammar(GrammarKind.JSON_SCHEMA, json.dumps(SCHEMA))


def test_a_schema_with_tools_is_as_short_as_one_without():
    refused_field(chat, "json_schema has more than 65536 bytes", tools=[TOOL], json_schema=LONG)


@cases("strict, names", '[true, ["f"]] [false, null] [null, null] ["yes", null]')
def test_strict_names_the_tools_whose_schemas_must_be_kept_to(strict, names):
    function = {"name": "f", "strict": strict}
    assert tools_of(tools=[{"type": "function", "function": function}]).get("strict") == names


@cases(
    "fields, name",
    """
    [{"response_format": $FORMAT}, "response_format.json_schema.schema"]
    [{"response_format": {"type": "json_object"}}, "response_format.schema"]
    [{"json_schema": $SCHEMA}, "json_schema"]
    [{"response_format": $FORMAT, "tools": [$TOOL]}, "response_format.json_schema.schema"]
    [{}, ""]
    """,
)
def test_where_the_schema_is(fields, name):
    assert parse_chat({"messages": [USER], **fields}).schema_field == name


def test_tools_are_as_long_as_a_body_may_be():
    """Only the context bounds them."""
    function = {"name": "f", "description": "x" * 1_500_000}
    tools = [{"type": "function", "function": function}]
    assert len(str(tools_of(tools=tools))) > 1_500_000
