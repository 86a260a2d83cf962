"""The API as the `anthropic` client uses it, over TCP, at a verifier and at a drafter."""

import json
from functools import partial

import anthropic
import pytest
from harness.ports import free_port
from harness.tables import rows
from meshes import running
from processes import sim_text
from served import CONTEXT
from test_openai import with_template

SYSTEM = "Be brief."
RENDERED = "system: Be brief.\nuser: Hi\nassistant: "
HI = {"role": "user", "content": "Hi"}
WEATHER, NOW, SEARCH = rows("""
{"name": "weather", "description": "The forecast", "input_schema": {
    "type": "object", "required": ["days", "unit"], "additionalProperties": false,
    "properties": {"days": {"type": "integer", "minimum": 1, "maximum": 9},
                   "unit": {"enum": ["C", "F"]}}}}
{"name": "now", "input_schema": {"type": "object", "properties": {}, "additionalProperties": false}}
{"type": "web_search_20250305", "name": "web_search"}
""")
TOOLS = [WEATHER, NOW]
GREEDY = {"model": "any", "extra_body": {"temperature": 0}}


def client_of(port, **keys):
    """Return a client of a daemon's port, without keys of the environment."""
    keys = {"api_key": None, "auth_token": None} | keys
    return anthropic.Anthropic(base_url=f"http://127.0.0.1:{port}", max_retries=0, **keys)


@pytest.fixture
def client(server):
    with client_of(server.port, api_key=server.key or "none") as made:
        yield made


@pytest.fixture
def asking(client):
    """Return `messages.create` for a short greedy answer."""
    return partial(client.messages.create, **GREEDY, messages=[HI], max_tokens=40)


def test_message(asking):
    """Tokens of the prefix cache are no input tokens."""
    message = asking(system=SYSTEM)
    [block] = message.content
    assert (block.type, block.text) == ("text", sim_text(RENDERED, 40))
    assert (message.stop_reason, message.stop_sequence) == ("max_tokens", None)
    usage = message.usage
    assert usage.input_tokens + usage.cache_read_input_tokens == len(RENDERED)
    assert usage.output_tokens == 40
    assert message.id.startswith("msg_")


def test_cached_tokens(asking):
    """A prompt that was read before counts as read from the cache."""
    long = [{"type": "text", "text": "All of it. " * 50}]
    asking(system=long)
    usage = asking(system=long).usage
    assert usage.cache_read_input_tokens > 500
    assert usage.input_tokens < 100


def test_stream(client):
    """The final message of a stream is the whole one."""
    asked = {"messages": [HI], "max_tokens": 40, "system": SYSTEM}
    with client.messages.stream(**GREEDY, **asked) as stream:
        text = "".join(stream.text_stream)
        message = stream.get_final_message()
    assert text == sim_text(RENDERED, 40)
    assert message.content[0].text == text
    assert message.stop_reason == "max_tokens"
    usage = message.usage
    assert usage.input_tokens + usage.cache_read_input_tokens == len(RENDERED)
    assert usage.output_tokens == 40


def test_stop_sequence(asking):
    """The sequence that ended the text is named, and is not in it."""
    whole = sim_text(RENDERED, 100)
    stop = whole[50:53]
    message = asking(system=SYSTEM, max_tokens=100, stop_sequences=["never", stop])
    assert message.content[0].text == whole[: whole.index(stop)]
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", stop)


@pytest.mark.parametrize("streams", [False, True])
def test_tools_in_two_steps(client, streams):
    """A call, then an answer to its result."""
    asked = GREEDY | {"max_tokens": 400, "tools": TOOLS}
    once = {"type": "tool", "name": "weather", "disable_parallel_tool_use": True}
    if streams:
        with client.messages.stream(**asked, messages=[HI], tool_choice=once) as stream:
            message = stream.get_final_message()
    else:
        message = client.messages.create(**asked, messages=[HI], tool_choice=once)
    assert message.stop_reason == "tool_use"
    [call] = message.content
    assert (call.type, call.name) == ("tool_use", "weather")
    assert call.input["unit"] in ("C", "F")
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "Sun", "is_error": False}
    turns = [
        HI,
        {"role": "assistant", "content": message.content},
        {"role": "user", "content": [result]},
    ]
    answer = client.messages.create(**asked, messages=turns, tool_choice={"type": "none"})
    assert [block.type for block in answer.content] == ["text"]


def test_count_tokens(client, asking):
    """The number is that of the prompt, which no session reads for it."""
    count = client.messages.count_tokens(model="any", messages=[HI], system=SYSTEM)
    assert count.input_tokens == len(RENDERED)
    usage = asking(system=SYSTEM).usage
    assert usage.input_tokens + usage.cache_read_input_tokens == count.input_tokens


def test_ignored_features(client):
    """A header names all of them, beta features too."""
    raw = client.beta.messages.with_raw_response.create(
        model="any",
        messages=[HI],
        max_tokens=1,
        tools=[SEARCH],
        metadata={"user_id": "me"},
        betas=["context-1m-2025-08-07"],
        system=[{"type": "text", "text": SYSTEM, "cache_control": {"type": "ephemeral"}}],
    )
    ignored = raw.headers["x-specmesh-ignored"].split(", ")
    named = {"metadata", "cache_control", "tools.web_search_20250305", "context-1m-2025-08-07"}
    assert named <= set(ignored)
    assert raw.headers["request-id"] == raw.headers["x-request-id"]


def test_models(client):
    [model] = client.models.list()
    assert (model.type, model.id) == ("model", client.models.retrieve(model.id).id)


IMAGE = {"type": "image", "source": {"type": "url", "url": "https://page.example/a.png"}}


@pytest.mark.parametrize(
    ("body", "error", "kind", "why"),
    [
        ({"max_tokens": -1}, anthropic.BadRequestError, "invalid_request_error", "max_tokens"),
        (
            {"messages": [{"role": "user", "content": [IMAGE]}]},
            anthropic.BadRequestError,
            "invalid_request_error",
            r"messages\[0\]\.content\[0\] is of type image",
        ),
        (
            {"system": "x" * CONTEXT},
            anthropic.BadRequestError,
            "invalid_request_error",
            f"prompt is too long: \\d+ tokens > {CONTEXT} maximum",
        ),
        (
            {"system": "x" * 2**22},
            anthropic.RequestTooLargeError,
            "request_too_large",
            "exceeds",
        ),
    ],
)
def test_errors(asking, body, error, kind, why):
    with pytest.raises(error, match=why) as refused:
        asking(**body)
    assert refused.value.body["error"]["type"] == kind
    assert refused.value.request_id == refused.value.body["request_id"]


@pytest.mark.parametrize("way", ["api_key", "auth_token"])
def test_keys(served, way):
    """A key goes as x-api-key or as bearer."""
    server = served["verifier"]
    with client_of(server.port, **{way: server.key}) as good:
        assert good.messages.count_tokens(model="any", messages=[HI]).input_tokens
    with (
        client_of(server.port, **{way: "another"}) as bad,
        pytest.raises(anthropic.AuthenticationError) as refused,
    ):
        bad.messages.count_tokens(model="any", messages=[HI])
    assert refused.value.body["error"]["type"] == "authentication_error"


TEMPLATE = """{% for m in messages %}{{ m.role }}: {{ m.content }}
{% endfor %}{% if enable_thinking %}<think>{% else %}<think></think>{% endif %}"""


@pytest.fixture(scope="module")
def thinking():
    """A client of a verifier whose template begins a thought if that is enabled."""
    port = free_port()
    with running() as mesh:
        with_template(mesh, TEMPLATE, "--http", f"127.0.0.1:{port}")
        with client_of(port, api_key="none") as client:
            yield client


@pytest.mark.parametrize(
    ("mode", "kinds"),
    [
        ({"type": "enabled", "budget_tokens": 1024}, ["thinking"]),
        ({"type": "adaptive"}, ["thinking"]),
        ({"type": "disabled"}, ["text"]),
    ],
)
def test_thinking(thinking, mode, kinds):
    asked = GREEDY | {"messages": [HI], "max_tokens": 12, "thinking": mode}
    message = thinking.messages.create(**asked)
    with thinking.messages.stream(**asked) as stream:
        streamed = stream.get_final_message()
    assert [block.type for block in message.content] == kinds
    assert [block.type for block in streamed.content] == kinds


def test_a_thought_goes_back(thinking):
    """The client sends a thought of the turn before with its signature."""
    asked = GREEDY | {"max_tokens": 2, "thinking": {"type": "adaptive"}}
    thought = thinking.messages.create(**asked, messages=[HI]).content
    turns = [HI, {"role": "assistant", "content": thought}, HI]
    assert thinking.messages.create(**asked, messages=turns).usage.output_tokens == 2


def test_a_schema(asking):
    """The text is JSON of the schema."""
    form = {"type": "json_schema", "schema": WEATHER["input_schema"]}
    message = asking(output_config={"format": form}, max_tokens=400)
    assert json.loads(message.content[0].text)["unit"] in ("C", "F")
