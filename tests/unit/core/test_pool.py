"""Which drafter a session gets, which one stands by, and when they change places."""

import random
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specmesh.core.draft_length.acceptance import RollingAcceptance
from specmesh.core.drafting.drafter_pool import (
    GAIN,
    HOPE,
    LONGEST_PENALTY,
    LOOK_ROUNDS,
    LOOK_SECONDS,
    MOST_STANDBYS,
    PENALTY,
    PROOF,
    RECHECK,
    SHOWN,
    STINT,
    Casting,
    Change,
    DrafterRecord,
    Offer,
    choose,
)

PROFILE = settings(derandomize=True, deadline=None)
ALONE = 30.0


# --- a session that has none


def test_the_least_loaded_then_the_longest_attached():
    """Nothing is known of them: fewest sessions first; of equals the one that attached first; nobody without any."""
    assert choose([Offer("a", None, 2), Offer("b", None, 1), Offer("c", None, 1)], ALONE) == "b"
    assert choose([Offer("a", None), Offer("b", None)], ALONE) == "a"
    assert choose([], ALONE) is None


def test_the_most_useful():
    """The one that promises most, whatever others have to do; of those about as good the least loaded."""
    assert choose([Offer("slow", 40.0), Offer("fast", 60.0, 3), Offer("new", None)], ALONE) == "fast"
    assert choose([Offer("one", 60.0, 3), Offer("other", 58.0, 1), Offer("slow", 50.0)], ALONE) == "other"


def test_the_standby_before_others():
    """It has read the text already; unless another is much better, or it may not."""
    assert choose([Offer("best", 60.0), Offer("standby", 45.0, 3)], ALONE, "standby") == "standby"
    assert choose([Offer("best", 80.0), Offer("standby", 45.0)], ALONE, "standby") == "best"
    assert choose([Offer("best", 60.0), Offer("standby", 55.0, barred=True)], ALONE, "standby") == "best"
    assert choose([Offer("best", 60.0)], ALONE, "gone") == "best"


def test_an_unknown_one_goes_before_a_useless_one():
    """One that is known not to help is worth less than one that may."""
    assert choose([Offer("bad", ALONE), Offer("new", None, 4)], ALONE) == "bad"  # within what counts as alike
    assert choose([Offer("bad", ALONE / 1.1), Offer("new", None, 4)], ALONE) == "new"
    assert HOPE > 1


def test_a_barred_one_is_the_last_resort():
    """Where there is another, even one that does not help."""
    liar = Offer("liar", 90.0, barred=True)
    assert choose([liar, Offer("bad", ALONE)], ALONE) == "bad"
    assert choose([liar], ALONE) == "liar"


offers = st.builds(
    Offer,
    st.integers(0, 9),
    st.none() | st.floats(1, 200),
    st.integers(0, 9),
    st.integers(0, 3),
    st.floats(0, 100),
    st.booleans(),
)


@PROFILE
@given(st.lists(offers, max_size=6, unique_by=lambda offer: offer.drafter))
def test_somebody_is_chosen_out_of_those_there_are(some):
    """Never one that is not there, none only where there is none, and nobody who promises much less than another."""
    chosen = choose(some, ALONE)
    assert (chosen is None) == (not some)
    if chosen is not None:
        (taken,) = [offer for offer in some if offer.drafter == chosen]
        free = [offer.rate for offer in some if offer.rate is not None and not offer.barred]
        assert taken.barred is False or not any(not offer.barred for offer in some)
        if free and taken.rate is not None and not taken.barred:
            assert taken.rate * 1.06 >= max(free)


# --- a session that has one


class Session:
    """The drafters of a session as a daemon keeps them: rounds pass, what is to change is done."""

    def __init__(self, rates: dict[str, float | None], *, drafter: str = "a") -> None:
        self.rates = rates
        self.records = {name: DrafterRecord() for name in rates}
        self.casting: Casting[str] = Casting()
        self.casting.took_over(drafter, self.records[drafter])
        self.shown, self.now, self.silent, self.rounds = 0, 0.0, False, 0
        self.changes: list[tuple[int, Change[str]]] = []

    def run(self, rounds: int, *, shows: bool = True) -> "Session":
        """So many rounds, 0.1 s each, in each of which a standby that shows anything shows one guess."""
        for _ in range(rounds):
            self.now += 0.1
            self.rounds += 1
            if shows and self.casting.standby is not None:
                self.shown += 1
                self.records[self.casting.standby].measured = self.now
            if self.casting.due(self.now):
                change = self.casting.look(self.offers(), self.shown, self.now, silent=self.silent)
                if change is not None:
                    self.change(change)
        return self

    def offers(self) -> Sequence[Offer[str]]:
        return [
            Offer(
                name,
                rate,
                standbys=0,
                measured=self.records[name].measured,
                barred=self.records[name].barred(self.now),
            )
            for name, rate in self.rates.items()
        ]

    def change(self, change: Change[str]) -> None:
        self.changes.append((self.rounds, change))
        self.shown = 0
        if change.why is None:
            self.casting.stands_by(change.drafter, self.records[change.drafter])
            return
        relieved = self.casting.drafter
        assert relieved is not None
        self.casting.broke(self.now)
        self.casting.took_over(change.drafter, self.records[change.drafter], promised=True)
        self.casting.stands_by(relieved, self.records[relieved])

    @property
    def drafters(self) -> list[str]:
        """Those that it changed to."""
        return [change.drafter for _, change in self.changes if change.why is not None]


def test_a_better_standby_takes_over():
    """Once it has shown guesses, at the second look that finds it better, and not before the stint is over."""
    session = Session({"a": 40.0, "b": 50.0}).run(STINT - 1)
    assert session.changes == [(LOOK_ROUNDS, Change("b"))]
    session.run(2 * LOOK_ROUNDS)
    assert session.drafters == ["b"]
    assert (session.casting.drafter, session.casting.standby) == ("b", "a")
    assert not session.records["a"].barred(session.now), "it has promised nothing"


def test_a_much_better_one_earlier():
    """Where the first one is worth next to nothing."""
    session = Session({"a": 30.0, "b": 90.0}).run(STINT - 1)
    assert session.drafters == ["b"]


def test_little_is_not_enough():
    """Nor is it where estimates waver about the same."""
    session = Session({"a": 40.0, "b": 40.0 * GAIN}).run(1000)
    assert session.drafters == []
    luck = random.Random(1)
    for _ in range(300):
        session.rates = {name: luck.uniform(39, 40.9) for name in session.rates}
        session.run(LOOK_ROUNDS)
    assert session.drafters == []


def test_one_look_is_not_enough():
    """What is better at every other look only is not better."""
    session = Session({"a": 40.0, "b": 40.0}).run(STINT)
    for number in range(100):
        session.rates["b"] = (60.0, 40.0)[number % 2]
        session.run(LOOK_ROUNDS)
    assert session.drafters == []


def test_a_standby_that_shows_nothing_takes_nobodys_place():
    """Whatever it promises; and makes room for another that might."""
    session = Session({"a": 40.0, "b": 90.0}).run(40 * PROOF, shows=False)
    assert session.drafters == []
    session = Session({"a": 40.0, "b": 90.0, "c": 50.0}).run(4 * PROOF, shows=False)
    assert [change.drafter for _, change in session.changes][:2] == ["b", "c"]


def test_a_silent_drafter_is_left_at_once():
    """For a standby that has shown guesses, even a slower one."""
    session = Session({"a": 40.0, "b": 35.0}).run(LOOK_ROUNDS + SHOWN)
    session.silent = True
    session.run(LOOK_ROUNDS)
    assert session.drafters == ["b"]
    assert session.changes[-1][1].why == "silent"


def test_a_broken_promise_costs_twice_as_long_each_time():
    """One whose guesses promise and whose drafts do not: it takes over, is left, and is barred, longer each time."""
    session = Session({"a": 40.0, "liar": 80.0})
    tries = []
    for _ in range(40_000):
        drafting = session.casting.drafter == "liar"
        session.rates["liar"] = 20.0 if drafting else 80.0
        before = len(session.drafters)
        session.run(1)
        if len(session.drafters) > before and session.drafters[-1] == "liar":
            tries.append(session.now)
    gaps = [after - one for one, after in pairwise(tries)]
    assert len(tries) >= 5
    assert gaps[0] >= PENALTY
    assert all(after > 1.5 * one for one, after in pairwise(gaps))
    assert len(tries) * (STINT + LOOK_ROUNDS) < 0.02 * session.rounds


def test_penalties_are_bounded_and_forgiven():
    """At most an hour; and 30 s again once a promise was kept."""
    record = DrafterRecord()
    for _ in range(20):
        record.broke(0.0)
    assert record.barred(LONGEST_PENALTY - 1)
    assert not record.barred(LONGEST_PENALTY)
    record.kept()
    record.broke(10_000.0)
    assert not record.barred(10_000.0 + PENALTY)


def test_a_kept_promise():
    """After PROOF rounds one may be left without blame: texts change."""
    session = Session({"a": 40.0, "b": 30.0}).run(PROOF)
    session.rates = {"a": 20.0, "b": 30.0}
    session.run(STINT)
    assert session.drafters == ["b"]
    assert not session.records["a"].barred(session.now)


def test_every_drafter_is_measured_now_and_then():
    """The unknown first; then the one that was not measured for longest, when that is too long ago."""
    session = Session({"a": 40.0, "b": None, "c": None, "d": 30.0}).run(LOOK_ROUNDS)
    assert session.casting.standby == "b"
    session.rates["b"] = 20.0
    session.run(STINT + LOOK_ROUNDS)
    assert session.casting.standby == "c"
    session.rates["c"] = 38.0
    session.run(10 * int(RECHECK))
    assert [change.drafter for _, change in session.changes] == ["b", "c", "d", "c"]
    assert session.drafters == []


def test_nobody_stands_by_for_too_many():
    """Each is a text to read."""
    casting: Casting[str] = Casting()
    casting.took_over("a", DrafterRecord())
    busy = [Offer("a", 40.0), Offer("b", 50.0, standbys=MOST_STANDBYS)]
    assert casting.look(busy, 0, 1.0, silent=False) is None


def test_looks_are_rare():
    """Neither more often than every so many rounds, nor than every so many seconds."""
    casting: Casting[str] = Casting()
    casting.took_over("a", DrafterRecord())
    assert sum(casting.due(0.1 * number) for number in range(800)) == 800 // LOOK_ROUNDS
    assert sum(casting.due(80 + 1e-4 * number) for number in range(100_000)) == pytest.approx(10 / LOOK_SECONDS, abs=2)


# --- acceptance to expect


def test_what_was_seen_here_counts():
    """A drafter that drafts is worth what its drafts were, a standby what its guesses were."""
    casting: Casting[str] = Casting()
    good, bad = DrafterRecord(), DrafterRecord()
    drafts = casting.took_over("good", good)
    casting.stands_by("bad", bad)
    for _ in range(100):
        drafts.record(2, 2)
        casting.guessed([False])
    assert casting.rates("good", good)[0] > 0.9
    assert casting.rates("bad", bad)[0] < 0.1
    assert good.acceptance.pooled() > 0.9
    assert bad.acceptance.pooled() < 0.1


def test_guesses_are_forgotten_where_drafts_are_wrong():
    """One that takes over on guesses which it copied is known for its drafts after some rounds."""
    casting: Casting[str] = Casting()
    record = DrafterRecord()
    casting.took_over("a", DrafterRecord())
    casting.stands_by("liar", record)
    casting.guessed([True] * 200)
    drafts = casting.took_over("liar", record)
    for _ in range(16):
        drafts.record(1, 0)
    assert casting.rates("liar", record)[0] < 0.35


def test_a_text_that_suits_nobody():
    """Where the present drafter is right less often than elsewhere, another is expected to be, too: nobody is changed
    for the average of easier texts."""
    shared = RollingAcceptance()
    present, other = DrafterRecord(shared), DrafterRecord(shared)
    for _ in range(400):
        present.acceptance.record(1, 1)
        present.acceptance.record(1, 0)
        other.acceptance.record(1, 1)
        other.acceptance.record(1, 0)
    casting: Casting[str] = Casting()
    drafts = casting.took_over("present", present)
    for _ in range(64):
        drafts.record(1, 0)
    assert casting.rates("other", other)[0] < 0.5 * other.acceptance.rates()[0]


def test_why_a_session_gets_one():
    """The first time, and again after it had none."""
    casting: Casting[str] = Casting()
    assert casting.why == "first"
    casting.took_over("a", DrafterRecord())
    casting.left()
    assert casting.why == "alone"
    assert casting.drafter is None


def test_intervals_by_guesses_until_there_are_drafts():
    """So a standby can promise something; with more sessions proportionally longer."""
    record = DrafterRecord()
    assert record.interval_at(1) is None
    record.shadowed(None, 1.0)
    assert record.interval_at(1) is None
    record.shadowed(0.0, 2.0)
    assert (record.interval_at(1) or 0.0) > 0
    record.shadowed(0.02, 2.0)
    record.shadowed(0.02, 2.0)
    assert record.interval_at(3) == pytest.approx(0.06)
    assert record.restart_at(1) is None
    record.arrivals.record_restart(0.01, 1)
    assert record.interval_at(1) == pytest.approx(0.01)
    assert record.restart_at(1) == (0.01, 1)
