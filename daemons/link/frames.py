"""What the core has, as fields of messages, and back: drafts, sampling options, grammars."""

from typing import Any

from specmesh.core import events as ev
from specmesh.core.sampling.constraint import Grammar, GrammarKind
from specmesh.core.sampling.filters import Penalties
from specmesh.core.sampling.proposal import Proposal
from specmesh.core.sampling.sampler import SamplingParams
from specmesh.wire.messages import WHOLE_WINDOW, Draft, DraftProbs, Nack, Open, Opened, Shadow, Sync, Truth


def frame_of(session: int, effect: ev.Drafted | ev.Shadowed | ev.Nacked) -> Draft | DraftProbs | Shadow | Nack:
    """What a drafter sends: DRAFT_PROBS where it is known what drafts were sampled from."""
    if isinstance(effect, ev.Nacked):
        return Nack(session, effect.base, effect.crc)
    place = session, effect.base, effect.crc
    if isinstance(effect, ev.Shadowed):
        return Shadow(*place, effect.ids)
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


def from_drafter(frame: Draft | DraftProbs | Shadow | Nack) -> ev.Drafted | ev.Shadowed | ev.Nacked:
    """What a drafter says, unchecked."""
    if isinstance(frame, Nack):
        return ev.Nacked(frame.base, frame.prefix_crc)
    if isinstance(frame, Shadow):
        return ev.Shadowed(frame.base, frame.prefix_crc, frame.ids)
    if isinstance(frame, Draft):
        return ev.Drafted(frame.base, frame.prefix_crc, frame.ids)
    proposals, end = list[Proposal | None](), 0
    for size in frame.sizes:
        begin, end = end, end + size
        proposals.append(Proposal(frame.support[begin:end], frame.weights[begin:end]) if size else None)
    return ev.Drafted(frame.base, frame.prefix_crc, frame.ids, tuple(proposals))


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
