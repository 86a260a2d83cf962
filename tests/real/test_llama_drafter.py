"""SmolLM2 in 16 bits with a drafter in 4 bits, both by llama.cpp.

The text is the target's own, and most drafts are accepted.
"""

import pytest
import real_models
from acceptance import acceptance, drafted_texts
from processes import body, complete

pytestmark = [pytest.mark.real, pytest.mark.models]

PROMPTS = {
    "function": "def fibonacci(n):\n    ",
    "planets": "The planets of the solar system are Mercury, Venus,",
    "bread": "To make bread you need flour, water,",
}
N = 32
OPTIONS = ("--ctx", 512, "--max-sessions", 2)


@pytest.fixture(scope="module")
def pair(shared):
    target = real_models.path("smollm2-f16.gguf")
    verifier = shared.verifier(target, *OPTIONS, "--reproducible", engine="llama")
    draft = real_models.path("smollm2-q4_0.gguf")
    drafter = shared.drafter(draft, *OPTIONS, engine="llama")
    return {"verifier": verifier, "drafter": drafter}


@pytest.fixture(scope="module")
def alone(pair):
    """Return the ids that follow each prompt without drafts, by its name."""
    found = {}
    for name, prompt in PROMPTS.items():
        asked = body(prompt, N, draft_n=0)
        found[name] = complete(pair["verifier"], asked).ids
    return found


@pytest.mark.parametrize("draft_n", ["auto", 4])
@pytest.mark.parametrize("name", PROMPTS)
def test_drafts_change_no_id(pair, alone, name, draft_n):
    asked = body(PROMPTS[name], N, draft_n=draft_n)
    found = complete(pair["verifier"], asked)
    assert found.ids == alone[name]


def test_the_drafters_clients_get_the_same_ids(pair, alone):
    asked = body(PROMPTS["function"], N)
    found = complete(pair["drafter"], asked)
    assert found.ids == alone["function"]


def test_a_sampled_text_is_its_seeds(pair):
    sampled = {"temperature": 0.8, "top_p": 0.95, "seed": 7}
    asked = body(PROMPTS["planets"], N) | sampled
    drafted = complete(pair["verifier"], asked | {"draft_n": 4})
    undrafted = complete(pair["verifier"], asked | {"draft_n": 0})
    assert drafted.ids == undrafted.ids


def test_most_drafts_are_accepted(pair):
    only_the_drafters = {"draft_n": 4, "draft_sources": ["remote"]}
    asked = [body(prompt, N, **only_the_drafters) for prompt in PROMPTS.values()]
    texts = drafted_texts(pair["verifier"], asked, least=N)
    assert acceptance(texts) > 0.5
