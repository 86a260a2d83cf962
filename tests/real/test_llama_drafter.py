"""SmolLM2 in 16 bits with a drafter in 4 bits, both by llama.cpp.

The text is the target's own, and most drafts are accepted.
"""

import pytest
import real_models
from acceptance import acceptance, drafted_texts
from processes import Daemon, Mesh, body, complete

pytestmark = [pytest.mark.real, pytest.mark.models]

PROMPTS = {
    "function": "def fibonacci(n):\n    ",
    "planets": "The planets of the solar system are Mercury, Venus,",
    "bread": "To make bread you need flour, water,",
}
N = 48
OPTIONS = ("--ctx", 512, "--max-sessions", 2)


@pytest.fixture(scope="module")
def pair(shared: Mesh) -> dict[str, Daemon]:
    target = real_models.path("smollm2-f16.gguf")
    verifier = shared.verifier(target, *OPTIONS, "--reproducible", engine="llama")
    draft = real_models.path("smollm2-q4_0.gguf")
    return {"verifier": verifier, "drafter": shared.drafter(draft, *OPTIONS, engine="llama")}


@pytest.fixture(scope="module")
def alone(pair: dict[str, Daemon]) -> dict[str, list[int]]:
    """The ids that follow each prompt without drafts, by its name."""
    asked = {name: body(prompt, N, draft_n=0) for name, prompt in PROMPTS.items()}
    return {name: complete(pair["verifier"], request).ids for name, request in asked.items()}


@pytest.mark.parametrize("draft_n", ["auto", 4])
@pytest.mark.parametrize("name", PROMPTS)
def test_drafts_change_no_id(pair, alone, name, draft_n):
    found = complete(pair["verifier"], body(PROMPTS[name], N, draft_n=draft_n)).ids
    assert found == alone[name]


def test_the_drafters_clients_get_the_same_ids(pair, alone):
    found = complete(pair["drafter"], body(PROMPTS["function"], N)).ids
    assert found == alone["function"]


def test_a_sampled_text_is_its_seeds(pair):
    sampled = {"temperature": 0.8, "top_p": 0.95, "seed": 7}
    asked = body(PROMPTS["planets"], N) | sampled
    drafted = complete(pair["verifier"], asked | {"draft_n": 4}).ids
    assert drafted == complete(pair["verifier"], asked | {"draft_n": 0}).ids


def test_most_drafts_are_accepted(pair):
    asked = [body(prompt, N, draft_n=4) for prompt in PROMPTS.values()]
    assert acceptance(drafted_texts(pair["verifier"], asked, least=N)) > 0.5
