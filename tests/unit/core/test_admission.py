"""Admission: requests that begin, requests that wait, and short ones in a place of their own."""

import itertools
from unittest.mock import Mock

import pytest

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
PROMPT = (1, 2, 3)
FULL = "all places are taken"


def opening(number, tenant, max_tokens=500, ids=PROMPT):
    params = SessionParams(SamplingParams(), max_tokens)
    request = Request(None, tuple(ids), params)
    return vev.Opening(
        client=number, request=request, ids=tuple(ids), n_prompt=len(ids), tenant=tenant
    )


class Verifier:
    """Sessions that run, and requests that wait for one."""

    def __init__(self, max_sessions, guests=0):
        self.waiting = WaitingRequests(max_sessions, guests)
        self.running = []
        self._numbers = itertools.count(1)

    def ask(self, tenant, count=1, **how):
        for _ in range(count):
            self.waiting.openings.append(opening(next(self._numbers), tenant, **how))

    def admit(self):
        """Begin the requests that can begin; return their tenants in order."""
        begun = []
        while (found := self.waiting.next(self.running)) is not None:
            admitted, guest = found
            context = SessionContext(
                session=Mock(),
                client=admitted.client,
                owner=None,
                tenant=admitted.tenant,
                guest=guest,
            )
            self.running.append(context)
            begun.append(admitted.tenant)
        return begun

    def end(self, tenant):
        self.running.remove(next(live for live in self.running if live.tenant == tenant))


def test_one_tenant_leaves_a_quarter_to_others():
    verifier = Verifier(8)
    verifier.ask(ALICE, 8)
    assert len(verifier.admit()) == most_sessions(8) == 6
    verifier.ask(BOB)
    assert verifier.admit() == [BOB]


def test_of_fewer_than_four_sessions_one_tenant_gets_all():
    verifier = Verifier(3)
    verifier.ask(ALICE, 8)
    assert len(verifier.admit()) == 3


def test_requests_without_a_tenant_get_all():
    verifier = Verifier(8)
    verifier.ask((), 9)
    assert len(verifier.admit()) == 8


def test_the_tenant_with_the_fewest_sessions_is_next():
    verifier = Verifier(4)
    verifier.ask(ALICE, 20)
    verifier.ask(BOB, 1)
    verifier.ask(CAROL, 1)
    assert verifier.admit() == [ALICE, BOB, CAROL, ALICE]
    verifier.ask(CAROL, 2)
    verifier.end(ALICE)
    verifier.end(BOB)
    assert verifier.admit() == [CAROL, ALICE]  # both have one, and Alice's last turn was later
    verifier.end(ALICE)
    verifier.end(ALICE)
    assert verifier.admit() == [ALICE, ALICE]  # Carol has two


def test_tenants_take_turns_at_one_session():
    verifier, order = Verifier(1), []
    verifier.ask(ALICE, 4)
    verifier.ask(BOB, 2)
    for _ in range(6):
        order += verifier.admit()
        verifier.running.clear()
    assert order == [ALICE, BOB, ALICE, BOB, ALICE, ALICE]


def test_a_key_with_many_connections_is_one_tenant():
    verifier = Verifier(8)
    for connection in range(8):
        verifier.ask(("key", connection))
    assert len(verifier.admit()) == 6


def test_connections_of_a_key_take_turns():
    verifier, order = Verifier(1), []
    verifier.ask(("key", 1), 3)
    verifier.ask(("key", 2), 1)
    for _ in range(4):
        order += verifier.admit()
        verifier.running.clear()
    assert order == [("key", 1), ("key", 2), ("key", 1), ("key", 1)]


def test_a_short_text_does_not_wait_for_long_ones():
    verifier = Verifier(2, guests=2)
    verifier.ask(ALICE, 3)
    assert verifier.admit() == [ALICE, ALICE]
    verifier.ask(BOB, 1, max_tokens=16)
    assert verifier.admit() == [BOB]
    assert [live.guest for live in verifier.running] == [False, False, True]


def test_a_shorter_one_does_not_wait_for_a_short_one():
    verifier = Verifier(1, guests=2)
    verifier.ask(ALICE)
    verifier.ask(BOB, 2, max_tokens=16)
    assert verifier.admit() == [ALICE, BOB]
    verifier.ask(CAROL, 2, max_tokens=2)
    assert verifier.admit() == [CAROL]


@pytest.mark.parametrize(
    ("max_tokens", "prompt"), [(17, 3), (2**31 - 1, 3), (1, GUEST_IDS), (16, GUEST_IDS - 24)]
)
def test_a_request_that_is_not_short_waits(max_tokens, prompt):
    verifier = Verifier(1, guests=1)
    verifier.ask(ALICE)
    verifier.admit()
    verifier.waiting.openings.append(opening(9, BOB, max_tokens, range(prompt)))
    assert verifier.admit() == []


def test_the_rest_of_a_resumed_text_may_be_short():
    verifier = Verifier(1, guests=1)
    verifier.ask(ALICE)
    verifier.admit()
    params = SessionParams(SamplingParams(), 100)
    ids = tuple(range(93))
    request = Request(None, ids[:3], params, generated=ids[3:])
    verifier.waiting.openings.append(
        vev.Opening(client=9, request=request, ids=ids, n_prompt=3, tenant=BOB)
    )
    assert verifier.admit() == [BOB]


def test_a_tenants_share_has_no_guests_beside():
    verifier = Verifier(4, guests=1)
    verifier.ask(ALICE, 3)
    verifier.ask(BOB, 1)
    assert len(verifier.admit()) == 4
    verifier.ask(ALICE, 1, max_tokens=1)
    assert verifier.admit() == []


# --- requests that wait


def filled(*counts, size=1):
    room = WaitingRoom()
    for tenant, count in counts:
        for _ in range(count):
            room.enter(tenant, size)
    return room


def test_a_tenant_with_many_requests_leaves_a_quarter_of_the_places():
    room = filled((ALICE, 191))
    room.check(ALICE, 1, 256, FULL)
    room.enter(ALICE, 1)
    with pytest.raises(Busy, match=FULL):
        room.check(ALICE, 1, 256, FULL)
    room.check(BOB, 1, 256, FULL)


def test_the_last_quarter_is_for_those_with_few():
    room = filled((ALICE, 192), (BOB, 7))
    room.check(BOB, 1, 256, FULL)
    room.enter(BOB, 1)
    with pytest.raises(Busy, match=FULL):
        room.check(BOB, 1, 256, FULL)


def test_beyond_the_places_nobody_waits():
    with pytest.raises(Busy, match=FULL):
        filled(*(((number,), 1) for number in range(4))).check(BOB, 1, 4, FULL)


def test_a_request_that_leaves_makes_room():
    room = filled((ALICE, 192))
    room.leave(ALICE, 1)
    room.check(ALICE, 1, 256, FULL)


def test_bytes_are_shared_as_places_are():
    room = filled((ALICE, 3), size=MAX_BYTES // 4)
    with pytest.raises(Busy, match="take 48 MB"):
        room.check(ALICE, MAX_BYTES // 4, 256, FULL)
    room.check(BOB, MAX_BYTES // 4, 256, FULL)


def test_the_only_request_may_be_of_any_size():
    WaitingRoom().check(ALICE, 2 * MAX_BYTES, 256, FULL)
