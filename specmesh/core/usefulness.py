"""How many tokens per second a drafter would bring: a closed form, for choosing among drafters.

The step policy (specmesh.core.policy) takes milliseconds to solve, once for each session and drafter. This takes
microseconds, and looks at two ways of drafting only, with each number of drafts: after a rejection, wait for them or
say tokens alone meanwhile; then step whenever so many are here.
"""

from specmesh.core.policy import PolicyInputs

CERTAIN = 0.999
"""No chain of drafts stands more surely than this."""

ASK, KEEP = 1.03, 1.01
"""Times the rate of the first drafter alone that two must promise, before the second is asked and while it is."""

MOST_ASIDE = 3
"""Rows of a second chain that are looked at."""


def usefulness(inputs: PolicyInputs, rescue: float = 0.0) -> float:
    """Expected tokens per second with such a drafter, at least those of the target alone.

    rescue: how often drafts of a second one go on where those of the first were rejected, which then restarts without
    anybody's waiting; rows for that chain come along where that is better still.
    """
    best = 1.0 / inputs.alone
    tokens, alive = 1.0, 1.0
    for drafts in range(1, len(inputs.steps)):
        alive *= inputs.rates[drafts - 1]
        tokens += alive
        stands = min(alive * inputs.rates[drafts], CERTAIN)
        stands += (CERTAIN - stands) * rescue
        best = max(best, *_rates(inputs, drafts, tokens, stands, inputs.steps[drafts]))
        rejected, more = 1.0 - alive, 0.0
        for aside in range(1, min(MOST_ASIDE, len(inputs.steps) - 1 - drafts) + 1 if rescue else 1):
            more += rejected * rescue * inputs.rates[0] ** (aside - 1)
            best = max(best, *_rates(inputs, drafts, tokens + more, stands, inputs.steps[drafts + aside]))
    return best


def second_pays(inputs: PolicyInputs, rescue: float, *, asked: bool) -> bool:
    """Whether a second drafter with so many rescues promises enough beside such a drafter; asked: it drafts already."""
    return usefulness(inputs, rescue) > (KEEP if asked else ASK) * usefulness(inputs)


def _rates(inputs: PolicyInputs, drafts: int, tokens: float, stands: float, step: float) -> tuple[float, float]:
    """Rates with so many drafts a step of `step` seconds, which commits so many tokens and is followed by the next with
    probability `stands`, else by a restart: where the first of them is waited for, and where it is not."""
    interval, alone = inputs.interval, inputs.steps[0]
    more = stands / (1.0 - stands)
    gained = tokens * (1.0 + more)
    spent = step + more * max(step, (drafts + 1) * interval)
    waited = gained / (inputs.restart + (drafts - 1) * interval + spent)
    if interval >= alone:
        return waited, 0.0  # it never overtakes the target
    rounds = (inputs.restart + (drafts - 1) * interval) / (alone - interval)
    first = min(inputs.rates[0], CERTAIN)
    caught = first**rounds  # the drafts of a chain that the target's own tokens contradict are made anew
    alone_rounds = (1.0 - caught) / (1.0 - first)
    return waited, (alone_rounds + caught * gained) / (alone_rounds * alone + caught * spent)
