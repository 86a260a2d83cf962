"""Earlier outputs: whose they are, how much memory they take, and which of them leave."""

import random
from array import array

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specmesh.core.draft_length.step_costs import StepCosts
from specmesh.core.kv_slots import KVSlots
from specmesh.core.requests import Request
from specmesh.core.sampling.sampler import SamplingParams
from specmesh.core.session_params import SessionParams, TargetLimits
from specmesh.core.verifier import events as vev
from specmesh.core.verifier.core import VerifierCore
from specmesh.core.verifier.earlier_outputs import LEAST_IDS, EarlierOutputs
from specmesh.core.verifier.target import Target

ROOM = 2**17
ALICE = ("key", b"alice")
BOB = ("user", 1000)


def output(seed, count=200):
    rng = random.Random(seed)
    return array("i", [rng.randrange(50_000) for _ in range(count)])


def knows(cache, account, ids, at=20):
    """Return True if an account's outputs go on after the beginning of an output."""
    outputs = cache.of(account)
    while True:
        match = outputs.find(ids[:at], longer_than=0)
        if match is not None:
            return outputs.after(match, 5) == ids[at : at + 5]
        if not outputs.tokens or outputs._index.complete:
            return False


def test_they_are_their_accounts_own():
    cache = EarlierOutputs(ROOM)
    cache.add(ALICE, output(1))
    assert knows(cache, ALICE, output(1))
    assert not knows(cache, BOB, output(1))


def test_a_key_and_a_user_of_one_name_are_two():
    cache = EarlierOutputs(ROOM)
    cache.add(("key", 1000), output(1))
    assert not knows(cache, BOB, output(1))


def test_what_one_account_learns_no_other_knows():
    cache = EarlierOutputs(ROOM)
    before = cache.of(BOB).acceptance.chain(3, 8)
    for _ in range(50):
        cache.of(ALICE).acceptance.record(3, 1, 0)
    assert cache.of(BOB).acceptance.chain(3, 8) == before


@given(st.lists(st.tuples(st.sampled_from([ALICE, BOB]), st.integers(0, 3000)), max_size=30))
def test_memory_is_bounded(outputs):
    cache = EarlierOutputs(ROOM)
    for seed, (account, count) in enumerate(outputs):
        cache.add(account, output(seed, count))
        assert cache.report().bytes <= ROOM


def test_the_tables_take_no_more_than_is_reported():
    cache = EarlierOutputs(2**22)
    for seed in range(100):
        cache.add(ALICE, output(seed))
        cache.of(ALICE).find([1, 2, 3], longer_than=0)
        tables = cache.of(ALICE)._index._tables
        assert sum(table.nbytes for table in tables) <= cache.report().bytes


def test_the_oldest_leave():
    cache = EarlierOutputs(ROOM)
    for seed in range(40):
        cache.add(ALICE, output(seed))
    assert not knows(cache, ALICE, output(0))
    assert knows(cache, ALICE, output(39))


@pytest.mark.parametrize("count", [200, 20_000])
def test_an_account_loses_nothing_of_its_share_to_others(count):
    cache = EarlierOutputs(ROOM)
    cache.add(BOB, output(0))
    before = cache.of(BOB).tokens
    for seed in range(1, 40):
        cache.add(ALICE, output(seed, count))
    assert cache.of(BOB).tokens == before


def test_an_account_with_more_than_its_share_makes_room():
    cache = EarlierOutputs(ROOM)
    for seed in range(40):
        cache.add(ALICE, output(seed))
    cache.add(BOB, output(40))
    assert knows(cache, BOB, output(40))


def test_a_long_output_beside_those_of_others_keeps_its_end():
    cache = EarlierOutputs(ROOM)
    cache.add(BOB, output(0))
    long = output(1, 20_000)
    cache.add(ALICE, long)
    assert knows(cache, ALICE, long[-100:])


def test_an_output_larger_than_all_memory_keeps_its_end():
    cache = EarlierOutputs(ROOM)
    long = output(1, 20_000)
    cache.add(ALICE, long)
    assert knows(cache, ALICE, long[-100:])
    assert cache.report().tokens < 20_000


@pytest.mark.parametrize("count", [0, LEAST_IDS - 1])
def test_short_outputs_are_not_kept(count):
    cache = EarlierOutputs(ROOM)
    cache.add(ALICE, output(1, count))
    assert cache.report().outputs == 0


def test_report():
    cache = EarlierOutputs(ROOM)
    cache.add(ALICE, output(1, 50))
    cache.add(BOB, output(2, 60))
    report = cache.report()
    assert (report.max_bytes, report.outputs, report.tokens) == (ROOM, 2, 110)


# --- sessions of accounts

TEXT = output(1)
NAME = "cmpl-" + 32 * "a"


class Sessions:
    """A verifier's core that keeps earlier outputs, of which ALICE has one."""

    def __init__(self):
        self.cache = EarlierOutputs(ROOM)
        self.cache.add(ALICE, TEXT)
        self.target = Target(
            limits=TargetLimits(512, 50_000, frozenset({0})),
            costs=StepCosts(),
            slots=KVSlots(4, "whole", 0),
            n_batch=64,
            max_sessions=4,
            earlier=self.cache,
        )
        self.core = VerifierCore(self.target)
        self.clients = 0

    def open(self, account, *, cache_prompt=True):
        """Open a session whose text has begun as ALICE's output did."""
        params = SessionParams(SamplingParams(), 100, cache_prompt=cache_prompt)
        ids = tuple(TEXT[:40])
        self._ask(Request(None, ids[:20], params, id=NAME), account, ids=ids, n_prompt=20)
        return self

    def take_over(self, account):
        """Ask for the session by its name."""
        params = SessionParams(SamplingParams(), 100)
        request = Request(None, None, params, id=NAME, named_only=True)
        self._ask(request, account, ids=(), n_prompt=0)
        return self

    def _ask(self, request, account, **ids):
        self.clients += 1
        opening = vev.Opening(client=self.clients, request=request, account=account, **ids)
        self.core.handle(opening, 0.0)

    def drafts(self):
        """Return the drafts of its next step."""
        [session] = self.core.sessions()
        return session.verify().drafts

    def step(self, now):
        """Run one step, in which the target chooses the same id after each."""
        step = self.core.next_step(now)
        rows = []
        for span in step.spans:
            logits = np.zeros((len(span.ids), 50_000), np.float32)
            logits[:, 7] = 1
            rows.append(logits if span.logits else None)
        self.core.finish(step, rows, now, now + 0.01)

    def withholds(self, sessions):
        """Return the shut gates of its sources."""
        [session] = self.core.sessions()
        shut = self.target.speculations.shut(sessions)
        return session.draft_length.shut_gates(shut, sessions)

    def end(self):
        """Let the client leave; return the number of outputs that are kept then."""
        self.core.handle(vev.ClientLeft(self.clients), 0.0)
        assert not self.core.sessions()
        return self.cache.report().outputs


def test_a_session_is_drafted_from_its_accounts_outputs():
    assert Sessions().open(ALICE).drafts()[:3] == tuple(TEXT[40:43])


@pytest.mark.parametrize("account", [BOB, None])
def test_a_session_of_others_is_not(account):
    assert Sessions().open(account).drafts() == ()


@pytest.mark.parametrize(("account", "kept"), [(ALICE, 2), (BOB, 2), (None, 1)])
def test_the_text_of_an_accounts_session_is_kept(account, kept):
    assert Sessions().open(account).end() == kept


def test_a_session_that_wants_no_cache_has_no_drafts_of_it():
    assert Sessions().open(ALICE, cache_prompt=False).drafts() == ()


def test_a_session_that_wants_no_cache_leaves_nothing():
    assert Sessions().open(ALICE, cache_prompt=False).end() == 1


@pytest.mark.parametrize("sessions", [1, 2, 8])
def test_a_gate_that_one_account_has_shut_is_open_for_others(sessions):
    """Whose drafts pay would show in the drafts of others else."""
    verifier = Sessions()
    verifier.cache.of(ALICE).speculations.of("suffix", sessions).gate.open = False
    verifier.cache.add(BOB, TEXT)
    assert verifier.open(BOB).withholds(sessions) == []


@pytest.mark.parametrize("sessions", [1, 2, 8])
def test_a_gate_that_an_account_has_shut_is_shut_for_its_sessions(sessions):
    verifier = Sessions()
    gate = verifier.cache.of(ALICE).speculations.of("suffix", sessions).gate
    gate.open = False
    assert verifier.open(ALICE).withholds(sessions) == [gate]


def test_a_session_that_others_take_over_has_the_gates_of_all():
    verifier = Sessions()
    verifier.cache.of(ALICE).speculations.of("suffix", 1).gate.open = False
    assert verifier.open(ALICE).take_over(BOB).withholds(1) == []


@pytest.mark.parametrize("account", [ALICE, BOB])
def test_an_accounts_session_learns_nothing_for_the_gates_of_all(account):
    verifier = Sessions()
    verifier.target.speculations.of("suffix", 1).gate.open = False
    assert verifier.open(account).withholds(1) == []


def test_steps_open_the_gate_of_their_account_alone():
    verifier = Sessions()
    gates = [verifier.cache.of(ALICE).speculations, verifier.target.speculations]
    for speculations in gates:
        speculations.of("suffix", 1).gate.open = False
    verifier.open(ALICE)
    for number in range(24):
        verifier.step(number * 0.01)
    assert [each.of("suffix", 1).gate.open for each in gates] == [True, False]


def test_an_account_that_comes_back_has_its_drafts():
    assert Sessions().open(ALICE).take_over(ALICE).drafts()


@pytest.mark.parametrize("account", [BOB, None])
def test_whoever_takes_a_session_over_has_no_drafts_of_its_account(account):
    assert Sessions().open(ALICE).take_over(account).drafts() == ()


@pytest.mark.parametrize(("first", "second"), [(ALICE, BOB), (BOB, ALICE), (None, BOB)])
def test_a_text_of_two_accounts_is_kept_for_neither(first, second):
    assert Sessions().open(first).take_over(second).end() == 1


def test_a_text_that_has_changed_hands_stays_nobodys():
    assert Sessions().open(ALICE).take_over(BOB).take_over(ALICE).drafts() == ()
