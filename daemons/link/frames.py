"""What the core has, as fields of messages, and back: drafts, sampling options, grammars."""

from typing import Any

from specmesh.core import events as ev
from specmesh.core.sampling import proposal
from specmesh.core.sampling.constraint import Grammar, GrammarKind
from specmesh.core.sampling.sampler import Penalties, SamplingParams
from specmesh.core.session_params import SessionParams
from specmesh.wire.messages import WHOLE_WINDOW, Draft, DraftProbs, Nack, Open, Opened, Sync, Truth


def frame_of(session: int, effect: ev.Drafted | ev.Nacked) -> Draft | DraftProbs | Nack:
    """What a drafter sends: DRAFT_PROBS where it is known what drafts were sampled from."""
    if isinstance(effect, ev.Nacked):
        return Nack(session, effect.base, effect.crc)
    place = session, effect.base, effect.crc, effect.ids
    return DraftProbs(*place, *proposal.flattened(effect.proposals)) if any(effect.proposals) else Draft(*place)


def opened(session: int, ref: int, prompt_tokens: int, params: SessionParams) -> Opened:
    fields = fields_of(params.sampling, params.grammar)
    return Opened(session, ref, prompt_tokens, **fields, cache_prompt=params.cache_prompt)


def from_verifier(frame: Truth | Sync | Nack) -> ev.Told | ev.Nacked:
    if isinstance(frame, Nack):
        return ev.Nacked(frame.base, frame.prefix_crc)
    return ev.Told(frame.base, frame.prefix_crc, frame.ids, frame.draft_n, isinstance(frame, Sync))


def fields_of(params: SamplingParams, grammar: Grammar | None) -> dict[str, Any]:
    """How a session samples and what its output must match, as fields of OPEN and OPENED."""
    return params.named() | {
        "repeat_last_n": WHOLE_WINDOW if params.penalties.window < 0 else params.penalties.window,
        "biased_ids": [token for token, _ in params.logit_bias],
        "biases": [bias for _, bias in params.logit_bias],
        "grammar": grammar.text if grammar is not None else "",
        "grammar_kind": grammar.kind.value if grammar is not None else "",
    }


def params_of(message: Open | Opened) -> SamplingParams:
    window = -1 if message.repeat_last_n == WHOLE_WINDOW else message.repeat_last_n
    return SamplingParams(
        message.temperature,
        message.top_k,
        message.top_p,
        message.seed,
        message.min_p,
        Penalties(message.repeat_penalty, message.frequency_penalty, message.presence_penalty, window),
        tuple(zip(message.biased_ids, message.biases, strict=False)),
        message.strategy,
        message.threshold,
    )


def grammar_of(message: Open | Opened) -> Grammar | None:
    """None without a grammar, or for one of a kind that is unknown here."""
    known = message.grammar_kind in set(GrammarKind)
    return Grammar(GrammarKind(message.grammar_kind), message.grammar) if known else None
