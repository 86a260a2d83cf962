"""What the simulated target says alone, computed here: the truth that every text of it is compared with."""

from collections.abc import Sequence

from specmesh.core.events import Span
from specmesh.core.sampling.sampler import Sampler, SamplingParams
from specmesh.engines.sim import END_ID, SimSettings, SimVerifier


def simulated(prompt: Sequence[int], count: int, params: SamplingParams | None = None) -> list[int]:
    """The ids that follow the prompt's, at most `count`."""
    engine, sampler = SimVerifier(SimSettings()), Sampler(params or SamplingParams())
    ids, new = list(prompt), tuple(prompt)
    while len(ids) < len(prompt) + count:
        logits = engine.decode([Span(0, len(ids) - len(new), new, logits=True)])[0]
        assert logits is not None
        token = sampler.after(ids).choose(logits[-1], len(ids))
        if token == END_ID:
            break
        ids.append(token)
        new = (token,)
    return ids[len(prompt) :]
