"""A text that another server's target makes, as a session of the verifier's core."""

import numpy as np
import pytest

from specmesh.core import events as ev
from specmesh.core.draft_length.step_costs import StepCosts
from specmesh.core.session_params import TargetLimits
from specmesh.core.target_rows import logits_of
from specmesh.core.verifier import events as vev
from specmesh.core.verifier.core import VerifierCore
from specmesh.core.verifier.followed import ChosenIds, TargetsOwnMemory, followed
from specmesh.core.verifier.target import Target
from specmesh.errors import LocalProtocolError, RequestError
from specmesh.wire import messages as m

CLIENT = 7
PROMPT = (*range(1, 9), *range(1, 9), 1, 2, 3, 4)
LENGTH = len(PROMPT)


@pytest.fixture
def costs():
    return StepCosts()


@pytest.fixture
def core(costs):
    limits = TargetLimits(100, 50, frozenset(), max_drafts=4, max_copied=4)
    slots = TargetsOwnMemory(2)
    return VerifierCore(Target(limits=limits, costs=costs, slots=slots, n_batch=10, max_sessions=2))


@pytest.fixture
def session(core):
    core.handle(followed(CLIENT, PROMPT), 0.0)
    [found] = core.sessions()
    return found


def stepped(core, *ids, started=1.0, ended=1.1, **how):
    """Take a step in which the text gets these ids; return the drafts that it had."""
    step = core.next_step(started)
    core.finish(step, [ChosenIds(ids)], started, ended, **how)
    return step.spans[0].ids[1:]


def test_nothing_is_read(core, session):
    step = core.next_step(1.0)
    assert step == ev.Step(
        (), (ev.Span(session.slot.seq, LENGTH - 1, (4, 5, 6, 7, 8), logits=True),)
    )


def test_the_text_grows_by_the_targets_choices(core, session):
    assert stepped(core, 5, 6, 9) == (5, 6, 7, 8)
    assert session.prefix[LENGTH:] == [5, 6, 9]
    assert (session.counts.drafted, session.counts.accepted) == (4, 2)


def test_fewer_drafts_were_verified_than_given(core, session):
    """The target's own id is the draft that it did not see. The round ends there."""
    stepped(core, 5)
    assert session.prefix[LENGTH:] == [5]
    assert session.state.value == "generating"


def test_a_session_without_rows_stays(core, session):
    step = core.next_step(1.0)
    core.finish(step, [None], 1.0, 1.1)
    assert session.prefix[:] == list(PROMPT)
    assert core.next_step(1.2).spans == step.spans


def test_a_step_with_other_work_shows_no_costs(core, session, costs):
    stepped(core, 9, other_work=True)
    assert costs.seconds(1) == 0.0
    stepped(core, 8)
    assert costs.seconds(1) > 0.0


def test_its_end_has_the_watchers_reason(core, session):
    effects = core.handle(vev.ClientLeft(CLIENT, m.FinishReason.STOP), 2.0)
    [end] = [each.what for each in effects if isinstance(each, vev.ToClient)]
    assert end.reason is m.FinishReason.STOP
    assert core.sessions() == []


def test_sequences_are_used_again(core):
    for client in range(5):
        core.handle(followed(client, PROMPT), 0.0)
        assert len(core.sessions()) == 1
        core.handle(vev.ClientLeft(client), 0.0)


def test_choices_are_no_logits():
    with pytest.raises(LocalProtocolError):
        logits_of(ChosenIds([1]))
    rows = np.zeros((1, 2), np.float32)
    assert logits_of(rows) is rows


def test_there_is_no_choice_behind_the_last():
    chosen = ChosenIds([4, 5])
    assert [chosen[0].argmax(), chosen[1].argmax()] == [4, 5]
    with pytest.raises(RequestError):
        chosen[2]
