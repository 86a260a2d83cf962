"""Drafts as frames, and frames as drafts: DRAFT, or DRAFT_PROBS where it is told what they were sampled from."""

from specmesh.core import events as ev
from specmesh.core.proposal import Proposal
from specmesh.wire import messages as m


def frame_of(session: int, drafts: ev.SendDraft) -> m.Draft | m.DraftProbs:
    if not any(drafts.proposals):
        return m.Draft(session, drafts.base, drafts.crc, drafts.ids)
    laws = [one or Proposal((), ()) for one in drafts.proposals]
    return m.DraftProbs(
        session,
        drafts.base,
        drafts.crc,
        drafts.ids,
        tuple(len(law.ids) for law in laws),
        tuple(token for law in laws for token in law.ids),
        tuple(weight for law in laws for weight in law.weights),
    )


def drafted(frame: m.DraftProbs) -> ev.Drafted:
    """What DRAFT_PROBS tells, unchecked."""
    proposals, end = list[Proposal | None](), 0
    for size in frame.sizes:
        begin, end = end, end + size
        proposals.append(Proposal(frame.support[begin:end], frame.weights[begin:end]) if size else None)
    return ev.Drafted(frame.base, frame.prefix_crc, frame.ids, tuple(proposals))
