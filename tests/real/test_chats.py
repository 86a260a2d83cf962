"""Chats with SmolLM2 by its own template, at verifier and drafter: tools, schemas, many turns."""

import json

import jsonschema
import pytest
import real_models
from harness.tables import rows
from served import Served

pytestmark = [pytest.mark.real, pytest.mark.models]

OPTIONS = ("--ctx", 2048, "--max-sessions", 3)
FRANCE, PARIS, ALICE, NOW, WEATHER, PERSON = rows("""
{"role": "user", "content": "What is the capital of France?"}
{"role": "user", "content": "What is the weather in Paris?"}
{"role": "user", "content": "Describe Alice, who is 30, as JSON."}
{"type": "function", "function": {"name": "now", "description": "The time of day"}}
{"type": "object", "required": ["city", "days", "unit"], "additionalProperties": false,
 "properties": {"city": {"type": "string", "maxLength": 20},
                "days": {"type": "integer", "minimum": 1, "maximum": 9},
                "unit": {"enum": ["C", "F"]}}}
{"type": "object", "required": ["name", "age", "hobbies"], "additionalProperties": false,
 "properties": {"name": {"type": "string"},
                "age": {"type": "integer"},
                "hobbies": {"type": "array", "items": {"type": "string"}, "maxItems": 3}}}
""")
FORECAST = {"name": "weather", "description": "The forecast", "parameters": WEATHER}
TOOLS = [{"type": "function", "function": FORECAST}, NOW]
SUBJECTS = (
    "bread cheese rain snow wind rivers lakes bees cats dogs horses trains ships glass iron salt"
)
PROMPT_END = """<|im_end|>
<|im_start|>user
What is the capital of France?<|im_end|>
<|im_start|>assistant
"""


@pytest.fixture(scope="module")
def pair(shared):
    target = real_models.path("smollm2-f16.gguf")
    verifier = shared.verifier(target, *OPTIONS, engine="llama")
    draft = real_models.path("smollm2-q4_0.gguf")
    return {"verifier": verifier, "drafter": shared.drafter(draft, *OPTIONS, engine="llama")}


@pytest.fixture
def served(role, pair):
    return Served(pair[role])


def test_an_answer(served):
    [text] = served.chat(FRANCE).texts
    assert text == "The capital of France is Paris."


def test_the_prompt_is_the_templates(pair):
    asked = {"messages": [FRANCE]}
    rendered = pair["verifier"].client.get("/apply-template", asked)["prompt"]
    assert rendered.endswith(PROMPT_END)


def test_a_required_call_has_valid_arguments(served):
    answer = served.chat(PARIS, tools=TOOLS, tool_choice="required", max_tokens=200)
    [choice] = answer.choices
    function = choice["message"]["tool_calls"][0]["function"]
    assert function["name"] == "weather"
    jsonschema.validate(json.loads(function["arguments"]), WEATHER)


def test_an_answer_is_of_its_schema(served):
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}
    [text] = served.chat(ALICE, response_format=form, max_tokens=200).texts
    jsonschema.validate(json.loads(text), PERSON)


def test_sixteen_turns_compute_new_tokens_only(served):
    """Each finds the prompt of the turn before it in the prefix cache."""
    messages = [{"role": "system", "content": f"You answer at the {served.daemon.role}."}]
    prompt_before = 0
    for subject in SUBJECTS.split():
        messages.append({"role": "user", "content": f"Tell me something about {subject}."})
        answer = served.chat(*messages, max_tokens=8)
        messages.append({"role": "assistant", "content": answer.texts[0]})
        cached = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert cached >= prompt_before
        prompt_before = answer.usage[0]
