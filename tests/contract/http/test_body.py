"""Bodies: every field is checked, what is not supported is refused."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specmesh.api.dialects.chat import parse_chat
from specmesh.api.dialects.completions import parse_completion
from specmesh.core.draft_length import MAX_DRAFTS
from specmesh.core.sampling.constraint import Grammar, GrammarKind
from specmesh.core.sampling.sampler import Penalties, SamplingParams
from specmesh.core.session_params import LARGEST_MAX_TOKENS, ChatMessage
from specmesh.core.text.tool_formats import ToolCall
from specmesh.errors import RequestError

MESSAGE = {"role": "user", "content": "Hi"}


def test_every_field():
    own = {"draft_n": 3, "rounds": True, "cache_prompt": False, "model": "m"}
    sampled = {"max_tokens": 7, "temperature": 0, "top_k": 5, "top_p": 0.5, "seed": 9}
    body = parse_completion(
        {"prompt": [1, 2], "stream": True, "stream_options": {"include_usage": True}}
        | own
        | sampled
    )
    [request] = body.requests
    params = request.params
    assert (body.stream, body.include_usage, body.model, body.ignored) == (True, True, "m", ())
    assert (request.rounds, request.reconnect_timeout, request.prompt_ids) == (True, 30.0, (1, 2))
    assert (params.max_tokens, params.draft_n, params.cache_prompt) == (7, 3, False)
    assert params.sampling == SamplingParams(temperature=0.0, top_k=5, top_p=0.5, seed=9)


REFUSED: dict[str, list[object]] = {
    "prompt": [None, 5, [], [1, "2"], [True], [1.0], ["a", 1], [["a"]], ["a"] * 129, {}],
    "prediction": [{"type": "content", "content": "x"}],
    **{name: [1] for name in ("mirostat", "dry_multiplier", "top_n_sigma", "guided_json")},
    **{
        name: [5]
        for name in ("min_tokens", "n_predict", "best_of", "typical_p", "model", "grammar")
    },
    "stop_token_ids": [[1]],
    "max_tokens": [-2, 1.5, "9", True, 2**31],
    "temperature": [-0.1, 101, math.nan, math.inf, "1", True, 10**400],
    "top_p": [-0.1, 1.1],
    "top_k": [-2, 0.5],
    "seed": [-(2**63) - 1, 2**64, "s"],
    "draft_n": [-1, MAX_DRAFTS + 1, "many", True],
    "stream": [1, "yes"],
    "reconnect_timeout": [-1],
    "stop": [[1], {"x": 1}, ["x"] * 65, "x" * 1025, ["x" * 1024] * 17],
    "stream_options": ["all"],
    "n": [0, 9, True],
    "echo": [1],
    "logprobs": [-1, 21, True],
    "top_logprobs": [3],
    "suffix": ["x"],
    "presence_penalty": [101],
    "frequency_penalty": ["1"],
    "repeat_penalty": [0, -1],
    "repetition_penalty": [0, -1, 101, "1", True],
    "repeat_last_n": [-2],
    "min_p": [1.1],
    "strategy": ["lossy", 1],
    "threshold": [0, 1.1],
    "logit_bias": [
        {"7": -101},
        {"-1": 1},
        {"x": 1},
        {"1": True},
        [[1]],
        [5],
        "5",
        {str(n): 1 for n in range(1025)},
    ],
}


def each(table: dict[str, list[object]]) -> list[tuple[str, object]]:
    return [(name, value) for name, values in table.items() for value in values]


@pytest.mark.parametrize(("name", "value"), each(REFUSED))
def test_refused(name: str, value: object):
    with pytest.raises(RequestError, match=name) as refused:
        parse_completion({"prompt": "x"} | {name: value})
    assert refused.value.param == name


@pytest.mark.parametrize("seed", [7, 2**32 - 1, 2**32 + 1, 2**64 - 2, -(2**63), -1])
def test_seeds(seed: int):
    """The lowest 32 bits of any one; -1 is a random one."""
    found = {
        parse_completion({"prompt": "x", "seed": seed}).requests[0].params.sampling.seed
        for _ in range(4)
    }
    assert len(found) > 1 if seed == -1 else found == {seed % 2**32}


TAKEN: dict[str, list[object]] = {
    **{name: [0, None] for name in ("mirostat", "dry_multiplier", "min_tokens")},
    **{name: [[]] for name in ("suffix", "stop_token_ids")},
    **{name: [1.0] for name in ("typical_p", "best_of", "n", "min_p", "threshold")},
    "top_n_sigma": [-1.0],
    "stop": [None, [], "", ["x"] * 64, ["x" * 1024] * 16],
    "response_format": [{"type": "text"}],
    "echo": [False, True],
    "logprobs": [None, False, 20],
    "presence_penalty": [0, -100],
    "repeat_penalty": [0.5],
    "repetition_penalty": [None, 1, 1.1],
    "strategy": [None, "probabilistic", "greedy"],
    "logit_bias": [{}, [], None],
    **{name: [None, -1, 7.0] for name in ("max_tokens", "seed", "top_k", "repeat_last_n")},
    "temperature": [None, 100],
    "draft_n": [None, "auto", 0, MAX_DRAFTS, 2.0],
    "reconnect_timeout": [0],
}


@pytest.mark.parametrize(("name", "value"), each(TAKEN))
def test_taken(name: str, value: object):
    """Neutral values of OpenAI's, llama-server's and vLLM's fields, nulls and values at the edge are taken."""
    assert not parse_completion({"prompt": "x"} | {name: value}).ignored


def test_penalties_and_biases():
    fields = {
        "repeat_penalty": 1.1,
        "repeat_last_n": 5,
        "presence_penalty": 0.5,
        "frequency_penalty": -1,
    }
    sampling = parse_completion({"prompt": "x"} | fields).requests[0].params.sampling
    assert sampling.penalties == Penalties(1.1, -1.0, 0.5, 5)
    openai = parse_completion({"prompt": "x", "logit_bias": {"50256": -100, "7": 0.5}})
    assert openai.requests[0].params.sampling.logit_bias == ((50256, -100.0), (7, 0.5))
    llama = parse_completion({"prompt": "x", "logit_bias": [[50256, -1], [7, 1]]})
    assert llama.requests[0].params.sampling.logit_bias == ((50256, -1.0), (7, 1.0))


@pytest.mark.parametrize(
    ("fields", "penalty", "window"),
    [
        ({"repetition_penalty": 1.3}, 1.3, -1),
        ({"repetition_penalty": 1.3, "repeat_last_n": 5}, 1.3, 5),
        ({"repetition_penalty": 1.3, "repeat_penalty": 1.3}, 1.3, -1),
        ({"repetition_penalty": 1.3, "repeat_penalty": 1}, 1.3, -1),
        ({"repetition_penalty": 1, "repeat_penalty": 1.3}, 1.3, 64),
        ({"repetition_penalty": 1.0}, 1.0, 64),
    ],
)
def test_the_repetition_penalty_of_vllm(fields: dict[str, object], penalty: float, window: int):
    """It is another name of repeat_penalty, for the whole text."""
    sampling = parse_completion({"prompt": "x"} | fields).requests[0].params.sampling
    assert (sampling.penalties.repeat, sampling.penalties.window) == (penalty, window)


def test_two_penalties_of_one_kind():
    with pytest.raises(RequestError, match="differ") as refused:
        parse_completion({"prompt": "x", "repetition_penalty": 1.3, "repeat_penalty": 1.2})
    assert refused.value.param == "repetition_penalty"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)
NAMES = st.sampled_from([*REFUSED, "resume", "resumable", "reconnect_timeout", "other"])


@given(st.dictionaries(NAMES, JSON, max_size=6) | JSON)
def test_any_json(body: object):
    try:
        request = parse_completion(body).requests[0]
    except RequestError:
        return
    assert isinstance(body, dict)
    assert (request.prompt is None) != (request.prompt_ids is None) or request.named_only
    assert request.params.max_tokens >= 0
    assert request.params.draft_n is None or 0 <= request.params.draft_n <= MAX_DRAFTS


NAME = "cmpl-" + 32 * "0"


def test_resume():
    """A text by its id alone, or with its prompt's ids and those it has so far, which its client knows."""
    only = parse_completion({"resume": {"id": NAME}}).requests[0]
    assert (only.id, only.named_only, only.prompt, only.prompt_ids) == (NAME, True, None, None)
    value = {"id": "chat" + NAME, "model": "m", "prompt_token_ids": [1, 2], "token_ids": [3]}
    for parse in (parse_completion, parse_chat):
        body = parse(
            {"resume": value, "prompt": 5, "seed": 4}
            if parse is parse_completion
            else {"resume": value}
        )
        [request] = body.requests
        assert (request.id, request.prompt_ids, request.generated, request.known) == (
            "chat" + NAME,
            (1, 2),
            (3,),
            1,
        )
        assert (request.named_only, body.began) == (False, "m")
    assert (
        parse_completion({"resume": {"id": NAME, "prompt_token_ids": [1]}}).requests[0].generated
        == ()
    )


NO_RESUME: list[object] = [
    *(5, {}, {"id": 5}, {"id": "cmpl-1"}, {"id": NAME + "0"}, {"id": NAME.upper()}),
    *(
        {"id": NAME} | more
        for more in (
            {"other": 1},
            {"model": 5},
            {"prompt_token_ids": []},
            {"prompt_token_ids": [-1]},
        )
    ),
    *({"id": NAME, "prompt_token_ids": [1], "token_ids": ids} for ids in ([True], "x")),
]


@pytest.mark.parametrize("value", NO_RESUME, ids=str)
def test_resume_that_cannot_be(value: object):
    with pytest.raises(RequestError) as refused:
        parse_completion({"resume": value})
    assert refused.value.param == "resume"


def test_chat():
    """Messages of text, whole or in parts; no limit but the context's unless one is given."""
    parts = [{"type": "text", "text": "a"}, {"text": "b", "image_url": None}]
    said = [{"role": "system", "content": "s", "name": None}, {"role": "user", "content": parts}]
    request = parse_chat({"messages": said}).requests[0]
    assert request.messages == (ChatMessage("system", "s"), ChatMessage("user", "ab"))
    assert (request.prompt, request.prompt_ids, request.params.max_tokens) == (
        None,
        None,
        LARGEST_MAX_TOKENS,
    )
    limits = {"max_tokens": 5, "max_completion_tokens": 7}
    assert parse_chat({"messages": said, "max_tokens": 5}).requests[0].params.max_tokens == 5
    assert parse_chat({"messages": said} | limits).requests[0].params.max_tokens == 7


USER, BEGUN = MESSAGE, {"role": "assistant", "content": "The"}
TOOL = {"type": "function", "function": {"name": "f"}}
NO_CHATS: list[tuple[str, dict[str, object]]] = [
    *(("messages", {"messages": messages}) for messages in (None, [], "hi", [USER, BEGUN, BEGUN])),
    *(
        ("messages[0]", {"messages": [message]})
        for message in ("hi", {"content": "hi"}, {"role": 5, "content": "hi"})
    ),
    *(
        ("messages[0]", {"messages": [{"role": "user", **more}]})
        for more in ({}, {"content": None})
    ),
    ("messages[0]", {"messages": [USER | {"name": 5}]}),
    *(
        ("messages[0].content[0]", {"messages": [USER | {"content": [part]}]})
        for part in ("hi", {"type": "odd"})
    ),
    ("messages[0].tool_calls[0]", {"messages": [BEGUN | {"tool_calls": [{"id": "1"}]}]}),
    ("messages", {"continue_final_message": True}),
    ("continue_final_message", {"messages": [USER, BEGUN], "continue_final_message": "yes"}),
    ("continue_final_message", {"continue_final_message": True, "add_generation_prompt": True}),
    *(("tools", {"tools": tools}) for tools in ({}, [{"type": "function"}])),
    ("grammar", {"tools": [TOOL], "grammar": 'root ::= "a"'}),
    *(
        ("tool_choice", {"tools": [TOOL], "tool_choice": choice})
        for choice in (
            {"type": "function", "function": {"name": "other"}},
            {"type": "web_search"},
            {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": []}},
            "always",
        )
    ),
    ("tool_choice", {"tool_choice": "required"}),
    *(
        ("top_logprobs", {"logprobs": wanted, "top_logprobs": count})
        for wanted, count in ((True, 21), (False, 1))
    ),
    ("best_of", {"best_of": 2}),
    ("echo", {"echo": True}),
]


@pytest.mark.parametrize(("param", "fields"), NO_CHATS)
def test_no_chat(param: str, fields: dict[str, object]):
    with pytest.raises(RequestError) as refused:
        parse_chat({"messages": [USER]} | fields)
    assert refused.value.param == param


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ({"role": "tool", "content": None, "tool_call_id": "1"}, ""),
        ({"role": "assistant", "content": None, "refusal": "I can't."}, "I can't."),
        ({"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}, "No."),
        ({"role": "user", "content": [{"type": "input_text", "text": "Hi"}]}, "Hi"),
        ({"role": "assistant", "content": [{"type": "output_text", "text": "Hi"}]}, "Hi"),
        ({"role": "assistant", "content": "Hi", "refusal": None, "audio": None}, "Hi"),
    ],
)
def test_texts_of_messages(message: dict[str, object], text: str):
    body = parse_chat({"messages": [USER, message, USER]})
    assert body.requests[0].messages[1].content == text


def test_a_function_of_old_is_a_tool():
    """Its call, and what came of it."""
    called = {
        "role": "assistant",
        "content": None,
        "function_call": {"name": "f", "arguments": "{}"},
    }
    answered = {"role": "function", "name": "f", "content": "3"}
    _, call, result = parse_chat({"messages": [USER, called, answered]}).requests[0].messages
    assert call == ChatMessage("assistant", "", tool_calls=(ToolCall("", "f", "{}"),))
    assert result == ChatMessage("tool", "3", name="f")


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_thoughts_of_messages(field: str):
    body = parse_chat({"messages": [USER, BEGUN | {field: "Hm"}, USER]})
    assert body.requests[0].messages[1].reasoning == "Hm"


@pytest.mark.parametrize(
    "part",
    [
        {"type": "thinking", "thinking": "Hm"},
        {"type": "thinking", "thinking": [{"type": "text", "text": "Hm"}]},
        {"type": "reasoning", "text": "Hm"},
        {"type": "reasoning", "reasoning": "Hm"},
    ],
)
def test_thoughts_in_parts_of_messages(part: dict[str, object]):
    said = {"role": "assistant", "content": [part, {"type": "text", "text": "Hi"}]}
    message = parse_chat({"messages": [USER, said, USER]}).requests[0].messages[1]
    assert message == ChatMessage("assistant", "Hi", reasoning="Hm")


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({}, ""),
        ({"arguments": None}, ""),
        ({"arguments": {"a": "é"}}, '{"a": "é"}'),
        ({"arguments": [1]}, "[1]"),
    ],
)
def test_arguments_of_calls_that_are_no_text(given: dict[str, object], text: str):
    called = {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "f", **given}}]}
    message = parse_chat({"messages": [USER, called]}).requests[0].messages[1]
    assert message.tool_calls == (ToolCall("1", "f", text),)


def test_the_call_of_a_custom_tool_is_told_as_that_of_a_function():
    """Else nobody could go on with such a chat: its result names the call."""
    custom = {"id": "1", "type": "custom", "custom": {"name": "patch", "input": "*** Begin"}}
    called = {"role": "assistant", "content": None, "tool_calls": [custom]}
    message = parse_chat({"messages": [USER, called]}).requests[0].messages[1]
    assert message.tool_calls == (ToolCall("1", "patch", '{"input":"*** Begin"}'),)


def tools_of(**fields: object) -> tuple[list[str], object]:
    """The names of the functions that may be called, and the choice."""
    grammar = parse_chat({"messages": [USER], **fields}).requests[0].params.grammar
    assert grammar is not None
    told = json.loads(grammar.text)
    return [one["name"] for one in told["tools"]], told["choice"]


OTHER_FUNCTION = {"type": "function", "function": {"name": "g"}}


@pytest.mark.parametrize(
    ("tools", "choice", "names", "chosen"),
    [
        ([TOOL], "any", ["f"], "required"),
        ([{"function": {"name": "f"}}], "required", ["f"], "required"),
        ([{"type": "custom", "custom": {"name": "c"}}, TOOL], "required", ["f"], "required"),
        ([{"type": "custom", "custom": {"name": "c"}}, TOOL], {"type": "custom"}, ["f"], "auto"),
        (
            [TOOL, OTHER_FUNCTION],
            {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [TOOL]}},
            ["f"],
            "required",
        ),
        (
            [TOOL, OTHER_FUNCTION],
            {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "g"}]},
            ["g"],
            "auto",
        ),
    ],
)
def test_which_tools_may_be_called(tools: object, choice: object, names: list[str], chosen: object):
    assert tools_of(tools=tools, tool_choice=choice) == (names, chosen)


def test_tools_that_are_no_functions_are_skipped_and_named():
    tools = [{"type": "custom", "custom": {"name": "c"}}, {"type": "web_search"}]
    body = parse_chat({"messages": [USER], "tools": tools})
    assert body.ignored == ("tools.custom", "tools.web_search")


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "x"}, "text": "see this"},
        {"type": "text", "text": "see this", "image_url": {"url": "x"}},
        {"text": "see this", "image": "iVBORw0KGgo="},
        {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}},
        {"type": "text"},
        "hi",
    ],
)
def test_no_images(part: object):
    """What a model without eyes is shown is refused, never dropped."""
    with pytest.raises(
        RequestError, match=r"^messages\[0\].content\[1\] must be a text part: images, audio"
    ):
        parse_chat(
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}, part]}]}
        )


def test_a_prompt_without_the_beginning_of_an_answer():
    """As it is said to the template; a message that is continued has none anyway, nor is one of two."""
    for messages, template in (([USER], {"add_generation_prompt": False}), ([USER, BEGUN], {})):
        request = parse_chat({"messages": messages, "add_generation_prompt": False}).requests[0]
        assert (request.continued, request.template) == (not template, template)
    assert (
        not parse_chat({"messages": [USER, BEGUN, BEGUN], "continue_final_message": False})
        .requests[0]
        .continued
    )


def test_several_answers():
    """n is for both APIs; a text to be gone on with is one."""
    body = parse_completion({"prompt": ["x", "y"], "n": 3})
    assert (len(body.requests), body.choices) == (2, 3)
    assert parse_chat({"messages": [MESSAGE], "n": 8}).choices == 8
    resume = {"id": "cmpl-" + 32 * "a"}
    for fields, name in (
        ({"n": 2, "resumable": True}, "n"),
        ({"n": 2, "resume": resume}, "n"),
        ({"echo": True, "resume": resume}, "echo"),
        ({"prompt": ["x", "y"], "resumable": True}, "prompt"),
    ):
        with pytest.raises(RequestError) as refused:
            parse_completion({"prompt": "x"} | fields)
        assert refused.value.param == name


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
ANY = {"type": "object"}
GBNF = 'root ::= "a"'


def grammar(**fields: object) -> Grammar | None:
    """What a completion asks for; a chat asks for it alike."""
    told = parse_completion({"prompt": "x", **fields}).requests[0].params.grammar
    assert parse_chat({"messages": [MESSAGE], **fields}).requests[0].params.grammar == told
    return told


@pytest.mark.parametrize(
    ("fields", "schema"),
    [
        ({"json_schema": SCHEMA}, SCHEMA),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "a", "schema": SCHEMA},
                }
            },
            SCHEMA,
        ),
        ({"response_format": {"type": "json_object", "schema": SCHEMA}}, SCHEMA),
        ({"response_format": {"type": "json_object"}}, ANY),
    ],
)
def test_a_schema(fields: dict[str, object], schema: object):
    assert grammar(**fields) == Grammar(GrammarKind.JSON_SCHEMA, json.dumps(schema))


@pytest.mark.parametrize(
    ("fields", "field", "why"),
    [
        *(
            ({"response_format": wrong}, "response_format", "text, json_object, or json_schema")
            for wrong in (
                "json",
                {"type": "xml"},
                {"type": "json_schema"},
                {"type": "json_schema", "json_schema": {}},
            )
        ),
        (
            {"response_format": {"type": "json_object", "schema": 3}},
            "response_format",
            "schema must be a JSON object",
        ),
        ({"json_schema": "{}"}, "json_schema", "must be a JSON object"),
        ({"grammar": " "}, "grammar", "empty"),
        ({"grammar": GBNF, "json_schema": SCHEMA}, "grammar", "one of"),
        (
            {"json_schema": SCHEMA, "response_format": {"type": "json_object"}},
            "json_schema",
            "one of",
        ),
        ({"json_schema": {"title": "x" * 70_000}}, "json_schema", "bytes"),
    ],
)
def test_a_grammar_that_is_refused(fields: dict[str, object], field: str, why: str):
    assert grammar(grammar=GBNF) == Grammar(GrammarKind.GBNF, GBNF)
    with pytest.raises(RequestError, match=why) as told:
        grammar(**fields)
    assert told.value.param == field


# --- tools and a schema


def described(**fields: object) -> dict[str, object]:
    """What a chat's grammar of tools says."""
    [request] = parse_chat({"messages": [MESSAGE], **fields}).requests
    assert request.params.grammar is not None
    assert request.params.grammar.kind is GrammarKind.TOOLS
    return dict(json.loads(request.params.grammar.text))


JSON_OBJECT = {"type": "json_object"}
JSON_SCHEMA = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}


@pytest.mark.parametrize(
    ("fields", "schema"),
    [
        ({"response_format": JSON_SCHEMA}, SCHEMA),
        ({"response_format": JSON_OBJECT}, ANY),
        ({"json_schema": SCHEMA}, SCHEMA),
        ({"response_format": JSON_SCHEMA, "tool_choice": "auto"}, SCHEMA),
        ({"response_format": JSON_SCHEMA, "tool_choice": "required"}, None),
        ({"response_format": {"type": "text"}}, None),
    ],
)
def test_a_schema_binds_the_text_of_a_chat_that_calls_no_tool(
    fields: dict[str, object], schema: object
):
    assert described(tools=[TOOL], **fields).get("schema") == schema


def test_without_a_choice_the_schema_alone_counts():
    assert grammar_of_chat(tools=[TOOL], tool_choice="none", json_schema=SCHEMA) == Grammar(
        GrammarKind.JSON_SCHEMA, json.dumps(SCHEMA)
    )


def grammar_of_chat(**fields: object) -> Grammar | None:
    return parse_chat({"messages": [MESSAGE], **fields}).requests[0].params.grammar


def test_a_schema_beside_tools_is_as_short_as_one_alone():
    with pytest.raises(RequestError, match=r"json_schema has more than 65536 bytes"):
        described(tools=[TOOL], json_schema={"title": "x" * 70_000})


@pytest.mark.parametrize(
    ("strict", "names"), [(True, ["f"]), (False, None), (None, None), ("yes", None)]
)
def test_strict_names_the_tools_whose_schemas_must_be_kept_to(strict: object, names: object):
    function = {"name": "f", "strict": strict}
    assert described(tools=[{"type": "function", "function": function}]).get("strict") == names


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"response_format": JSON_SCHEMA}, "response_format.json_schema.schema"),
        ({"response_format": JSON_OBJECT}, "response_format.schema"),
        ({"json_schema": SCHEMA}, "json_schema"),
        ({"response_format": JSON_SCHEMA, "tools": [TOOL]}, "response_format.json_schema.schema"),
        ({}, ""),
    ],
)
def test_where_the_schema_is(fields: dict[str, object], name: str):
    assert parse_chat({"messages": [MESSAGE], **fields}).schema_field == name


def test_tools_are_as_long_as_a_body_may_be():
    """The prompt's length is what bounds them."""
    tool = {"type": "function", "function": {"name": "f", "description": "x" * 1_500_000}}
    assert len(str(described(tools=[tool]))) > 1_500_000
