"""How a session samples and what its text must be, as fields of OPEN and OPENED and as parameters."""

from typing import Any

from specmesh.core.sampling.constraint import Grammar, GrammarKind
from specmesh.core.sampling.filters import Penalties
from specmesh.core.sampling.sampler import SamplingParams
from specmesh.wire.messages import WHOLE_WINDOW, Open, Opened


def fields_of(params: SamplingParams) -> dict[str, Any]:
    told = params.named()
    if params.penalties.window < 0:
        told["repeat_last_n"] = WHOLE_WINDOW
    biased = {
        "biased_ids": [token for token, _ in params.logit_bias],
        "biases": [bias for _, bias in params.logit_bias],
    }
    return told | biased


def params_of(message: Open | Opened) -> SamplingParams:
    window = -1 if message.repeat_last_n == WHOLE_WINDOW else message.repeat_last_n
    return SamplingParams(
        message.temperature,
        message.top_k,
        message.top_p,
        message.seed,
        message.min_p,
        message.typical_p,
        Penalties(message.repeat_penalty, message.frequency_penalty, message.presence_penalty, window),
        tuple(zip(message.biased_ids, message.biases, strict=False)),
        message.strategy,
        message.threshold,
    )


def grammar_fields_of(grammar: Grammar | None) -> dict[str, Any]:
    """A grammar as fields of a message; both empty for none."""
    if grammar is None:
        return {"grammar": "", "grammar_kind": ""}
    return {"grammar": grammar.text, "grammar_kind": grammar.kind.value}


def grammar_of(message: Open | Opened) -> Grammar | None:
    """A message's grammar; None where it has none, or one of a kind that is not known here."""
    known = message.grammar_kind in set(GrammarKind)
    return Grammar(GrammarKind(message.grammar_kind), message.grammar) if known else None
