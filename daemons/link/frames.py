"""What the core has, as fields of messages, and back: drafts, sampling options, grammars."""

import struct
from collections.abc import Iterator, Sequence
from typing import Any, assert_never
from zlib import crc32

from specmesh.core import events as ev
from specmesh.core import verifier_events as vev
from specmesh.core.sampling.constraint import Grammar, GrammarKind
from specmesh.core.sampling.logprobs import Logprob
from specmesh.core.sampling.proposal import Proposal
from specmesh.core.sampling.sampler import Penalties, SamplingParams
from specmesh.core.session_params import SessionParams
from specmesh.wire import messages as m
from specmesh.wire.messages import (
    MAX_ALTERNATIVES,
    MAX_LOGPROBS,
    MAX_TOKENS,
    WHOLE_WINDOW,
    Draft,
    DraftProbs,
    Nack,
    Open,
    Opened,
    Sync,
    Truth,
)


def frame_of(session: int, effect: ev.Drafted | ev.Nacked) -> Draft | DraftProbs | Nack:
    """What a drafter sends: DRAFT_PROBS where it is known what drafts were sampled from."""
    if isinstance(effect, ev.Nacked):
        return Nack(session, effect.base, effect.crc)
    place = session, effect.base, effect.crc
    if not any(effect.proposals):
        return Draft(*place, effect.ids)
    proposals = [proposal or Proposal((), ()) for proposal in effect.proposals]
    return DraftProbs(
        *place,
        effect.ids,
        tuple(len(proposal.ids) for proposal in proposals),
        tuple(token for proposal in proposals for token in proposal.ids),
        tuple(weight for proposal in proposals for weight in proposal.weights),
    )


def from_drafter(frame: Draft | DraftProbs | Nack) -> ev.Drafted | ev.Nacked:
    """What a drafter says, unchecked."""
    if isinstance(frame, Nack):
        return ev.Nacked(frame.base, frame.prefix_crc)
    if isinstance(frame, Draft):
        return ev.Drafted(frame.base, frame.prefix_crc, frame.ids)
    proposals, end = list[Proposal | None](), 0
    for size in frame.sizes:
        begin, end = end, end + size
        proposals.append(Proposal(frame.support[begin:end], frame.weights[begin:end]) if size else None)
    return ev.Drafted(frame.base, frame.prefix_crc, frame.ids, tuple(proposals))


def to_drafter(
    session: int, what: ev.Told | ev.Nacked | vev.Announced | vev.Over | vev.LogprobsTold, ref: int = 0
) -> Iterator[m.Message]:
    """What a verifier sends of a session: SYNC and LOGPROBS in as many frames as they need."""
    match what:
        case ev.Told(base, crc, ids, draft_n, sync=False):
            yield Truth(session, base, crc, ids, draft_n)
        case ev.Told(base, crc, ids, draft_n):
            for at in range(0, max(len(ids), 1), MAX_TOKENS):
                part = ids[at : at + MAX_TOKENS]
                yield Sync(session, base + at, crc, part, draft_n)
                crc = crc32(struct.pack(f"<{len(part)}i", *part), crc)
        case ev.Nacked(base, crc):
            yield Nack(session, base, crc)
        case vev.Announced(n_prompt, params):
            yield opened(session, ref, n_prompt, params)
        case vev.Over(reason, length, report):
            yield m.Done(session, reason, length, report)
        case vev.LogprobsTold(base, logprobs):
            yield from _logprob_frames(session, base, logprobs)
        case _:
            assert_never(what)


def _logprob_frames(session: int, base: int, logprobs: Sequence[Logprob | None]) -> Iterator[m.Logprobs]:
    each = max((len(one.ids) for one in logprobs if one is not None), default=0) + 1
    most = max(min(MAX_LOGPROBS, MAX_ALTERNATIVES // each), 1)
    for at in range(0, len(logprobs), most):
        found = [one for one in logprobs[at : at + most] if one is not None]
        ids = [token for one in found for token in one.ids]
        yield m.Logprobs(session, base + at, [one.chosen for one in found], ids, [p for one in found for p in one.top])


def logprobs_of(frame: m.Logprobs) -> list[Logprob]:
    """Return them in order, from the frame's base on; none where its parts do not fit each other."""
    count = len(frame.chosen)
    each, odd = divmod(len(frame.top_ids), count) if count else (0, 0)
    if odd or len(frame.top) != len(frame.top_ids):
        return []
    ids, top = tuple(frame.top_ids), tuple(frame.top)
    parts = [slice(at * each, (at + 1) * each) for at in range(count)]
    return [Logprob(chosen, ids[part], top[part]) for chosen, part in zip(frame.chosen, parts, strict=True)]


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
        message.typical_p,
        Penalties(message.repeat_penalty, message.frequency_penalty, message.presence_penalty, window),
        tuple(zip(message.biased_ids, message.biases, strict=False)),
        message.strategy,
        message.threshold,
    )


def grammar_of(message: Open | Opened) -> Grammar | None:
    """None without a grammar, or for one of a kind that is unknown here."""
    known = message.grammar_kind in set(GrammarKind)
    return Grammar(GrammarKind(message.grammar_kind), message.grammar) if known else None
