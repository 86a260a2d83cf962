"""What the core has, as fields of messages, and back: drafts, sampling options, grammars."""

from typing import Any

from specmesh.core import events as ev
from specmesh.core.sampling import proposal
from specmesh.core.sampling.constraint import Grammar, GrammarKind
from specmesh.core.sampling.sampler import Penalties, SamplingParams
from specmesh.core.session_params import SessionParams
from specmesh.wire.messages import NO_LOGPROBS, WHOLE_WINDOW, Draft, DraftProbs, Nack, Open, Opened, Sync, Truth


def frame_of(session: int, effect: ev.Drafted | ev.Nacked) -> Draft | DraftProbs | Nack:
    """What a drafter sends: DRAFT_PROBS where it is known what drafts were sampled from."""
    if isinstance(effect, ev.Nacked):
        return Nack(session, effect.base, effect.crc)
    place = session, effect.base, effect.crc, effect.ids
    return DraftProbs(*place, *proposal.flattened(effect.proposals)) if any(effect.proposals) else Draft(*place)


def from_verifier(frame: Truth | Sync | Nack) -> ev.Told | ev.Nacked:
    if isinstance(frame, Nack):
        return ev.Nacked(frame.base, frame.prefix_crc)
    return ev.Told(frame.base, frame.prefix_crc, frame.ids, frame.draft_n, isinstance(frame, Sync))


def opened(session: int, prompt_tokens: int, params: SessionParams, ref: int = 0) -> Opened:
    return Opened(session, ref, prompt_tokens, **fields_of(params))


def fields_of(params: SessionParams) -> dict[str, Any]:
    """How a session samples, and what its output must be like, as fields of OPEN and OPENED."""
    sampling, grammar = params.sampling, params.grammar
    return sampling.named() | {
        "max_tokens": params.max_tokens,
        "stop": list(params.stop),
        "logprobs": NO_LOGPROBS if params.logprobs is None else params.logprobs,
        "repeat_last_n": WHOLE_WINDOW if sampling.penalties.window < 0 else sampling.penalties.window,
        "biased_ids": [token for token, _ in sampling.logit_bias],
        "biases": [bias for _, bias in sampling.logit_bias],
        "grammar": grammar.text if grammar is not None else "",
        "grammar_kind": grammar.kind.value if grammar is not None else "",
        "cache_prompt": params.cache_prompt,
    }


def params_of(message: Open | Opened) -> SessionParams:
    """The same, back; without a grammar where it is of a kind that is unknown here."""
    window = -1 if message.repeat_last_n == WHOLE_WINDOW else message.repeat_last_n
    sampling = SamplingParams(
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
    known = message.grammar_kind in set(GrammarKind)
    return SessionParams(
        sampling,
        message.max_tokens,
        stop=tuple(message.stop),
        logprobs=None if message.logprobs == NO_LOGPROBS else message.logprobs,
        grammar=Grammar(GrammarKind(message.grammar_kind), message.grammar) if known else None,
        cache_prompt=message.cache_prompt,
    )
