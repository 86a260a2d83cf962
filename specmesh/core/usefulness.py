"""How many tokens per second a drafter would bring: a closed form, for choosing among drafters.

The step policy (specmesh.core.policy) takes milliseconds to solve, once for each session and drafter. This takes
microseconds, and looks at two ways of drafting only, with each number of drafts: after a rejection, wait for them or
say tokens alone meanwhile; then step whenever so many are here.
"""

from specmesh.core.policy import PolicyInputs

CERTAIN = 0.999
"""No chain of drafts stands more surely than this."""


def usefulness(inputs: PolicyInputs) -> float:
    """Expected tokens per second with such a drafter, at least those of the target alone."""
    best = 1.0 / inputs.alone
    tokens, alive = 1.0, 1.0
    for drafts in range(1, len(inputs.steps)):
        alive *= inputs.rates[drafts - 1]
        tokens += alive
        stands = min(alive * inputs.rates[drafts], CERTAIN)
        best = max(best, *_rates(inputs, drafts, tokens, stands))
    return best


def _rates(inputs: PolicyInputs, drafts: int, tokens: float, stands: float) -> tuple[float, float]:
    """Rates with so many drafts a step, which commits so many tokens and is followed by the next with probability
    `stands`, else by a restart: where the first of them is waited for, and where it is not."""
    interval, alone, step = inputs.interval, inputs.steps[0], inputs.steps[drafts]
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
