"""The API as the `openai` client uses it, over TCP, at a verifier and at a drafter."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import openai
import pytest
from harness.tables import rows
from meshes import running
from processes import command, generate, sim_text, until, writes
from served import Served

RENDERED = "system: Be brief.\nuser: Hi\nassistant: "
CHAT = [{"role": "user", "content": "How will it be?"}]
WEATHER, NOW, ODD_TOOL = rows("""
{"type": "function", "function": {"name": "weather", "description": "The forecast", "parameters": {
    "type": "object", "required": ["days", "unit"], "additionalProperties": false,
    "properties": {"days": {"type": "integer", "minimum": 1, "maximum": 9},
                   "unit": {"enum": ["C", "F"]}}}}}
{"type": "function", "function": {"name": "now"}}
{"type": "function", "function": {"name": "forecast", "parameters": {
    "type": "object", "required": ["days"],
    "properties": {"days": {"type": "integer", "minimum": 1, "maximum": 9},
                   "by_hour": {"type": "object", "propertyNames": {"not": {"const": "x"}}},
                   "tags": {"type": "array", "items": {"type": "string"}, "uniqueItems": true},
                   "place": {"type": "string", "pattern": "^(?!sea)"}}}}}
""")
MOOD, DEEP_FAULT, BUSY_CHAT = rows("""
{"type": "object", "properties": {"mood": {"enum": ["good", "bad"]}}, "required": ["mood"]}
{"type": "object", "properties": {"a": {"type": "array", "items": {"not": {"const": 1}}}}}
[{"role": "developer", "content": "Be brief."},
 {"role": "user", "content": "Hi"},
 {"role": "user", "content": "Who are you?"}]
""")
TOOLS = [WEATHER, NOW]


def schema_format(schema):
    return {"type": "json_schema", "json_schema": {"name": "mood", "schema": schema}}


@pytest.fixture
def client(server):
    key = server.key or "none"
    with openai.OpenAI(
        base_url=f"http://127.0.0.1:{server.port}/v1", api_key=key, max_retries=0
    ) as made:
        yield made


class Asking:
    """An OpenAI client with this module's defaults: a chat with two tools, greedy."""

    def __init__(self, client):
        defaults = {"model": "any", "temperature": 0}
        self.bare = partial(client.chat.completions.create, **defaults, messages=CHAT)
        self.chat = partial(self.bare, tools=TOOLS, max_tokens=400)
        self.respond = partial(client.responses.create, **defaults, input="How will it be?")


@pytest.fixture
def asking(client):
    return Asking(client)


def test_completion(client):
    answer = client.completions.create(model="any", prompt="once", max_tokens=40, temperature=0)
    [choice] = answer.choices
    assert (choice.text, choice.finish_reason) == (sim_text("once", 40), "length")
    usage = answer.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (4, 40, 44)
    details = usage.completion_tokens_details
    assert details.accepted_prediction_tokens == 0
    assert details.rejected_prediction_tokens == 0


def test_a_prediction(client):
    """The first half is right.

    The client has chosen a number of drafts: on a busy machine one a step may seem to be best.
    """
    expected = sim_text(f"user: {CHAT[0]['content']}\nassistant: ", 100)
    answer = client.chat.completions.create(
        model="any",
        messages=CHAT,
        max_tokens=100,
        temperature=0,
        prediction={"type": "content", "content": expected[:50] + "another end"},
        extra_body={"draft_n": 8},
    )
    [choice] = answer.choices
    assert choice.message.content == expected
    details = answer.usage.completion_tokens_details
    by_source = answer.model_extra["specmesh"]["report"]["by_source"]["prediction"]
    assert details.accepted_prediction_tokens == by_source["accepted"] > 25
    drafted = details.accepted_prediction_tokens + details.rejected_prediction_tokens
    assert drafted == by_source["drafted"]


def test_request_ids(client, server):
    """The answer's id is in its headers; the daemon's log has only its beginning."""
    answer = client.completions.with_raw_response.create(model="any", prompt="once", max_tokens=2)
    name = answer.parse().id
    assert answer.headers["x-request-id"] == name
    # The answer may come before the line.
    until(lambda: f'"request": "{name[:-20]}"' in server.daemon.text(), "the log has the request")
    assert name not in server.daemon.text()


def test_chat_of_a_pipe(server):
    """`specmesh chat` renders its standard input by the template."""
    options = {"socket": server.daemon.socket, "max_tokens": 20, "system": "Be brief."}
    done = command("chat", temperature=0, stdin="Hi", **options)
    assert (done.code, done.out) == (0, sim_text(RENDERED, 20) + "\n")


def test_generate_with_a_stop_string(server):
    whole = sim_text("once", 100)
    stop = whole[50:53]
    found = generate(server.daemon, "once", max_tokens=100, stop=stop, json=True).json
    assert found["text"] == whole[: whole.index(stop)]
    assert found["finish_reason"] == "stop"


def test_more_than_there_are_sessions(mesh):
    """Clients beyond a verifier's sessions wait, each for its own text."""
    verifier, drafter = mesh.verifier("step_ms=1"), mesh.drafter()
    for daemon, count in ((verifier, 40), (drafter, 40), (drafter, 200)):
        prompts = [f"Number {number}" for number in range(count)]
        with ThreadPoolExecutor(count) as clients:
            list(clients.map(partial(writes, daemon, max_tokens=30), prompts))


@pytest.mark.parametrize("temperature", [0, 1])
def test_streams_say_the_same(asking, temperature):
    """The name comes first; the calls are the same with drafts, of which the grammar makes many."""
    sampling = {"temperature": temperature, "seed": 7, "parallel_tool_calls": False}
    asked = partial(asking.chat, tool_choice="required", **sampling)
    parts = []
    for chunk in asked(stream=True, extra_body={"draft_n": 4}):
        parts += chunk.choices[0].delta.tool_calls or []
    assert chunk.choices[0].finish_reason == "tool_calls"
    assert chunk.model_extra["specmesh"]["report"]["by_source"]["grammar"]["accepted"] > 10
    [call] = asked(extra_body={"draft_n": 0}).choices[0].message.tool_calls
    assert parts[0].id
    assert parts[0].function.name == call.function.name
    assert "".join(part.function.arguments or "" for part in parts) == call.function.arguments


def test_a_choice_of_none_hides_the_tools(asking):
    hidden = asking.chat(max_tokens=30, tool_choice="none")
    bare = asking.bare(max_tokens=30)
    assert hidden.choices[0].message.content == bare.choices[0].message.content


@pytest.mark.parametrize("tools", [[], TOOLS])
def test_a_schemas_fault_is_told_by_its_field_and_place(asking, tools):
    place = r"response_format\.json_schema\.schema: properties\.a\.items: .*not"
    with pytest.raises(openai.BadRequestError, match=place):
        asking.chat(tools=tools, response_format=schema_format(DEEP_FAULT))


def test_the_place_of_a_responses_schema(asking):
    text = {"format": {"type": "json_schema", "name": "mood", "schema": DEEP_FAULT}}
    with pytest.raises(openai.BadRequestError, match=r"text\.format\.schema: properties\.a\.items"):
        asking.respond(text=text)


TEMPLATE = """{% for m in messages %}{{ m.role }}: {{ m.content or "" }}
{%- for c in m.tool_calls or [] %}<tool_call>
{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}
</tool_call>{% endfor %}
{% endfor %}{% for t in tools or [] %}{{ t.function.name }} {% endfor %}"""


def with_template(mesh, template, *options):
    path = mesh.folder / "template.jinja"
    path.write_text(template)
    small = ("--threads", 1, "--ctx", 512, "--reproducible", "--chat-template", path)
    return mesh.verifier("bundled", *small, *options, engine="llama")


def chat(daemon, **fields):
    body = {"messages": CHAT, "temperature": 0} | fields
    return daemon.client.get("/v1/chat/completions", body)


def detokenized(daemon, ids):
    return str(daemon.client.get("/detokenize", {"tokens": ids})["content"])


@pytest.mark.parametrize(
    ("options", "before", "earlier"),
    [
        ((), "<tool_call>", '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'),
        (("--tool-format", "mistral_args"), "[TOOL_", "[TOOL_CALLS]now[ARGS]{}"),
    ],
)
def test_in_the_form_of_the_models_template(mesh, options, before, earlier):
    """An option chooses another form; the model sees earlier calls in the same one."""
    verifier = with_template(mesh, TEMPLATE, *options)
    once = {"tool_choice": "required", "parallel_tool_calls": False}
    answer = chat(verifier, tools=[NOW], **once)
    message = answer["choices"][0]["message"]
    [call] = message["tool_calls"]
    assert call["function"] == {"name": "now", "arguments": "{}"}
    assert detokenized(verifier, answer["specmesh"]["token_ids"]).startswith(before)
    result = {"role": "tool", "tool_call_id": call["id"], "content": "noon"}
    turns = {"messages": [*CHAT, message, result], "tools": TOOLS}
    prompt = verifier.client.get("/apply-template", turns)["prompt"]
    assert earlier in prompt
    assert prompt.endswith("tool: noonweather now ")


TURNS = """{% for m in messages %}{% if (m.role == 'user') != (loop.index0 is even) %}
{{- raise_exception('roles must alternate') }}{% endif %}{{ m.role }}: {{ m.content }}
{% endfor %}"""


def test_messages_that_a_template_refuses_are_joined(mesh):
    """A header names their roles, at either daemon."""
    verifier = with_template(mesh, TURNS)
    for daemon in (verifier, mesh.drafter(engine="ngram")):
        answer = Served(daemon).chat(*BUSY_CHAT, max_tokens=1)
        assert (answer.status, answer.headers["x-specmesh-merged"]) == (200, "system, user")
        prompt = answer.json()["specmesh"]["prompt_token_ids"]
        assert detokenized(verifier, prompt) == "user: Be brief.\n\nHi\n\nWho are you?\n"


THOUGHT = "{% if think %}<think>{% else %}<think></think>{% endif %}"
THINKS = {"chat_template_kwargs": {"think": True}}


@pytest.fixture(scope="module")
def thinking():
    """A verifier whose template begins a thought, if it is asked to, or ends it."""
    with running() as mesh:
        yield with_template(mesh, TEMPLATE + THOUGHT)


def test_thoughts_are_apart(thinking):
    """`reasoning_format` none leaves a thought, which the template begins, in the text."""
    [apart] = chat(thinking, **THINKS, max_tokens=12)["choices"]
    [joined] = chat(thinking, **THINKS, max_tokens=12, reasoning_format="none")["choices"]
    message = apart["message"]
    assert (message["content"], apart["finish_reason"]) == ("", "length")
    assert joined["message"]["content"].strip() == message["reasoning_content"] != ""


def test_a_schema_binds_what_follows_the_thought(thinking):
    """The template has begun the thought, or ended it."""
    asked = {"max_tokens": 40, "response_format": schema_format(MOOD)}
    [inside] = chat(thinking, **asked, **THINKS)["choices"]
    assert inside["message"]["content"] == ""
    assert len(inside["message"]["reasoning_content"]) > 10
    [over] = chat(thinking, **asked)["choices"]
    assert over["message"]["content"].startswith('{"mood": "')


def test_what_of_a_tools_schema_is_ignored_is_logged_once(thinking):
    for tools in ([ODD_TOOL], [ODD_TOOL, NOW], [ODD_TOOL]):
        chat(thinking, tools=tools, max_tokens=1)
    line = thinking.event("tool_schema_ignored")
    assert line["tool"] == "forecast"
    assert "propertyNames" in str(line["ignored"])


REACHES_OUT = "{{ ''.__class__.__mro__[1].__subclasses__() }}"
LOOPS = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"


@pytest.mark.models
@pytest.mark.fault("E6.71")
@pytest.mark.parametrize(
    ("template", "status", "why"),
    [(REACHES_OUT, 400, "chat template refuses"), (LOOPS, 500, "more than 3 s")],
    ids=["reaches out", "without end"],
)
def test_bad_template(mesh, template, status, why):
    """The request is refused after the 3 s that a template may take; the daemon serves others."""
    verifier = with_template(mesh, template)
    with ThreadPoolExecutor() as clients:
        refused = clients.submit(Served(verifier).chat)
        assert generate(verifier, "hello", max_tokens=3).code == 0
    verifier.idle()
    assert refused.result().status == status
    assert why in str(refused.result().error["message"])
