"""Two drafters for one text at once, as processes."""

import itertools

from processes import Mesh, body, complete, sim_text, until

TOKENS = 120


def test_two_drafters_for_one_text(mesh: Mesh):
    """They are wrong at different places, and rows cost nothing: both chains are verified, the text goes along either,
    and is the target's own. Killed, the second is not missed.

    Whether drafts pay is measured: steps are slow, so that they do on a busy machine too."""
    verifier = mesh.verifier("step_ms=60", "--second-drafter")
    drafters = [mesh.drafter(f"draft_ms=0.5,alpha=0.6,seed={seed}", name=f"drafter{seed}") for seed in (1, 2)]
    prompts = (f"two heads {number}" for number in itertools.count())

    def aside() -> bool:
        prompt = next(prompts)
        assert complete(verifier, body(prompt, TOKENS)).text == sim_text(prompt, TOKENS)
        totals = verifier.stats()["totals"]
        assert totals["side_accepted"] <= totals["side_drafted"] <= totals["drafted"]  # type: ignore[index, operator]
        return totals["side_accepted"] > 0  # type: ignore[index, operator]

    until(aside, "a text goes along a second chain")
    drafters[1].kill()
    prompt = next(prompts)
    assert complete(verifier, body(prompt, TOKENS)).text == sim_text(prompt, TOKENS)
