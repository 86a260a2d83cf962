"""The verifier's clients: requests that wait, and clients that leave.

Whole requests are in tests/properties/test_verifier_clients.py and tests/contract/daemons.
"""

from dataclasses import replace
from itertools import pairwise

import pytest

from specmesh.core.requests import Failed, PromptRead, Reply, Request, Scored, Started
from specmesh.core.sampling.sampler import SamplingParams
from specmesh.core.session_params import SessionParams, TargetLimits
from specmesh.core.verifier import events as vev
from specmesh.core.verifier.clients import Clients
from specmesh.errors import Busy
from specmesh.wire.messages import FinishReason

PARAMS = SessionParams(SamplingParams(), 20)
REQUEST = Request(None, (1, 2, 3), PARAMS)
DRAFTER = b"mac"
BUSY = Busy("no")


def clients(most):
    """The clients of a verifier for one session, for which so many more may wait."""
    return Clients(TargetLimits(16, 256, frozenset()), 1, most)


def ask(made, text="text", client="client", owner=None, **fields):
    """Ask for a session; why there is none."""
    request = replace(Request(text, None, PARAMS), **fields)
    for effect in made.open(request, client, owner=owner):
        if isinstance(effect, Reply):
            return str(effect.event.error)
    return ""


def began(made, client, reading=None):
    event = vev.Began(
        session=7,
        prompt_ids=(1, 2),
        params=PARAMS,
        name="",
        opened=0.0,
        resumed=0,
        adopted=False,
        reading=reading,
    )
    return made.give(client, event)


# --- requests of one answer


def kinds(effects):
    return [type(effect) for effect in effects]


def test_requests_of_an_answer_find_room_together():
    made = clients(2)
    assert kinds(made.submit([(REQUEST, "a"), (REQUEST, "b"), (REQUEST, "c")], ())) == (
        [vev.Opening] * 3
    )


def test_none_of_an_answer_waits_if_one_finds_no_room():
    made = clients(2)
    made.open(REQUEST, "other")
    assert kinds(made.submit([(REQUEST, "a"), (REQUEST, "b"), (REQUEST, "c")], ())) == [Reply] * 3
    assert len(made.waiting) == 1


# --- clients that leave


@pytest.fixture
def some():
    """Four requests, of which a drafter's is the second; the third has a session."""
    made = clients(9)
    for client, owner in (("a", None), ("b", DRAFTER), ("a", None), ("c", None)):
        made.open(REQUEST, client, owner=owner)
    began(made, 3)
    return made


def test_a_client_of_a_drafter_that_has_gone_gets_nothing(some):
    some.abandon(DRAFTER)
    assert began(some, 2) == []


def test_the_core_hears_of_a_client_that_leaves(some):
    left = some.cancel(lambda request: request.client == "a")
    assert left == [vev.ClientLeft(1), vev.ClientLeft(3)]


def test_a_verifier_that_stops_refuses_the_requests_that_wait(some):
    """The core gets notice of each."""
    refused = [Reply(client, Failed(BUSY)) for client in ("a", "b", "c")]
    left = [vev.ClientLeft(number) for number in (1, 2, 4)]
    effects = some.stop(BUSY)
    assert len(effects) == 6
    assert all(effect in effects for effect in refused + left)


def test_a_verifier_that_stops_refuses_new_requests(some):
    some.stop(BUSY)
    assert some.open(REQUEST, "d") == [Reply("d", Failed(BUSY))]


def test_a_session_that_is_left_at_the_end_fails(some):
    some.stop(BUSY)
    assert some.end(BUSY) == [Reply("a", Failed(BUSY))]


# --- requests that wait


def test_requests_for_texts_by_their_names_take_no_place():
    made = clients(1)
    for number in range(9):
        ask(made, owner=DRAFTER, id=f"{number}", named_only=True)
    assert [bool(ask(made)) for _ in range(3)] == [False, False, True]


def test_a_request_for_a_text_by_its_name_begins_nothing():
    """Nobody has checked its ids."""
    request = Request("", (999,), PARAMS, id="name", named_only=True)
    [opening] = clients(1).open(request, "client", owner=DRAFTER, ref=1)
    assert opening.ids == ()


BIG = "x" * 2**24


def test_big_requests_are_refused_before_the_queue_is_full():
    made = clients(256)
    refusals = [ask(made, BIG) for _ in range(100)]
    taken = refusals.count("")
    assert f"the {taken} requests that wait take" in refusals[-1]


def test_beside_big_requests_a_small_one_may_wait():
    made = clients(256)
    while not ask(made, BIG):
        pass
    assert ask(made, "") == ""


def test_beside_a_request_that_takes_all_memory_none_may_wait():
    made = clients(256)
    ask(made, BIG * 9)
    assert ask(made, "")


# --- prompts that are being read


READ = PromptRead(6000, 0, 512, 1.0)


@pytest.fixture
def reading():
    """Clients of which one, number 1, has just got a report about its prompt."""
    made = clients(9)
    made.open(REQUEST, "client")
    began(made, 1)
    assert made.give(1, READ) == [Reply("client", READ)]
    made.repeat(10.0)
    return made


def test_a_report_is_repeated_while_a_step_goes_on(reading):
    found = []
    for tenths in range(1, 31):
        now = 10 + tenths / 10
        found += [(now, reply.event) for reply in reading.repeat(now)]
    times = [10.0] + [now for now, _ in found]
    assert all(0.75 <= after - before <= 1 for before, after in pairwise(times))
    assert len(found) == 3
    for now, report in found:
        assert report == READ._replace(seconds=1.0 + now - 10.0)


def test_a_first_step_that_takes_long_has_reports_of_the_beginning():
    made = clients(9)
    made.open(REQUEST, "client")
    [reply] = began(made, 1, PromptRead(6000, 100, 100, 0.0))
    assert isinstance(reply.event, Started)
    assert made.repeat(10.0) == []
    [reply] = made.repeat(10.75)
    assert reply.event == PromptRead(6000, 100, 100, 0.75)


def test_a_new_report_takes_the_place_of_the_last(reading):
    later = READ._replace(processed=1024, seconds=2.0)
    reading.give(1, later)
    reading.repeat(11.0)
    [reply] = reading.repeat(12.0)
    assert reply.event == later._replace(seconds=3.0)


ENDED = vev.SessionEnded(
    session=7, reason=FinishReason.CANCELLED, error=None, prompt_ids=(1, 2), report={}, seconds=1.0
)


@pytest.mark.parametrize("news", [Scored(()), ENDED])
def test_nothing_is_repeated_once_the_prompt_is_read_or_given_up(reading, news):
    reading.give(1, news)
    assert reading.repeat(20.0) == []


@pytest.fixture
def gone():
    """Clients of which one, number 1, has got a report about its prompt and gone."""
    made = clients(9)
    made.open(REQUEST, "client", owner=DRAFTER)
    began(made, 1)
    made.give(1, READ)
    made.abandon(DRAFTER)
    return made


def test_no_report_is_repeated_for_a_client_that_has_gone(gone):
    assert [gone.repeat(now) for now in (20.0, 21.0)] == [[], []]


def test_a_client_that_has_gone_gets_no_report(gone):
    assert gone.give(1, READ) == []
    assert [gone.repeat(now) for now in (20.0, 21.0)] == [[], []]
