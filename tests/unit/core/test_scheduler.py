"""Which sessions share a step, and with what rows and threads."""

import math
from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from specmesh.core import events as ev
from specmesh.core.draft_length.estimates import StepCosts
from specmesh.core.draft_length.gate import DraftBid
from specmesh.core.scheduling.batch import Scheduler, ThreadShare


class Scripted:
    def __init__(self, wants, in_hand=(), finished=None):
        self.wants, self.in_hand, self.finished = wants, tuple(in_hand), finished
        self.session = self

    def plan(self, now):
        return self.wants

    def verify(self):
        return ev.Verify(5, 1, self.in_hand)

    def bid(self, verify):
        return DraftBid((1.0,) * len(verify.drafts))


def verifying(drafts=0):
    return Scripted(ev.Verify(5, 1, tuple(range(drafts))))


def waiting(until=2.0, in_hand=0):
    return Scripted(ev.Wait(until), range(in_hand))


def prefilling(ids, position=0):
    return Scripted(ev.Prefill(position, tuple(range(ids))))


sessions = st.lists(
    st.one_of(
        st.builds(verifying, st.integers(0, 16)),
        st.builds(waiting, st.floats(1, 9), st.integers(0, 16)),
        st.builds(prefilling, st.integers(1, 60)),
        st.just(Scripted(None, finished="stop")),
    ),
    max_size=8,
).map(lambda listed: dict(enumerate(listed)))


@given(sessions, st.integers(8, 40), st.integers(1, 16))
def test_every_step(sessions, n_batch, prefill_rows):
    """Any mix: rows fit the batch, who is ready takes part, no one waits beside a verification, prefill goes on."""
    step = Scheduler(n_batch, StepCosts(), prefill_rows=prefill_rows).next_batch(sessions, now=0.0)
    ready, waiting, prefilling = (
        [key for key, session in sessions.items() if isinstance(session.wants, kind)]
        for kind in (ev.Verify, ev.Wait, ev.Prefill)
    )
    if isinstance(step, ev.Wait):
        assert not ready
        assert not prefilling
        assert step.until == min((sessions[key].wants.until for key in waiting), default=math.inf)
        return
    parts = dict(step.parts)
    assert len(parts) == len(step.parts) > 0
    assert step.rows == sum(len(p.ids) if isinstance(p, ev.Prefill) else 1 + len(p.drafts) for p in parts.values())
    assert 0 < step.rows <= n_batch
    assert step.pure == all(isinstance(part, ev.Verify) for part in parts.values())
    verified = {key for key, part in parts.items() if isinstance(part, ev.Verify)}
    assert verified == set(ready + waiting if ready else [])
    for key in verified:
        wants = sessions[key].wants
        drafts = wants.drafts if isinstance(wants, ev.Verify) else sessions[key].in_hand
        assert parts[key].drafts == drafts[: len(parts[key].drafts)]
    filled = {key: part.ids for key, part in parts.items() if isinstance(part, ev.Prefill)}
    assert all(ids == sessions[key].wants.ids[: len(ids)] for key, ids in filled.items())
    rows = sum(map(len, filled.values()))
    others = len(ready) + len(waiting)
    share = prefill_rows * math.ceil(len(prefilling) / others) if others else n_batch
    wanted = sum(len(sessions[key].wants.ids) for key in prefilling)
    assert rows == min(n_batch - len(verified), share, wanted), "prompts come before drafts"
    assert sum(len(filled[key]) < len(sessions[key].wants.ids) for key in filled) <= 1


def test_the_oldest_and_the_shortest_prompt_in_turn():
    scheduler, prompts = Scheduler(8, StepCosts(), prefill_rows=8), {0: prefilling(60), 1: prefilling(3)}
    first = [scheduler.next_batch(prompts, 0.0).parts[0][0] for _ in range(4)]
    assert first in ([0, 1, 0, 1], [1, 0, 1, 0])


@given(
    st.lists(st.builds(prefilling, st.integers(1, 60), st.integers(0, 3).map(lambda cut: 16 * cut)), min_size=1),
    st.integers(0, 8),
    st.booleans(),
)
def test_prompts_are_cut_where_they_always_are(prompts, verifying_rows, waits):
    """With a constant width a part of a prompt ends at a multiple of `prefill_rows` or at its end, whoever is there;
    and some part of one always goes on."""
    others = {100: verifying(verifying_rows)} if verifying_rows else {}
    others |= {101: waiting()} if waits else {}
    sessions = dict(enumerate(prompts)) | others
    step = Scheduler(40, StepCosts(), prefill_rows=16, constant=True).next_batch(sessions, 0.0)
    filled = {key: part for key, part in step.parts if isinstance(part, ev.Prefill)}
    assert filled
    for key, part in filled.items():
        wants = sessions[key].wants
        assert part.ids == wants.ids[:16]
        assert part.position == wants.position


HERE = SimpleNamespace(host="h", cpu_threads=2)
ELSEWHERE = SimpleNamespace(host="other", cpu_threads=8)


def test_default_threads_follow_who_computes_here():
    share = ThreadShare(8, 8, "h", drafts=False, follows=True)
    assert share.beside([ELSEWHERE]) is None
    assert share.threads == 8
    assert share.beside([HERE, ELSEWHERE]).name == "cpu_threads"
    assert share.threads == 6
    assert share.beside([]).name == "cpu_threads"
    assert share.threads == 8
