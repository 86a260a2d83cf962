"""Chats with SmolLM2 by its own template, at verifier and drafter: tools, schemas, many turns."""

import json
from typing import Any

import jsonschema
import pytest
import real_models
from processes import Daemon, Mesh
from served import Served

pytestmark = [pytest.mark.real, pytest.mark.models]

OPTIONS = ("--ctx", 2048, "--max-sessions", 3)
FRANCE = {"role": "user", "content": "What is the capital of France?"}
PARIS = {"role": "user", "content": "What is the weather in Paris?"}
WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 20},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
        "unit": {"enum": ["C", "F"]},
    },
    "required": ["city", "days", "unit"],
    "additionalProperties": False,
}
TOOLS = [
    {
        "type": "function",
        "function": {"name": "weather", "description": "The forecast", "parameters": WEATHER},
    },
    {"type": "function", "function": {"name": "now", "description": "The time of day"}},
]
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer"},
        "hobbies": {"type": "array", "items": {"type": "string"}, "maxItems": 3},
    },
    "required": ["name", "age", "hobbies"],
    "additionalProperties": False,
}
SUBJECTS = (
    *("bread", "cheese", "rain", "snow", "wind", "rivers", "lakes", "bees"),
    *("cats", "dogs", "horses", "trains", "ships", "glass", "iron", "salt"),
)


@pytest.fixture(scope="module")
def pair(shared: Mesh) -> dict[str, Daemon]:
    target = real_models.path("smollm2-f16.gguf")
    verifier = shared.verifier(target, *OPTIONS, engine="llama")
    draft = real_models.path("smollm2-q4_0.gguf")
    return {"verifier": verifier, "drafter": shared.drafter(draft, *OPTIONS, engine="llama")}


@pytest.fixture
def served(role: str, pair: dict[str, Daemon]) -> Served:
    return Served(pair[role])


def test_an_answer(served: Served):
    [text] = served.chat(FRANCE).texts
    assert text == "The capital of France is Paris."


def test_the_prompt_is_the_templates(pair: dict[str, Daemon]):
    asked = {"messages": [FRANCE]}
    rendered = pair["verifier"].client.get("/apply-template", asked)["prompt"]
    assert str(rendered).endswith(
        "<|im_end|>\n<|im_start|>user\nWhat is the capital of France?<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_a_required_call_has_valid_arguments(served: Served):
    asked: dict[str, Any] = {"tools": TOOLS, "tool_choice": "required", "max_tokens": 200}
    [choice] = served.chat(PARIS, **asked).choices
    function = choice["message"]["tool_calls"][0]["function"]
    assert function["name"] == "weather"
    jsonschema.validate(json.loads(function["arguments"]), WEATHER)


def test_an_answer_is_of_its_schema(served: Served):
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}
    said = {"role": "user", "content": "Describe Alice, who is 30, as JSON."}
    [text] = served.chat(said, response_format=form, max_tokens=200).texts
    jsonschema.validate(json.loads(text), PERSON)


def test_sixteen_turns_compute_new_tokens_only(served: Served):
    """Each finds the prompt of the turn before it in the prefix cache."""
    messages = [{"role": "system", "content": f"You answer at the {served.daemon.role}."}]
    prompts: list[int] = []
    cached: list[int] = []
    for subject in SUBJECTS:
        messages.append({"role": "user", "content": f"Tell me something about {subject}."})
        answer = served.chat(*messages, max_tokens=16)
        messages.append({"role": "assistant", "content": answer.texts[0]})
        prompts.append(answer.usage[0])
        cached.append(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])
    computed_again = [turn for turn in range(1, len(SUBJECTS)) if cached[turn] < prompts[turn - 1]]
    assert computed_again == []
