"""The verifier's core: its steps, the gates of its sessions, and who hears of them.

Whole texts through it are in tests/properties, kept sessions in tests/contract/daemons.
"""

from dataclasses import replace

import numpy as np
import pytest
from harness.sessions import measured
from harness.table_source import table_source

from specmesh.core import events as ev
from specmesh.core.draft_length import MAX_SAMPLES
from specmesh.core.draft_length.gate import StepOutcome
from specmesh.core.draft_length.policy import PolicyInputs, solve
from specmesh.core.kv_slots import KVSlots
from specmesh.core.prefix import Prefix, crc_of
from specmesh.core.requests import Request, Tokens
from specmesh.core.rounds import Round, SourceDrafts
from specmesh.core.sampling.sampler import SamplingParams
from specmesh.core.session_params import SessionParams, TargetLimits, opened_options
from specmesh.core.verifier import events as vev
from specmesh.core.verifier.core import VerifierCore
from specmesh.core.verifier.target import Target
from specmesh.errors import EngineError, LocalProtocolError
from specmesh.wire import messages as m

PROMPT = (1, 2)
SAID = 4  # the target's choice at each position
WRONG = 5
CLIENT = 3
DRAFTER = b"mac"
OTHER = b"other"
MOST_SESSIONS = 2


def rows_of(step):
    """The target's logits for a step."""
    logits = np.zeros((8, 8), np.float32)
    logits[:, SAID] = 1.0
    return [logits[: len(span.ids)] if span.logits else None for span in step.spans]


def target_with(table=None, slots=None):
    """A target whose steps cost so many seconds, by rows."""
    return Target(
        limits=TargetLimits(9000, 8, frozenset({7}), max_drafts=4, drafts_repeats=False),
        costs=measured(table or {}),
        slots=slots or KVSlots(MOST_SESSIONS, "cut", 64),
        n_batch=64,
        max_sessions=MOST_SESSIONS,
    )


def core_with(slots=None):
    """A core without drafters."""
    return VerifierCore(target_with(slots=slots))


def drafted(table=None):
    """A core with a drafter, whose steps cost so many seconds, by rows."""
    return drafted_on(target_with(table))


def drafted_on(target):
    """A core on this target, with a drafter."""
    core = VerifierCore(target)
    core.handle(vev.DrafterJoined(DRAFTER, 9000), 0.0)
    return core


def opening(client=CLIENT, draft_n=None, name="", ids=PROMPT, sources=None):
    params = SessionParams(SamplingParams(), 9000, draft_n=draft_n, draft_sources=sources)
    request = Request(None, ids, params, id=name)
    return vev.Opening(client=client, request=request, ids=ids, n_prompt=len(ids))


def step(core, now, seconds=0.01):
    """Let a step happen; its effects."""
    begun = core.next_step(now)
    return core.finish(begun, rows_of(begun), now, now + seconds)


def frames(effects, drafter=DRAFTER):
    """The frames for a drafter."""
    sent = [effect for effect in effects if isinstance(effect, vev.ToDrafter)]
    return [effect.what for effect in sent if effect.drafter == drafter]


# --- steps


def test_a_step_neither_begins_while_another_runs_nor_ends_twice():
    core = core_with()
    core.handle(opening(), 0.0)
    begun = core.next_step(0.0)
    with pytest.raises(LocalProtocolError):
        core.next_step(0.0)
    core.finish(begun, rows_of(begun), 0.0, 0.1)
    with pytest.raises(LocalProtocolError):
        core.finish(begun, rows_of(begun), 0.1, 0.2)


def tokens_of(effects):
    """The ids that clients get."""
    rounds = [effect.what for effect in effects if isinstance(effect, vev.ToClient)]
    return [one.ids for one in rounds if isinstance(one, Round)]


def test_the_step_that_reads_a_prompt_to_its_end_brings_the_first_token():
    core = core_with()
    core.handle(opening(), 0.0)
    assert tokens_of(step(core, 0.0)) == [(SAID,)]


def test_a_part_of_a_prompt_brings_no_token():
    """Neither does one that fills the step: the last id has no room."""
    core = core_with()
    core.handle(opening(ids=(1, 2) * 32 + (1,)), 0.0)
    assert tokens_of(step(core, 0.0)) == []
    assert tokens_of(step(core, 0.1)) == [(SAID,)]


def test_prompts_that_are_read_together_bring_a_token_each():
    core = core_with()
    core.handle(opening(client=1), 0.0)
    core.handle(opening(client=2, ids=(3, 2, 1)), 0.0)
    assert tokens_of(step(core, 0.0)) == [(SAID,), (SAID,)]


def test_drafts_that_a_client_counts_come_with_each_step():
    core = core_with()
    core.handle(opening(draft_n=2), 0.0)
    assert tokens_of(step(core, 0.0)) == []


def test_a_first_token_takes_its_share_of_the_step():
    """The rest of it read the prompt."""
    core = core_with()
    core.handle(opening(ids=(1, 2) * 5), 0.0)
    step(core, 0.0, seconds=0.1)
    [session] = core.sessions()
    assert session.times.verify == pytest.approx(0.01)


def test_a_step_that_failed_is_no_pause():
    """However long it took, and whatever waited for it."""
    target = target_with()
    core = VerifierCore(target)
    core.handle(opening(), 0.0)
    step(core, 0.0)
    failing = core.next_step(0.011)
    core.handle(opening(client=2), 0.02)
    core.finish(failing, EngineError("too late"), 0.011, 60.0)
    step(core, 60.001)
    assert target.costs.pause < 0.1


def test_a_step_that_failed_leaves_sequences_that_were_to_be_offloaded():
    slots = KVSlots(2, "copied", 64, offloads=True)
    core = core_with(slots=slots)
    core.handle(opening(client=1, ids=PROMPT * 10), 0.0)
    step(core, 0.0)
    core.handle(vev.ClientLeft(1), 0.2)
    core.handle(opening(client=2, ids=(5, 6) * 10), 0.2)
    core.finish(core.next_step(0.2), EngineError("no room"), 0.2, 0.3)
    core.handle(vev.ClientLeft(2), 0.4)
    assert slots.snapshot().kept_sequences == 1


# --- kept sessions


def test_a_verifier_that_stops_keeps_no_session(owned):
    owned.handle(vev.DrafterLeft(DRAFTER, may_return=True), 0.0)
    owned.handle(vev.Signal.STOPPING, 1.0)
    *_, report = owned.handle(vev.Signal.REPORT_WANTED, 1.0)
    assert (report.sessions, report.kept) == ([], 0)


def test_a_client_that_leaves_while_it_waits_gets_no_session():
    core = core_with()
    for client in (1, 2, 3):
        core.handle(opening(client=client), 0.0)
    core.handle(vev.ClientLeft(3), 0.1)
    core.handle(vev.ClientLeft(1), 0.2)
    assert len(core.sessions()) == 1


# --- sessions that wait for their readers


def sequences(step):
    """The sequences that a step has rows of."""
    return [span.seq for span in step.spans]


def paused(client=CLIENT):
    return vev.ClientPaused(client, paused=True)


@pytest.fixture
def two():
    """A core with two sessions, of which the first waits for its reader."""
    core = core_with()
    core.handle(opening(), 0.0)
    core.handle(opening(client=4), 0.0)
    core.handle(paused(), 0.0)
    return core


def test_a_session_that_is_paused_during_a_step_waits_after_it():
    core = core_with()
    core.handle(opening(), 0.0)
    begun = core.next_step(0.0)
    core.handle(paused(), 0.0)
    core.finish(begun, rows_of(begun), 0.0, 0.1)
    assert core.next_step(0.1) == ev.Wait(60.1)


def test_without_other_sessions_there_is_no_step_for_one_that_waits(two):
    """To pause again gives no more time."""
    two.handle(paused(), 0.2)
    two.handle(vev.ClientLeft(4), 0.2)
    assert two.next_step(0.2) == ev.Wait(60.0)


def test_a_session_whose_reader_does_not_come_back_ends(two):
    """It has some time."""
    assert two.handle(vev.Signal.TIME_UP, 59.9) == []
    noted, ended, *_ = two.handle(vev.Signal.TIME_UP, 60.0)
    assert (noted.name, ended.client) == ("session_unread", CLIENT)
    assert ended.what.reason == m.FinishReason.CANCELLED


@pytest.fixture
def owned():
    """A core with a session that a drafter's client asked for."""
    core = drafted()
    core.handle(replace(opening(name="text"), owner=DRAFTER), 0.0)
    return core


@pytest.mark.parametrize(
    "event",
    [
        vev.DrafterLeft(DRAFTER, may_return=True),
        replace(opening(client=9, name="text"), owner=None),
    ],
    ids=["kept", "resumed by another"],
)
def test_a_text_whose_reader_has_changed_does_not_wait(owned, event):
    owned.handle(vev.SessionPaused(DRAFTER, 1, paused=True), 0.0)
    owned.handle(event, 0.1)
    assert sequences(owned.next_step(0.1)) == [0, 0], "its prompt and the first token"


def test_the_time_that_a_reader_takes_does_not_count_as_spent_on_drafts():
    core = drafted()
    core.handle(opening(draft_n=2), 0.0)
    step(core, 0.0, seconds=0.1)
    drafts = m.Draft(1, 2, Prefix(PROMPT).crc, (SAID, SAID))
    core.handle(vev.FromDrafter(DRAFTER, drafts), 0.1)
    step(core, 0.1, seconds=0.1)
    assert isinstance(core.next_step(0.2), ev.Wait), "for drafts"
    core.handle(paused(), 0.2)
    core.next_step(0.2)
    core.handle(vev.ClientPaused(CLIENT, paused=False), 30.0)
    core.next_step(30.0)
    [session] = core.sessions()
    assert session.times.wait < 1.0


# --- threads shared with a drafter of this host


def beside_a_drafter_of_this_host():
    core = drafted({1: 0.01})
    core.handle(vev.ThreadsShared(2, 1, frozenset({DRAFTER})), 0.0)
    core.handle(opening(), 0.0)
    return core


def test_fewer_threads_verify_beside_a_drafter_of_this_host():
    """All of them read a prompt."""
    core = beside_a_drafter_of_this_host()
    prompt = core.next_step(0.0)
    core.finish(prompt, rows_of(prompt), 0.0, 0.01)
    assert (prompt.threads, core.next_step(0.01).threads) == (None, 1)


def drafts_asked_for(core):
    """The drafts that are asked for after the first steps of a session."""
    step(core, 0.0)
    for begun in (0.01, 0.02, 0.03):
        effects = step(core, begun)
    [ran] = [effect for effect in effects if isinstance(effect, vev.Ran)]
    [draft_n] = ran.draft_n
    return draft_n


def test_beside_a_drafter_of_this_host_first_steps_are_measured_without_drafts():
    assert drafts_asked_for(beside_a_drafter_of_this_host()) == 0


def test_drafts_of_another_host_are_asked_for_at_once():
    core = drafted({1: 0.01})
    core.handle(opening(), 0.0)
    assert drafts_asked_for(core) > 0


NO_DRAFTS_PAY = solve(
    PolicyInputs(steps=(0.01, 0.1), rates=(0.5,), interval=0.01, restart=0.03, undrafted_s=0.01)
)


@pytest.mark.parametrize(("drafter", "asked_for"), [(DRAFTER, False), (OTHER, True)])
def test_policy_is_of_the_drafter_that_it_was_solved_for(drafter, asked_for):
    """A session may have moved to another one meanwhile."""
    core = drafted({1: 0.01, 2: 0.1})
    core.handle(opening(), 0.0)
    step(core, 0.0)
    core.handle(vev.Solved(1, drafter, NO_DRAFTS_PAY), 0.01)
    assert (drafts_asked_for(core) > 0) == asked_for


# --- a drafter that does not pay


class WrongDrafter:
    """A core with a drafter that drafts at once, and wrong.

    A step with drafts takes three times as long.
    """

    def __init__(self):
        self.now = 0.0
        self.core = drafted({1: 0.01})

    def handle(self, event):
        return self._drafted(self.core.handle(event, self.now))

    def step(self):
        begun = self.core.next_step(self.now)
        started = self.now
        self.now += 0.01 if begun.rows == 1 else 0.03
        return self._drafted(self.core.finish(begun, rows_of(begun), started, self.now))

    def _drafted(self, effects):
        """Draft wherever it is asked to; return the frames that it got."""
        received = frames(effects)
        for frame in received:
            if isinstance(frame, m.Sync | m.Truth) and frame.draft_n:
                end = frame.base + len(frame.ids)
                crc = Prefix((*PROMPT, *[SAID] * (end - len(PROMPT)))).crc
                drafts = m.Draft(frame.session, end, crc, (WRONG, WRONG))
                self.core.handle(vev.FromDrafter(DRAFTER, drafts), self.now)
        return received


@pytest.fixture
def off():
    """A drafter that was found not to pay, and whose session has ended."""
    world = WrongDrafter()
    world.handle(opening())
    for _ in range(200):
        world.step()
    world.handle(vev.ClientLeft(CLIENT))
    return world


def test_a_drafter_that_does_not_pay_drafts_for_few_steps(off):
    """200 steps take 2 seconds without drafts, and 6 with them."""
    assert 2.05 < off.now < 4


def test_a_drafter_that_is_off_does_not_hear_of_a_text(off):
    heard = off.handle(opening())
    off.step()
    assert heard + off.handle(vev.ClientLeft(CLIENT)) == []


def test_a_drafter_that_is_tried_again_hears_of_all_of_a_text(off):
    """It is not tried again soon."""
    off.handle(opening())
    steps = 1
    while not (received := off.step()):
        steps += 1
    text = (SAID,) * steps
    options = opening().request.params.named()
    assert received == [m.Opened(2, 0, 2, options), m.Sync(2, 0, 0, (*PROMPT, *text), 4)]
    assert steps >= 20


def test_a_drafter_that_is_off_is_left_for_another(off):
    off.handle(opening())
    off.handle(vev.DrafterJoined(OTHER, 9000))
    effects = []
    for _ in range(20):
        effects += step(off.core, off.now)
        off.now += 0.01
    assert isinstance(frames(effects, OTHER)[0], m.Opened)


# --- steps that sessions share

PAYS_FOR_ONE = {1: 0.01, 2: 0.01, 3: 0.03, 4: 0.04, 8: 0.08}
"""Seconds by rows. A second row costs nothing, a third one much."""


def draft_ns(core):
    return [session.draft_n for session in core.sessions()]


def sharing(target):
    """A core with a drafter and one session on this target."""
    core = drafted_on(target)
    core.handle(opening(client=1), 0.0)
    return core


def refused():
    """A core with a drafter and one session; it was measured that drafts do not pay for two."""
    target = target_with(PAYS_FOR_ONE)
    core = sharing(target)
    gate = target.speculations.of("remote", 2).gate
    while not gate.refuses:
        gate.stepped(
            StepOutcome(
                sessions=2,
                tokens=2,
                seconds=0.03 if gate.open else 0.01,
                drafting=True,
                has_drafts=gate.open,
            )
        )
    return core


def test_no_session_has_drafts_that_pay_for_one_only():
    core = sharing(target_with(PAYS_FOR_ONE))
    assert draft_ns(core) == [4]
    assert frames(core.handle(opening(client=2), 0.0))
    assert draft_ns(core) == [0, 0]


def test_a_drafter_does_not_hear_of_sessions_that_refuse_it():
    """One of them has waited."""
    core = refused()
    heard = []
    for client in (2, 3, 4):
        heard += core.handle(opening(client=client), 0.0)
    heard += core.handle(vev.ClientLeft(2), 0.0)
    assert frames(heard) == []


# --- drafts that a client has chosen

CHEAP = {1: 0.01, 2: 0.01, 4: 0.01, 8: 0.01}


def test_drafts_that_a_client_has_chosen_come_while_others_are_withheld():
    """Those of a session that adapts are; drafts pay, so the gate is not kept shut."""
    target = target_with(CHEAP)
    core = drafted_on(target)
    gate = target.speculations.of("remote", 2).gate
    core.handle(opening(client=1), 0.0)
    core.handle(opening(client=2, draft_n=2), 0.0)
    shut = 0
    for begun in range(60):
        _, chosen = core.sessions()
        text = chosen.prefix
        drafts = m.Draft(2, len(text), text.crc, (SAID, SAID))
        core.handle(vev.FromDrafter(DRAFTER, drafts), begun)
        step(core, begun, seconds=0.5)
        shut += not gate.open
    assert len(text) > 150
    assert 16 < shut < 30


# --- sources that have their drafts in hand


def beside_a_table(drafts, drafted_s, *, known=1):
    """Return the target of a session that a table has these drafts for, and its steps with drafts.

    There are 40 steps. No draft is accepted. drafted_s: seconds of a step with drafts; one without
    takes 0.01. known: how often one with drafts was measured to take as little.
    """
    target = target_with(CHEAP)
    for _ in range(known):
        target.costs.record(1 + len(drafts), 0.01)
    drafted = 0
    with table_source(lambda _: drafts):
        core = VerifierCore(target)
        core.handle(opening(), 0.0)
        now = 0.0
        for _ in range(40):
            begun = core.next_step(now)
            has_drafts = begun.rows > 1
            drafted += has_drafts
            seconds = drafted_s if has_drafts else 0.01
            core.finish(begun, rows_of(begun), now, now + seconds)
            now += seconds
    return target, drafted


WRONG_PAIR = (SAID + 1, SAID + 1)


def test_drafts_in_hand_that_cost_more_than_is_known_shut_their_gate():
    target, _ = beside_a_table(WRONG_PAIR, 0.05, known=MAX_SAMPLES)
    assert not target.speculations.of("table", 1).gate.open


def test_drafts_in_hand_that_cost_ten_times_as_much_end_as_soon_as_that_is_measured():
    """Steps of three rows, and of two, which were measured once, and one more at most."""
    _, drafted = beside_a_table(WRONG_PAIR, 0.1)
    assert drafted <= 3


def test_a_table_without_drafts_has_no_gate_to_shut():
    target, _ = beside_a_table((), 0.1)
    assert target.speculations.of("table", 1).gate.open


# --- sources that a client has left out


def learned(source, asked, sessions=1):
    """Return whether a shut gate learns from sessions that ask for these sources."""
    target = target_with(CHEAP)
    gate = target.speculations.of(source, sessions).gate
    gate.open = False
    core = drafted_on(target)
    for client in range(sessions):
        core.handle(opening(client=client, sources=asked), 0.0)
    before = dict(vars(gate))
    for now in range(8):
        step(core, float(now))
    return dict(vars(gate)) != before


@pytest.mark.parametrize(
    ("asked", "learns"),
    [(None, True), (("suffix",), True), (("remote", "mtp"), False), ((), False)],
)
def test_a_gate_learns_from_sessions_that_ask_for_its_source(asked, learns):
    assert learned("suffix", asked) == learns


@pytest.mark.parametrize(("asked", "learns"), [(("remote",), True), (("suffix",), False)])
def test_the_gate_of_drafters_learns_from_sessions_that_ask_for_them(asked, learns):
    assert learned("remote", asked, sessions=2) == learns


def test_no_drafter_gets_a_session_that_does_not_ask_for_its_drafts():
    core = drafted_on(target_with(CHEAP))
    assert frames(core.handle(opening(sources=("suffix",)), 0.0)) == []
    assert frames(step(core, 0.0)) == []


# --- several drafters


@pytest.mark.parametrize(
    ("draft_n", "changes"), [(None, set()), (2, {"drafter_changed"})], ids=["adapts", "chosen"]
)
def test_a_drafter_is_left_only_if_it_was_asked_for_drafts(draft_n, changes):
    """Steps that sessions share are measured without drafts first, but for those of a choice."""
    core = drafted(CHEAP)
    core.handle(vev.DrafterJoined(OTHER, 9000), 0.0)
    core.handle(opening(), 0.0)
    core.handle(opening(draft_n=draft_n), 0.0)
    logged = set()
    for begun in range(20):
        for effect in step(core, begun, seconds=0.9):
            if isinstance(effect, vev.Noted):
                logged.add(effect.name)
    assert logged == changes


def test_effects_from_the_opening_of_a_session_to_its_end():
    core = drafted()
    asked = opening(draft_n=4)
    params = asked.request.params
    noted, began, opened, sync = core.handle(asked, 0.0)
    assert noted.name == "session_opened"
    assert began == vev.ToClient(
        CLIENT,
        vev.Began(
            session=1,
            prompt_ids=PROMPT,
            params=params,
            name="",
            opened=0.0,
            resumed=0,
            adopted=False,
        ),
    )
    assert opened == vev.ToDrafter(DRAFTER, m.Opened(1, 0, 2, opened_options(params)))
    assert sync == vev.ToDrafter(DRAFTER, m.Sync(1, 0, 0, PROMPT, 4))
    assert step(core, 0.0) == [
        vev.Ran(started=0.0, ended=0.01, rows=1, tokens=0, rounds=(), draft_n=())
    ]

    draft = m.Draft(1, 2, crc_of(PROMPT), (SAID, WRONG))
    assert core.handle(vev.FromDrafter(DRAFTER, draft), 0.05) == []
    truth = m.Truth(1, 2, crc_of(PROMPT), (SAID, SAID), 4, accepted=1)
    round_ = Round(
        session=1,
        base=2,
        ids=(SAID, SAID),
        accepted=1,
        text=Tokens((SAID, SAID), 1),
        drafts=(SAID, WRONG),
        tested=2,
        by_source=(SourceDrafts("remote", 2, tested=2, accepted=1),),
        generated=2,
        over=False,
        first=True,
        at=0.125,
        sessions=1,
    )
    assert step(core, 0.1, seconds=0.025) == [
        vev.ToDrafter(DRAFTER, truth),
        vev.ToClient(CLIENT, round_),
        vev.Ran(started=0.1, ended=0.125, rows=3, tokens=2, rounds=(round_,), draft_n=(4,)),
    ]

    ended, noted, done, forgotten = core.handle(vev.ClientLeft(CLIENT), 0.3)
    assert ended.what.reason is m.FinishReason.CANCELLED
    assert noted.name == "session_finished"
    assert done == vev.ToDrafter(DRAFTER, m.Done(1, m.FinishReason.CANCELLED, 4, {}))
    assert forgotten == vev.Forgotten(1)
