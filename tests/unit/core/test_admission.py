"""Admission: requests that begin, requests that wait, and short ones in a place of their own."""

from unittest.mock import Mock

import pytest
from harness.tables import cases

from specmesh.core.kv_slots import GUEST_IDS
from specmesh.core.requests import Request
from specmesh.core.sampling.sampler import SamplingParams
from specmesh.core.session_params import SessionParams
from specmesh.core.verifier import events as vev
from specmesh.core.verifier.admission import MAX_BYTES, WaitingRequests, WaitingRoom, most_sessions
from specmesh.core.verifier.session_context import SessionContext
from specmesh.errors import Busy

ALICE = ("alice",)
BOB = ("bob",)
CAROL = ("carol",)
FULL = "all places are taken"


def opening(tenant, max_tokens=500, prompt=3, said=0):
    """Return a request with a prompt of so many ids, and perhaps the beginning of its text."""
    request = Request(None, None, SessionParams(SamplingParams(), max_tokens))
    ids = tuple(range(prompt + said))
    return vev.Opening(client=1, request=request, ids=ids, n_prompt=prompt, tenant=tenant)


class Verifier:
    """Sessions that run, and requests that wait for one; at first those of some tenants."""

    def __init__(self, max_sessions, *tenants, guests=0):
        self.waiting = WaitingRequests(max_sessions, guests)
        self.running = []
        for tenant in tenants:
            self.ask(tenant)

    def ask(self, tenant, **how):
        self.waiting.openings.append(opening(tenant, **how))

    def admit(self):
        """Begin the requests that can begin; return their tenants in order."""
        begun = []
        while (found := self.waiting.next(self.running)) is not None:
            admitted, guest = found
            context = SessionContext(session=Mock(), client=1, owner=None, guest=guest)
            context.tenant = admitted.tenant
            self.running.append(context)
            begun.append(admitted.tenant)
        return begun

    def admit_in_turn(self, count):
        """Return the tenants of so many sessions, of which each ends before the next begins."""
        order = []
        for _ in range(count):
            order += self.admit()
            self.running.clear()
        return order

    def end(self, tenant):
        self.running.remove(next(live for live in self.running if live.tenant == tenant))


def test_one_tenant_leaves_a_quarter_to_others():
    verifier = Verifier(8, *[ALICE] * 8)
    assert len(verifier.admit()) == most_sessions(8) == 6
    verifier.ask(BOB)
    assert verifier.admit() == [BOB]


def test_of_fewer_than_four_sessions_one_tenant_gets_all():
    assert len(Verifier(3, *[ALICE] * 8).admit()) == 3


def test_requests_without_a_tenant_get_all():
    assert len(Verifier(8, *[()] * 9).admit()) == 8


def test_the_tenant_with_the_fewest_sessions_is_next():
    verifier = Verifier(4, *[ALICE] * 20, BOB, CAROL)
    assert verifier.admit() == [ALICE, BOB, CAROL, ALICE]
    verifier.ask(CAROL)
    verifier.ask(CAROL)
    verifier.end(ALICE)
    verifier.end(BOB)
    assert verifier.admit() == [CAROL, ALICE]  # both have one, and Alice's last turn was later
    verifier.end(ALICE)
    verifier.end(ALICE)
    assert verifier.admit() == [ALICE, ALICE]  # Carol has two


def test_tenants_take_turns_at_one_session():
    verifier = Verifier(1, *[ALICE] * 4, BOB, BOB)
    assert verifier.admit_in_turn(6) == [ALICE, BOB, ALICE, BOB, ALICE, ALICE]


def test_connections_of_a_key_take_turns():
    first, second = ("key", 1), ("key", 2)
    verifier = Verifier(1, first, first, first, second)
    assert verifier.admit_in_turn(4) == [first, second, first, first]


def test_a_shorter_one_does_not_wait_for_a_short_one():
    verifier = Verifier(1, ALICE, guests=2)
    verifier.ask(BOB, max_tokens=16)
    verifier.ask(BOB, max_tokens=16)
    assert verifier.admit() == [ALICE, BOB]
    verifier.ask(CAROL, max_tokens=2)
    verifier.ask(CAROL, max_tokens=2)
    assert verifier.admit() == [CAROL]


@cases(
    "max_tokens, prompt",
    "[17, 3] [2147483647, 3] [1, $ALL] [16, $MOST]",
    ALL=GUEST_IDS,
    MOST=GUEST_IDS - 24,
)
def test_a_request_that_is_not_short_waits(max_tokens, prompt):
    verifier = Verifier(1, ALICE, guests=1)
    verifier.admit()
    verifier.ask(BOB, max_tokens=max_tokens, prompt=prompt)
    assert verifier.admit() == []


def test_the_rest_of_a_resumed_text_may_be_short():
    verifier = Verifier(1, ALICE, guests=1)
    verifier.admit()
    verifier.ask(BOB, max_tokens=100, said=90)
    assert verifier.admit() == [BOB]


def test_a_tenants_share_has_no_guests_beside():
    verifier = Verifier(4, ALICE, ALICE, ALICE, BOB, guests=1)
    assert len(verifier.admit()) == 4
    verifier.ask(ALICE, max_tokens=1)
    assert verifier.admit() == []


# --- requests that wait


def filled(*tenants, size=1):
    room = WaitingRoom()
    for tenant in tenants:
        room.enter(tenant, size)
    return room


def is_full(room, tenant):
    try:
        room.check(tenant, 1, 256, FULL)
    except Busy as refusal:
        return FULL in str(refusal)
    return False


def test_a_tenant_with_many_requests_leaves_a_quarter_of_the_places():
    assert not is_full(filled(*[ALICE] * 191), ALICE)
    room = filled(*[ALICE] * 192)
    assert (is_full(room, ALICE), is_full(room, BOB)) == (True, False)
    room.leave(ALICE, 1)
    assert not is_full(room, ALICE)


def test_the_last_quarter_is_for_those_with_few():
    room = filled(*[ALICE] * 192, *[BOB] * 7)
    assert not is_full(room, BOB)
    room.enter(BOB, 1)
    assert is_full(room, BOB)


def test_beyond_the_places_nobody_waits():
    others = zip(range(256))  # tenants with one request each
    assert is_full(filled(*others), BOB)


def test_bytes_are_shared_as_places_are():
    room = filled(ALICE, ALICE, ALICE, size=MAX_BYTES // 4)
    with pytest.raises(Busy, match="take 48 MB"):
        room.check(ALICE, MAX_BYTES // 4, 256, FULL)
    room.check(BOB, MAX_BYTES // 4, 256, FULL)


def test_the_only_request_may_be_of_any_size():
    WaitingRoom().check(ALICE, 2 * MAX_BYTES, 256, FULL)
