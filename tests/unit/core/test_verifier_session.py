"""One session at the verifier, event by event."""

import pytest
from harness.sessions import crc
from harness.sessions import session as session_of

from specmesh.core import events as ev
from specmesh.core.draft_buffer import NACK_INTERVAL
from specmesh.core.sampling.sampler import SamplingParams
from specmesh.core.session_params import SessionParams, TargetLimits

END, PROMPT, GREEDY = 0, (5, 6, 7), SamplingParams()


def session(draft_n=4, max_tokens=100, n_ctx=64, max_drafts=8, stop=(), sampling=GREEDY):
    limits = TargetLimits(n_ctx, 16, frozenset({END}), max_drafts, [b"%d" % token for token in range(16)])
    made = session_of(PROMPT, SessionParams(sampling, max_tokens, draft_n, stop), limits)
    made.handle(ev.Prefilled(len(PROMPT) - 1), 0.0)
    return made


def draft(made, *ids, now=0.0, after=(), proposals=()):
    """A DRAFT on what is committed, followed by the drafts in `after`."""
    prefix = (*made.prefix[0:], *after)
    return made.handle(ev.Drafted(len(prefix), crc(*prefix), ids, proposals), now)


@pytest.mark.parametrize(
    ("limits", "drafts"),
    [({}, 4), ({"max_drafts": 2}, 2), ({"max_drafts": 0}, 0), ({"max_tokens": 3}, 2), ({"n_ctx": 5}, 1)],
    ids=str,
)
@pytest.mark.fault("E7.80")
def test_drafts_never_exceed_what_may_be_committed(limits, drafts):
    made = session(**limits)
    draft(made, 1, 2, 3, 4, 8)
    assert len(made.plan(1.0).drafts) == drafts


@pytest.mark.parametrize(
    "event",
    [
        ev.Drafted(3, crc(*PROMPT) ^ 1, (1,)),
        ev.Drafted(2, crc(*PROMPT), (1,)),
        ev.Drafted(4, crc(*PROMPT), (1,)),
        ev.Drafted(2**32 - 1, 0, (1,)),
        ev.Drafted(3, crc(*PROMPT), (-1,)),
        ev.Drafted(3, crc(*PROMPT), (1, 16)),
        ev.Drafted(3, crc(*PROMPT), (1, 2**31 - 1)),
    ],
    ids=["wrong crc", "wrong base", "base ahead", "huge base", "negative id", "id over vocabulary", "largest id"],
)
@pytest.mark.fault("E1.10")
@pytest.mark.fault("E1.11")
def test_foreign_drafts_are_counted_and_dropped(event):
    made = session()
    assert made.handle(event, 0.0) == []
    assert (len(made.drafts), made.drafts.stale) == (0, 1)


@pytest.mark.fault("E2.21")
def test_orphans_are_asked_about_once_they_last():
    """Drafts that hang on nothing are those of a rejected chain, or follow a lost frame: if they go on, a NACK says
    where to continue, once per interval. A draft that fits ends it."""
    made = session()
    assert draft(made, 2, after=(1,), now=1.0) == []
    assert draft(made, 3, after=(1, 2), now=1.0 + NACK_INTERVAL / 2) == []
    assert draft(made, 4, after=(1, 2, 3), now=1.0 + NACK_INTERVAL) == [ev.Nacked(3, crc(*PROMPT))]
    assert draft(made, 4, after=(1, 2, 3), now=1.0 + 1.5 * NACK_INTERVAL) == []
    assert draft(made, 4, after=(1, 2, 3), now=1.0 + 2.5 * NACK_INTERVAL) == [ev.Nacked(3, crc(*PROMPT))]
    draft(made, 1, 2, now=2.0)
    assert draft(made, 9, after=(3, 3), now=2.0 + NACK_INTERVAL) == []
    assert len(made.drafts) == 2
