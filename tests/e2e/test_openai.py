"""The API as the `openai` client uses it, over TCP, at a verifier and at a drafter; calls of tools, in streams too."""

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest
from processes import Daemon, Mesh, command, generate, sim_text, until
from served import Served, serve

RENDERED = "system: Be brief.\nuser: Hi\nassistant: "


@pytest.fixture
def client(server: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=f"{server.url}/v1", api_key=server.key or "none", max_retries=0
    ) as made:
        yield made


def test_completion(client: openai.OpenAI):
    answer = client.completions.create(model="any", prompt="once", max_tokens=40, temperature=0)
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == (
        sim_text("once", 40),
        "length",
    )
    usage = answer.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (4, 40, 44)
    report = answer.model_extra["specmesh"]["report"]
    assert usage.completion_tokens_details.accepted_prediction_tokens == report["accepted"]
    assert (
        usage.completion_tokens_details.rejected_prediction_tokens
        == report["drafted"] - report["accepted"]
    )


def test_request_ids(client: openai.OpenAI, server: Served):
    """The answer's id is in its headers; of it, beside the session's, the daemon's log has the beginning only."""
    answer = client.completions.with_raw_response.create(model="any", prompt="once", max_tokens=2)
    name = answer.parse().id
    assert answer.headers["x-request-id"] == name
    assert name[:-20] in [event.get("request") for event in server.daemon.events("session_opened")]
    assert name not in server.daemon.text()


def test_commands(server: Served):
    """`specmesh chat` with what is piped in, through the template; `specmesh generate --stop`."""
    where = ("--socket", server.daemon.socket, "--temperature", 0)
    done = command("chat", "--system", "Be brief.", *where, "--max-tokens", 20, stdin="Hi")
    assert (done.code, done.out) == (0, sim_text(RENDERED, 20) + "\n")
    whole = sim_text("once", 100)
    done = command(
        "generate", "once", *where, "--max-tokens", 100, "--stop", whole[50:53], "--json"
    )
    assert (done.json["text"], done.json["finish_reason"]) == (
        whole[: whole.index(whole[50:53])],
        "stop",
    )


def test_more_than_there_are_sessions(mesh: Mesh):
    """More clients than a verifier takes, of one drafter too, wait without asking again, each for its own text."""
    servers = serve(mesh, "step_ms=1,n_ctx=9000")
    for role, count in (("verifier", 40), ("drafter", 40), ("drafter", 200)):

        def ask(number: int, server: Served = servers[role]) -> bool:
            return server.complete(prompt=f"Number {number}", max_tokens=30).texts == [
                sim_text(f"Number {number}", 30)
            ]

        with ThreadPoolExecutor(count) as clients:
            assert all(clients.map(ask, range(count)))


WEATHER = {
    "type": "object",
    "properties": {
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
        "unit": {"enum": ["C", "F"]},
    },
    "required": ["days", "unit"],
    "additionalProperties": False,
}
TOOLS = [
    {
        "type": "function",
        "function": {"name": "weather", "description": "The forecast", "parameters": WEATHER},
    },
    {"type": "function", "function": {"name": "now"}},
]
ASKED = {"model": "any", "tools": TOOLS, "max_tokens": 400, "temperature": 0}
CHAT = [{"role": "user", "content": "How will it be?"}]


@pytest.mark.parametrize("temperature", [0, 1])
def test_streams_say_the_same(client: openai.OpenAI, temperature: int):
    """The name first, then the arguments; the same with drafts and without, of which the grammar makes many."""
    asked = ASKED | {
        "messages": CHAT,
        "tool_choice": "required",
        "temperature": temperature,
        "seed": 7,
    }
    asked["parallel_tool_calls"] = False
    whole = client.chat.completions.create(**asked, extra_body={"draft_n": 0})
    calls: dict[int, list[str]] = {}
    for chunk in client.chat.completions.create(**asked, stream=True, extra_body={"draft_n": 4}):
        for delta in chunk.choices[0].delta.tool_calls or []:
            if delta.index not in calls:
                assert delta.id
                calls[delta.index] = [delta.function.name, ""]
            calls[delta.index][1] += delta.function.arguments or ""
        finish = chunk.choices[0].finish_reason
    assert finish == "tool_calls"
    expected = [
        [one.function.name, one.function.arguments] for one in whole.choices[0].message.tool_calls
    ]
    assert list(calls.values()) == expected
    assert chunk.model_extra["specmesh"]["report"]["by_source"]["grammar"]["accepted"] > 10


def test_free_text_may_be_all(client: openai.OpenAI):
    """A model that begins no call says what it says without tools; with `none` they are not even shown."""
    plain = client.chat.completions.create(
        **ASKED | {"max_tokens": 30, "messages": CHAT, "tool_choice": "none"}
    )
    bare = client.chat.completions.create(model="any", messages=CHAT, max_tokens=30, temperature=0)
    assert plain.choices[0].message.content == bare.choices[0].message.content
    free = client.chat.completions.create(**ASKED | {"max_tokens": 30, "messages": CHAT})
    assert (len(free.choices[0].message.content), free.choices[0].message.tool_calls) == (30, None)


@pytest.mark.parametrize("arguments", ["[" * 1050, "null", "[1]", '{"a": NaN}', "no JSON"])
def test_odd_calls_of_history(client: openai.OpenAI, arguments: str):
    """What some model wrote once is no reason to refuse the rest."""
    call = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": arguments}}
    chat = [*CHAT, {"role": "assistant", "content": None, "tool_calls": [call]}]
    chat.append({"role": "tool", "tool_call_id": "1", "content": "mild"})
    answer = client.chat.completions.create(**ASKED | {"max_tokens": 5, "messages": chat})
    assert len(answer.choices[0].message.content) == 5


ODD = {
    "type": "object",
    "properties": {
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
        "by_hour": {"type": "object", "propertyNames": {"not": {"const": "x"}}},
        "tags": {"type": "array", "items": {"type": "string"}, "uniqueItems": True},
        "place": {"type": "string", "pattern": "^(?!sea)"},
    },
    "required": ["days"],
}
ODD_TOOL = {"type": "function", "function": {"name": "forecast", "parameters": ODD}}


def test_a_tools_schema_refuses_nothing(client: openai.OpenAI):
    """What can be kept to is; with `strict` it is all or a refusal that names the tool."""
    asked = ASKED | {"tools": [ODD_TOOL], "messages": CHAT, "max_tokens": 120}
    answer = client.chat.completions.create(**asked, tool_choice="required", seed=3)
    [call, *_] = answer.choices[0].message.tool_calls
    assert re.match(r'\{"days": [1-9][,}]', call.function.arguments)
    strict = {"type": "function", "function": ODD_TOOL["function"] | {"strict": True}}
    with pytest.raises(openai.BadRequestError, match=r"forecast has strict.*properties\.by_hour"):
        client.chat.completions.create(**asked | {"tools": [*TOOLS, strict]})


MOOD = {
    "type": "object",
    "properties": {"mood": {"enum": ["good", "bad"]}},
    "required": ["mood"],
}


@pytest.mark.parametrize("seed", range(4))
def test_with_a_schema_a_text_is_calls_or_json(client: openai.OpenAI, seed: int):
    form = {"type": "json_schema", "json_schema": {"name": "mood", "schema": MOOD}}
    asked = ASKED | {"messages": CHAT, "temperature": 1.5, "seed": seed}
    message = client.chat.completions.create(**asked, response_format=form).choices[0].message
    calls = [json.loads(one.function.arguments) for one in message.tool_calls or []]
    assert calls or set(json.loads(message.content)) == {"mood"}


def test_a_response_with_tools_and_a_schema(client: openai.OpenAI):
    flat = [{"type": "function", **TOOLS[0]["function"]}]
    form = {"format": {"type": "json_schema", "name": "mood", "schema": MOOD}}
    asked = {"model": "any", "tools": flat, "text": form, "temperature": 0}
    answer = client.responses.create(input="How will it be?", **asked)
    assert answer.output[0].type in ("function_call", "message")
    assert set(json.loads(answer.output_text or '{"mood": 0}')) == {"mood"}


def test_a_schemas_fault_is_told_by_its_field_and_place(client: openai.OpenAI):
    schema = {"type": "object", "properties": {"a": {"type": "array", "items": {"not": MOOD}}}}
    form = {"type": "json_schema", "json_schema": {"name": "mood", "schema": schema}}
    place = r"response_format\.json_schema\.schema: properties\.a\.items: .*not"
    for tools in ({}, {"tools": TOOLS}):
        with pytest.raises(openai.BadRequestError, match=place):
            client.chat.completions.create(
                model="any", messages=CHAT, response_format=form, **tools
            )
    text = {"format": {"type": "json_schema", "name": "mood", "schema": schema}}
    with pytest.raises(openai.BadRequestError, match=r"text\.format\.schema: properties\.a\.items"):
        client.responses.create(model="any", input="Hi", text=text)


def test_tools_are_bounded_by_the_context_alone(client: openai.OpenAI):
    """Of both numbers it says which."""
    many = [
        {"type": "function", "function": {"name": f"f{number}", "description": "x" * 1000}}
        for number in range(300)
    ]
    with pytest.raises(
        openai.BadRequestError, match="context length is 8000 tokens, and your prompt has"
    ) as told:
        client.chat.completions.create(**ASKED | {"tools": many, "messages": CHAT})
    assert told.value.code == "context_length_exceeded"


def test_responses_call_too(client: openai.OpenAI):
    """`/v1/responses`, whole and streamed: a call, what came of it, and the next one."""
    flat = [{"type": "function", **TOOLS[0]["function"]}]
    asked = {
        "model": "any",
        "tools": flat,
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "temperature": 0,
    }
    first = client.responses.create(input="How will it be?", **asked)
    [call] = first.output
    assert (call.type, call.name, set(json.loads(call.arguments))) == (
        "function_call",
        "weather",
        {"days", "unit"},
    )
    told = {"type": "function_call_output", "call_id": call.call_id, "output": "mild"}
    with client.responses.stream(input=[*first.output, told], **asked) as stream:
        pieces = [
            event.delta
            for event in stream
            if event.type == "response.function_call_arguments.delta"
        ]
        [again] = stream.get_final_response().output
    assert "".join(pieces) == again.arguments


TEMPLATE = """{% for m in messages %}{{ m.role }}: {{ m.content or "" }}{% for c in m.tool_calls or [] %}<tool_call>
{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}
</tool_call>{% endfor %}
{% endfor %}{% for t in tools or [] %}{{ t.function.name }} {% endfor %}"""


def with_template(mesh: Mesh, template: str, *options: str) -> Daemon:
    path = mesh.folder / "template.jinja"
    path.write_text(template)
    small = ("--threads", 1, "--ctx", 512, "--reproducible", "--chat-template", path)
    return mesh.verifier("bundled", *small, *options, engine="llama")


@pytest.mark.parametrize(
    ("options", "before", "earlier"),
    [
        ((), "<tool_call>", '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'),
        (("--tool-format", "mistral_args"), "[TOOL_", "[TOOL_CALLS]now[ARGS]{}"),
    ],
)
def test_in_the_form_of_the_models_template(
    mesh: Mesh, options: tuple[str, ...], before: str, earlier: str
):
    """Or in another one, by an option; what was called before is shown to the model in the same form."""
    verifier = with_template(mesh, TEMPLATE, *options)
    body = {"messages": CHAT, "tools": TOOLS[1:], "tool_choice": "required", "temperature": 0}
    body |= {"parallel_tool_calls": False}
    answer = verifier.client.get("/v1/chat/completions", body)
    message = answer["choices"][0]["message"]
    assert [call["function"] for call in message["tool_calls"]] == [
        {"name": "now", "arguments": "{}"}
    ]
    assert verifier.client.get("/detokenize", {"tokens": answer["specmesh"]["token_ids"]})[
        "content"
    ].startswith(before)
    chat = [
        *CHAT,
        message,
        {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "noon"},
    ]
    shown = verifier.client.get("/apply-template", {"messages": chat, "tools": TOOLS})["prompt"]
    assert earlier in shown
    assert shown.endswith("tool: noonweather now ")


TURNS = """{% for m in messages %}{% if (m.role == 'user') != (loop.index0 is even) %}
{{- raise_exception('roles must alternate') }}{% endif %}{{ m.role }}: {{ m.content }}
{% endfor %}"""


@pytest.mark.parametrize("role", ["verifier", "drafter"])
def test_messages_that_a_template_refuses_are_joined(mesh: Mesh, role: str):
    """And a header names their roles, at either daemon."""
    verifier = with_template(mesh, TURNS)
    daemon = verifier
    if role == "drafter":
        daemon = mesh.drafter(engine="ngram")
        until(lambda: verifier.has(daemon), "the drafter is attached")
    chat = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"role": "user", "content": "Who are you?"},
    ]
    answer = Served(daemon).chat(*chat, max_tokens=1)
    assert (answer.status, answer.headers["x-specmesh-merged"]) == (200, "system, user")
    prompt = answer.json()["specmesh"]["prompt_token_ids"]
    shown = verifier.client.get("/detokenize", {"tokens": prompt})["content"]
    assert shown == "user: Be brief.\n\nHi\n\nWho are you?\n"


def test_thoughts_are_apart(mesh: Mesh):
    """One that the template begins, where it is asked to; `reasoning_format` none leaves it in the text."""
    verifier = with_template(mesh, TEMPLATE + "{% if think %}<think>{% endif %}")
    body = {
        "messages": CHAT,
        "chat_template_kwargs": {"think": True},
        "max_tokens": 12,
        "temperature": 0,
    }
    [apart] = verifier.client.get("/v1/chat/completions", body)["choices"]
    assert (apart["message"]["content"], apart["finish_reason"]) == ("", "length")
    [joined] = verifier.client.get("/v1/chat/completions", body | {"reasoning_format": "none"})[
        "choices"
    ]
    assert joined["message"]["content"].strip() == apart["message"]["reasoning_content"] != ""


def test_a_schema_binds_what_follows_the_thought(mesh: Mesh):
    """One that the template has begun, or ended."""
    thought = "{% if think %}<think>{% else %}<think></think>{% endif %}"
    verifier = with_template(mesh, TEMPLATE + thought)
    form = {"type": "json_schema", "json_schema": {"name": "mood", "schema": MOOD}}
    body = {"messages": CHAT, "max_tokens": 40, "temperature": 0, "response_format": form}
    thinks = body | {"chat_template_kwargs": {"think": True}}
    [inside] = verifier.client.get("/v1/chat/completions", thinks)["choices"]
    assert inside["message"]["content"] == ""
    assert len(inside["message"]["reasoning_content"]) > 10
    [over] = verifier.client.get("/v1/chat/completions", body)["choices"]
    assert over["message"]["content"].startswith('{"mood": "')


def test_what_of_a_tools_schema_is_ignored_is_logged_once(mesh: Mesh):
    verifier = with_template(mesh, TEMPLATE)
    for tools in ([ODD_TOOL], [ODD_TOOL, TOOLS[1]], [ODD_TOOL]):
        body = {"messages": CHAT, "tools": tools, "max_tokens": 1}
        verifier.client.get("/v1/chat/completions", body)
    [line] = verifier.events("tool_schema_ignored")
    assert line["tool"] == "forecast"
    assert any("propertyNames" in one for one in line["ignored"])


@pytest.mark.models
@pytest.mark.fault("E6.71")
@pytest.mark.parametrize(
    ("template", "status", "why"),
    [
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", 400, "chat template refuses"),
        (
            "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
            500,
            "more than 3 s",
        ),
    ],
    ids=["reaches out", "without end"],
)
def test_bad_template(mesh: Mesh, template: str, status: int, why: str):
    """The request is refused, at the latest after the 3 seconds that a template may take; the daemon serves."""
    verifier = with_template(mesh, template)
    with ThreadPoolExecutor() as clients:
        chat = clients.submit(Served(verifier).chat)
        assert generate(verifier, "hello", "--max-tokens", 3).code == 0
    until(lambda: verifier.live() == 0, "no session is left")
    assert (chat.result().status, why in str(chat.result().error["message"])) == (status, True)
