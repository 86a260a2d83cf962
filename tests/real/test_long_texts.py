"""SmolLM2 with a drafter that reads windows of its texts: drafted at every length, the same ids."""

from pathlib import Path

import pytest
import real_models
from acceptance import acceptance, drafted_texts
from processes import Daemon, Mesh, body, complete

pytestmark = [pytest.mark.real, pytest.mark.models]

N = 48
SLOW = [pytest.param(length, marks=pytest.mark.slow) for length in (3000, 6000, 7500)]
"""The target reads these for up to a minute: `pytest -m 'real and slow' tests/real`."""

WINDOW = 256
DOCUMENTS = ("ARCHITECTURE.md", "docs/usage.md", "docs/operations.md", "README.md")


@pytest.fixture(scope="module")
def verifier(shared: Mesh) -> Daemon:
    target = real_models.path("smollm2-f16.gguf")
    options = ("--ctx", 8192, "--max-sessions", 1, "--reproducible")
    return shared.verifier(target, *options, engine="llama")


@pytest.fixture(scope="module")
def text(verifier: Daemon) -> list[int]:
    root = Path(__file__).parents[2]
    content = "".join([(root / name).read_text(encoding="utf-8") for name in DOCUMENTS])
    return verifier.client.get("/tokenize", {"content": content})["tokens"]


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("length", [1000, *SLOW])
def test_drafts_at_every_length_change_no_id(verifier, beside, text, length):
    drafter = beside.drafter(real_models.path("smollm2-q4_0.gguf"), engine="llama")
    # Steps of one width compute a cached beginning as any other.
    asked = body(text[:length], N, draft_n=4, cache_prompt=True)
    [drafted, *_] = streams = drafted_texts(verifier, [asked], least=N // 4)
    assert drafted.ids == complete(verifier, asked | {"draft_n": 0}).ids
    assert acceptance(streams) > 0.5
    assert drafter.stats()["totals"]["read"] < 4096 + 1000


@pytest.mark.timeout(1800)
def test_no_round_waits_while_windows_take_over(verifier, beside, text):
    draft = real_models.path("smollm2-q4_0.gguf")
    drafter = beside.drafter(draft, "--window", WINDOW, engine="llama")
    complete(verifier, body(text[:1000], WINDOW + N, draft_n=4, cache_prompt=True))
    window = drafter.stats()["window"]
    assert window["takeovers"] > 0
    assert window["held_up"] == 0
