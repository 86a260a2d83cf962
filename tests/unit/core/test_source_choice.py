"""Whose drafts a step verifies, and how many, when several sources have some."""

import pytest
from harness.sessions import measured

from specmesh.core.draft_length.controller import DraftLengthController
from specmesh.core.draft_length.drafter_estimates import DrafterEstimates
from specmesh.core.draft_length.gate import StepOutcome
from specmesh.core.draft_length.policy import PolicyInputs, solve
from specmesh.core.draft_length.speculation import Speculations
from specmesh.core.draft_sources import DRAFT_SOURCES
from specmesh.core.prefix import Prefix
from specmesh.core.requests import Tokens
from specmesh.core.rounds import Round, SourceDrafts
from specmesh.core.sampling.sampler import SamplingParams
from specmesh.core.session_params import SessionParams, TargetLimits
from specmesh.core.statistics.counters import RoundCounts, SessionTimes
from specmesh.core.verifier.source_choice import Room, SourceChoice
from specmesh.core.verifier.sources.base import SourceContext
from specmesh.core.verifier.sources.grammar import GrammarSource
from specmesh.core.verifier.sources.prediction import PredictionSource
from specmesh.core.verifier.sources.remote import RemoteSource
from specmesh.core.verifier.sources.suffix import SuffixSource
from specmesh.wire import messages as m

TEXT = (3, 1, 4)
MOST = 8
MOST_COPIED = 12
CHEAP = {1: 0.010, 9: 0.011}
"""Seconds of steps by rows: drafts cost next to nothing."""
SLOPING = {1: 0.010, 2: 0.011, 9: 0.040}
"""A second row is cheap, others are not."""
DEAR = {1: 0.010, 9: 0.090}
"""Each row costs as much as the first."""


class Guess:
    """A source that has a chain for this text, and an even acceptance."""

    def __init__(self, name, chain, rate=0.9, *, exact=False, copies=False):
        self.name = name
        self.exact = exact
        self.copies = copies
        self.asked = 0
        self._chain = chain
        self._rate = rate

    def propose(self, proposed, limit):
        self.asked += 1
        known = len(proposed)
        if tuple(proposed) != self._chain[:known]:
            return ()
        room = max(limit, 0)
        return self._chain[known : known + room]

    def acceptance(self, drafts):
        return [self._rate ** (index + 1) for index in range(drafts)]

    def committed(self, done):
        pass


class World:
    """The sources of one session, without the session.

    rates: acceptance of each draft of the drafter, for which its policy was solved.
    """

    def __init__(self, *sources, costs=CHEAP, drafter=False, fixed=None, rates=0.5):
        self.speculations = Speculations()
        self.prefix = Prefix(TEXT)
        self.draft_length = DraftLengthController(
            fixed=fixed,
            most=MOST,
            costs=measured(costs),
            speculations=self.speculations,
            times=SessionTimes(opened=0.0),
        )
        context = SourceContext(
            session=1,
            prefix=self.prefix,
            params=SessionParams(SamplingParams(), 100),
            limits=TargetLimits(512, 16, frozenset(), max_drafts=MOST),
            constraint=None,
            draft_length=self.draft_length,
            counts=RoundCounts(),
        )
        remote = RemoteSource(context)
        self.choice = SourceChoice((*sources, remote), self.draft_length)
        if drafter:
            self.draft_length.attach(DrafterEstimates())
            inputs = PolicyInputs(
                steps=(0.01,) * (MOST + 1),
                rates=(rates,) * (MOST + 1),
                interval=0.001,
                restart=0.002,
                undrafted_s=0.01,
            )
            self.draft_length.solved(solve(inputs))
            remote.committed(self.round())

    def round(self, *parts):
        """Return a round of these parts, after which the text is as before."""
        return Round(
            session=1,
            base=len(TEXT) - 1,
            ids=(),
            accepted=0,
            text=Tokens((), 0),
            drafts=(),
            tested=0,
            by_source=parts,
            generated=0,
            over=False,
            first=False,
            at=0.0,
            sessions=1,
        )

    def drafts(self, *ids):
        """Let drafts of the drafter come."""
        frame = m.Draft(1, len(TEXT), self.prefix.crc, ids)
        self.choice.remote.take(frame, 0.0)

    def next(self):
        return self.choice.next_chain(Room(MOST, MOST_COPIED), 0.0)


def names(chain):
    found = []
    for part in chain.parts:
        found.append((part.source, part.drafted))
    return found


def accepted(source, drafts):
    return SourceDrafts(source=source, drafted=drafts, tested=drafts, accepted=drafts)


# --- which source leads


@pytest.mark.parametrize("source", [GrammarSource, PredictionSource, RemoteSource, SuffixSource])
def test_each_source_can_be_asked_for_by_its_name(source):
    assert source.name in DRAFT_SOURCES


def test_the_chain_that_promises_most_leads():
    world = World(Guess("weak", (7, 8, 9), 0.2), Guess("strong", (5, 6), 0.9))
    assert names(world.next()) == [("strong", 2)]


def test_other_sources_continue_the_leader():
    world = World(Guess("short", (5,), 0.95), Guess("long", (5, 6, 7), 0.4))
    assert names(world.next()) == [("short", 1), ("long", 2)]


def test_exact_drafts_come_before_the_leader():
    world = World(Guess("grammar", (5,), 1.0, exact=True), Guess("table", (5, 6, 7)))
    assert names(world.next()) == [("grammar", 1), ("table", 2)]


def test_drafts_that_cost_more_than_they_bring_stay_away():
    world = World(Guess("table", (5, 6, 7), 0.8), costs=DEAR)
    assert world.next().drafts == ()


def test_exact_drafts_come_whatever_rows_cost():
    table = Guess("table", (5, 6, 7), 0.5)
    world = World(Guess("grammar", (5,), 1.0, exact=True), table, costs=DEAR)
    assert world.next().drafts == (5,)


@pytest.mark.parametrize("costs", [DEAR, {}], ids=["dear", "unknown"])
def test_all_drafts_come_that_a_client_has_chosen(costs):
    world = World(Guess("table", tuple(range(MOST)), 0.8), costs=costs, fixed=MOST)
    assert world.next().drafts == tuple(range(MOST))


def test_in_a_shared_step_a_long_chain_is_judged_by_the_part_that_pays():
    """All of it comes: the scheduler cuts it."""
    long = Guess("long", tuple(range(MOST)), 0.6)
    world = World(Guess("short", (9,), 0.5), long, costs=SLOPING)
    world.draft_length.note_sessions(2)
    assert names(world.next()) == [("long", MOST)]


def test_sources_are_asked_once_where_nothing_is_in_hand():
    table = Guess("table", ())
    World(table).next()
    assert table.asked == 1


@pytest.mark.parametrize(("copies", "drafts"), [(False, MOST), (True, MOST_COPIED)])
def test_a_step_has_more_drafts_that_repeat_known_text(copies, drafts):
    world = World(Guess("table", tuple(range(20)), 0.99, copies=copies))
    assert len(world.next().drafts) == drafts


def test_few_drafts_come_before_a_step_was_timed():
    world = World(Guess("table", tuple(range(MOST))), costs={})
    assert len(world.next().drafts) == 4


# --- beside a drafter


def test_a_good_chain_in_hand_does_not_wait_for_the_drafter():
    world = World(Guess("table", tuple(range(MOST)), 0.99), drafter=True)
    assert names(world.next()) == [("table", MOST)]


def test_drafts_of_the_drafter_lead_where_they_promise_more():
    world = World(Guess("table", (7, 8), 0.1), drafter=True)
    world.drafts(5, 6)
    assert names(world.choice.chain_in_hand(Room(MOST, MOST))) == [("remote", 2)]


def test_the_drafter_continues_the_leader():
    world = World(Guess("table", (5, 6), 0.9), drafter=True)
    world.drafts(5, 6, 7)
    assert names(world.choice.chain_in_hand(Room(MOST, MOST))) == [("table", 2), ("remote", 1)]


def led(world, *rounds):
    """Let a chain lead in each of these rounds; return what the drafter is asked for then."""
    for source, drafts in rounds:
        world.next()
        part = accepted(source, drafts)
        world.choice.committed(world.round(part))
    return world.draft_length.draft_n


LEADS = ("table", MOST)


@pytest.mark.parametrize(
    ("rounds", "asks"),
    [
        ((LEADS,), True),
        ((LEADS, LEADS), False),
        ((LEADS, LEADS, ("remote", 2)), True),
        ((LEADS, ("remote", 2), LEADS), True),
    ],
)
def test_a_drafter_is_asked_for_nothing_while_another_source_does_better(rounds, asks):
    world = World(Guess("table", tuple(range(MOST)), 0.99), drafter=True)
    asked = led(world, *rounds)
    assert (asked > 0) is asks


def test_drafts_that_a_client_has_chosen_are_asked_for_all_the_same():
    world = World(Guess("table", tuple(range(MOST)), 0.99), drafter=True, fixed=3)
    assert led(world, LEADS, LEADS, LEADS) == 3


def test_a_drafter_that_does_better_is_asked_on():
    world = World(Guess("table", (7,), 0.3), drafter=True, rates=0.95)
    assert led(world, ("table", 1), ("table", 1), ("table", 1)) > 0


# --- gates


def shut(world, name):
    gate = world.speculations.of(name, 1).gate
    while gate.open:
        gate.stepped(
            StepOutcome(
                sessions=1,
                tokens=1,
                seconds=1.0,
                drafting=True,
                has_drafts=True,
                rate_without=2.0,
            )
        )


def test_a_source_whose_gate_is_shut_is_not_asked():
    table = Guess("table", (5, 6))
    world = World(table)
    shut(world, "table")
    assert world.next().drafts == ()
    assert table.asked == 0


def test_the_gate_of_one_source_leaves_the_others_alone():
    world = World(Guess("shut", (5, 6)), Guess("open", (7, 8)))
    shut(world, "shut")
    assert names(world.next()) == [("open", 2)]


def test_a_source_that_is_shut_for_one_session_is_open_for_several():
    world = World(Guess("table", (5, 6)))
    shut(world, "table")
    world.draft_length.note_sessions(2)
    assert names(world.next()) == [("table", 2)]
