"""Gemma 3, most of whose layers attend to the last 512 ids only: texts that grow beyond them."""

import pytest
import real_models
from processes import body, complete, drafted
from served import Served

pytestmark = [pytest.mark.real, pytest.mark.models]

WINDOW = 512
N = 40
OPTIONS = ("--ctx", 1024, "--max-sessions", 1)
LOG = ""
for day in range(1, 40):
    counted = f"the keeper of the light counted {day * day} ships and wrote {day % 3} letters"
    LOG += f"Day {day}: {counted}.\n"
PROMPTS = {"crossed": LOG[:1600], "left behind": LOG[:2000]}
"""The text crosses the window's length; or the prompt is longer already."""

TURNS = (
    "{{ bos_token }}{% for message in messages %}"
    "{{ '<start_of_turn>' + message.role + '\\n' + message.content + '<end_of_turn>\\n' }}"
    "{% endfor %}{{ '<start_of_turn>model\\n' }}"
)
"""Gemma's marks of turns: the file has no template, as the model is not trained to chat."""


@pytest.fixture(scope="module")
def verifier(shared):
    template = shared.folder / "turns.jinja"
    template.write_text(TURNS, encoding="utf-8")
    options = (*OPTIONS, "--reproducible", "--chat-template", template)
    return shared.verifier(real_models.path("gemma3-270m-q4_k_m.gguf"), *options, engine="llama")


@pytest.fixture(scope="module")
def alone(verifier):
    """The ids that follow each prompt without drafts, by its name."""
    found = {}
    for name, prompt in PROMPTS.items():
        found[name] = complete(verifier, body(prompt, N, draft_n=0)).ids
    return found


def test_the_texts_are_longer_than_the_window(verifier):
    count = verifier.client.get("/tokenize", {"content": PROMPTS["crossed"]})
    assert WINDOW - N < len(count["tokens"]) < WINDOW


@pytest.mark.parametrize("name", PROMPTS)
def test_rejected_drafts_change_no_id(verifier, beside, alone, name):
    """N-gram lookup proposes the numbers of earlier lines, which are wrong."""
    beside.drafter("", *OPTIONS, engine="ngram")
    found = drafted(verifier, body(PROMPTS[name], N, draft_n=4))
    assert found.ids == alone[name]


def test_a_drafter_with_a_window_changes_no_id(verifier, beside, alone):
    model = real_models.path("gemma3-270m-q4_k_m.gguf")
    beside.drafter(model, *OPTIONS, engine="llama")
    found = drafted(verifier, body(PROMPTS["crossed"], N, draft_n=4))
    assert found.ids == alone["crossed"]


def test_a_chat_is_its_turns_continued(verifier):
    """Template and vocabulary both ask for a mark of the beginning: the prompt has one."""
    served = Served(verifier)
    turns = "<start_of_turn>user\nThe sky is<end_of_turn>\n<start_of_turn>model\n"
    chat = served.chat({"role": "user", "content": "The sky is"})
    continued = served.complete(prompt=turns)
    assert (chat.texts, chat.usage) == (continued.texts, continued.usage)
