"""A drafter with several verifiers: the one that has a text, and the one that goes on with it.

A verifier with several drafters.
"""

from dataclasses import replace

import pytest
from harness.loops import PROMPT, Flaky, ask_for, request, truth, until
from harness.ports import free_address
from harness.tables import cases
from named_texts import Told, asked, back, wanted

from specmesh.core.vocabulary.vocabulary import Vocabulary, chunk
from specmesh.engines.sim import SimDrafter, SimSettings
from specmesh.errors import Busy, NoSuchText, RequestError
from specmesh.wire import messages as m

FILE = "f" * 64
"""The hash of the model file of both."""


def shown(drafter, name):
    """Return a value of each verifier in /stats."""
    return [verifier[name] for verifier in drafter.stats()["verifiers"]]


class Two:
    """A drafter with two scripted verifiers, a and b, which have welcomed it.

    A is the first in the settings.
    """

    def __init__(self, bench, **b):
        self.a = bench.router()
        other = free_address()
        self.b = bench.router(other)
        self.drafter = bench.drafter(addresses=(bench.address, other))
        self.a.welcomes(verifier="a", model_hash=FILE)
        self.b.welcomes(**({"verifier": "b", "model_hash": FILE} | b))
        until(lambda: None not in shown(self.drafter, "vocabulary"), "both are there")

    def ask(self, **changes):
        return self.drafter.ask(replace(asked(), **changes))

    def begun(self, router):
        client = self.ask()
        Told(router).more(7)
        client.heard(7)
        return client

    def refuse(self, router, code="busy"):
        """This verifier is asked, and refuses."""
        router.say(m.Error(code, "no", router.expect(m.Open).ref))

    def serve(self, router, client):
        """Check that this verifier is asked, and send the rest of the text."""
        Told(router).rest()
        client.whole(20)


# --- which one


def test_a_text_goes_to_the_better_one(bench):
    """Their load decides; the next one goes elsewhere, once that has enough to do."""
    two = Two(bench)
    two.a.ping(77, max_sessions=1, sessions=1, queued=2, step_ms=10.0)
    two.b.ping(77, max_sessions=2, sessions=0, step_ms=12.0)
    two.serve(two.b, two.ask())
    two.b.ping(77, max_sessions=2, sessions=2, queued=9, step_ms=12.0)
    two.serve(two.a, two.ask(id="cmpl-" + 32 * "b"))


def test_a_busy_one_is_avoided(bench):
    """A verifier that refuses for now is not waited for if another accepts.

    If none does, the client gets the refusal.
    """
    two = Two(bench)
    client = two.ask()
    two.refuse(two.a)
    two.serve(two.b, client)
    refused = two.ask(id="cmpl-" + 32 * "b")
    two.refuse(two.a)
    two.refuse(two.b)
    assert isinstance(refused.error(), Busy)


@pytest.mark.parametrize("code", ["request", "context"])
def test_a_bad_request_is_bad_elsewhere(bench, code):
    """It is refused at once, unless it is too long: another verifier may have a longer context."""
    two = Two(bench)
    client = two.ask()
    two.refuse(two.a, code)
    if code == "context":
        two.serve(two.b, client)
    else:
        assert isinstance(client.error(), RequestError)


def test_a_text_by_its_name_is_looked_for_everywhere(bench):
    """Only one of them has it; that nobody has it is known once all were asked."""
    two = Two(bench)
    for has in (True, False):
        client = two.drafter.ask(wanted())
        two.refuse(two.a, "session")
        if has:
            two.serve(two.b, client)
        else:
            two.refuse(two.b, "session")
            assert isinstance(client.error(), NoSuchText)


# --- where it goes on


@cases("other", '{"model_hash": ""} {"model_hash": "e"} {"n_ctx": 64}')
def test_another_file_does_not_go_on(bench, other):
    """Of the same name even: two files may have it.

    Nor does one whose shorter context would end the text earlier.
    """
    two = Two(bench, **other)
    client = two.begun(two.a)
    back(two.a, model_hash=FILE)
    two.serve(two.a, client)


def test_a_refusal_elsewhere_is_not_the_end(bench):
    """Another that will not have the text is no reason to give it up: its own may come back."""
    two = Two(bench)
    client = two.begun(two.a)
    two.a.say(m.Bye())
    two.refuse(two.b, "request")
    two.a.welcomes(verifier="c", model_hash=FILE)
    while not isinstance(order := two.a.on_event(0.1), m.Open):
        again = two.b.on_event(0.1)  # it may be asked until the other is back
        if isinstance(again, m.Open):
            two.b.say(m.Error("request", "no", again.ref))
    Told(two.a, order).rest()
    client.whole(20)


# --- the verifiers themselves


class Foreign(SimDrafter):
    def __init__(self):
        super().__init__(SimSettings())
        self.vocabulary = Vocabulary((b"\xff",) * 256, frozenset())


THEIRS = Flaky().vocabulary
ODD = Foreign().vocabulary
SUITS = {"vocab_fingerprint": ODD.fingerprint(), "end_ids": []}


def foreign(router):
    """Welcome a drafter that cannot draft in this vocabulary, and send it."""
    router.welcomes()
    router.expect(m.Vocab)
    router.say(m.Vocab(0, chunk(THEIRS, 0)))


@pytest.mark.fault("E7.78")
def test_a_verifier_that_does_not_suit(bench):
    """Nothing is drafted for it, which it learns; clients are served all the same, and stats have
    the reason.
    """
    router = bench.router()
    drafter = bench.drafter(Foreign())
    foreign(router)
    drafter.joins()
    [why] = shown(drafter, "no_drafts")
    assert "Draft with a model of the same family" in why
    assert shown(drafter, "refusal") == [None]
    while router.expect(m.Ping).no_drafts != "vocabulary":
        pass
    client = drafter.ask(request())
    Told(router).rest()
    client.whole(20)


@pytest.mark.fault("E7.78")
def test_a_verifier_comes_to_suit(bench):
    """It comes back with another model, then with the first, and again: each time it is looked
    at, and asked once."""
    router = bench.router()
    drafter = bench.drafter(Foreign())
    foreign(router)
    for number in range(2):
        until(lambda: shown(drafter, "no_drafts")[0], "it does not suit")
        back(router, verifier=f"good {number}", **SUITS)
        until(lambda: not shown(drafter, "no_drafts")[0], "it suits")
        router.opens(5, (1, 2, 3))
        assert router.expect(m.Draft).session == 5
        back(router, verifier=f"bad {number}")
    until(lambda: shown(drafter, "no_drafts")[0], "it does not suit again")
    while not isinstance(said := router.on_event(), m.Ping):
        assert not isinstance(said, m.Vocab), "it is asked for again"
    assert bench.errors.empty()


def test_one_of_two_does_not_suit(bench):
    """Requests go to the one that is drafted for, although it is the second."""
    other = free_address()
    first = bench.router()
    second = bench.router(other)
    drafter = bench.drafter(Foreign(), addresses=(bench.address, other))
    foreign(first)
    second.welcomes(verifier="w", **SUITS)
    until(lambda: None not in shown(drafter, "vocabulary"), "both are known")
    unsuited, suited = shown(drafter, "no_drafts")
    assert unsuited
    assert not suited
    client = drafter.ask(request(20, None))
    assert second.expect(m.Open).options["max_tokens"] == 20
    drafter.cancel(client)
    second.expect(m.Close)


@pytest.mark.parametrize("owner", ["verifier", "drafter"])
def test_a_drafter_that_drafts_nothing(bench, owner):
    """Sessions of others do not go to it; its own client's has no drafts, and none are asked
    for."""
    verifier = bench.verifier()
    mute = bench.dealer()
    mute.no_drafts = "vocabulary"
    mute.say(m.Ping(1, no_drafts=mute.no_drafts))
    until(lambda: verifier.stats()["peers"][0]["no_drafts"] == "vocabulary", "it is known")
    if owner == "verifier":
        verifier.ask(request(50)).whole(50)
        mute.say(m.Ping(2, no_drafts=mute.no_drafts))
        while not (isinstance(said := mute.on_event(), m.Pong) and said.number == 2):
            assert not isinstance(said, m.Opened)
    else:
        mute.say(replace(ask_for(1, ids=PROMPT, max_tokens=50), options={"max_tokens": 50}))
        for _ in range(20):
            assert mute.expect(m.Truth).draft_n == 0
    mute.no_drafts = ""
    mute.say(m.Ping(3))
    until(lambda: verifier.stats()["peers"][0]["no_drafts"] is None, "it drafts again")
    client = verifier.ask(request(2000, 4))
    session = mute.expect(m.Opened).session
    while (truth := mute.expect(m.Truth)).session != session:
        pass
    assert truth.draft_n == 4
    verifier.cancel(client)


def test_a_session_leaves_a_drafter_that_drafts_no_more(bench):
    """It gets notice, and another one drafts."""
    verifier = bench.verifier()
    first = bench.dealer()
    client = verifier.ask(LONG)
    session = first.expect(m.Opened).session
    second = bench.dealer()
    first.say(m.Ping(1, no_drafts="vocabulary"))
    done = first.expect(m.Done)
    assert (done.session, done.finish_reason) == (session, "moved")
    assert second.expect(m.Opened).session == session
    verifier.cancel(client)


def test_what_a_verifier_tells_a_drafter(bench):
    """Its load, with PONG."""
    verifier = bench.verifier(Flaky(max_sessions=3, step_ms=2))
    peer = bench.dealer()
    client = verifier.ask(request(8000))
    client.next()
    told = peer.ping(5)
    assert (told.sessions, told.queued, told.max_sessions) == (1, 0, 3)
    verifier.cancel(client)


LONG = request(8000, None)


def drafting(verifier, what="sessions"):
    return [peer[what] for peer in verifier.stats()["peers"]]


def test_a_session_ends_up_with_the_best(bench):
    """The second, better drafter is tried and kept; when it goes the first one drafts.

    The text is the target's own.
    """
    verifier = bench.verifier(Flaky(step_ms=20, row_ms=1))
    bench.drafter(SimDrafter(SimSettings(draft_ms=2.5, alpha=0.1)))
    until(lambda: len(drafting(verifier)) == 1, "the first is attached")
    good = bench.drafter(SimDrafter(SimSettings(draft_ms=2.5, alpha=0.95)))
    until(lambda: len(drafting(verifier)) == 2, "both are attached")
    client = verifier.ask(LONG)
    until(lambda: drafting(verifier) == [0, 1], "the better one drafts")
    until(lambda: None not in drafting(verifier, "promised_tokens_per_second"), "both are measured")
    first, second = drafting(verifier, "promised_tokens_per_second")
    assert first < second
    bench.end(good)
    until(lambda: drafting(verifier) == [1], "the other one drafts again")
    while not client.empty():
        client.next()
    client.heard(len(client.ids) + 40)
    verifier.cancel(client)
    assert client.ids == truth(len(client.ids))


def test_a_drafter_that_says_nothing_is_not_kept_on_trial(bench):
    """It gets notice that the session has moved, and the next one is tried."""
    verifier = bench.verifier(Flaky(step_ms=20))
    bench.drafter(SimDrafter(SimSettings(draft_ms=0.5, alpha=0.5)))
    until(lambda: len(drafting(verifier)) == 1, "the first is attached")
    client = verifier.ask(LONG)
    until(lambda: drafting(verifier) == [1], "it drafts")
    mute = bench.dealer()
    mute.expect(m.Opened)
    done = mute.expect(m.Done)
    assert done.finish_reason == "moved"
    until(lambda: drafting(verifier) == [1, 0], "the first drafts again")
    verifier.cancel(client)


def test_sessions_are_shared_out(bench):
    verifier = bench.verifier(Flaky(step_ms=20))
    for _ in range(2):
        bench.dealer()
    clients = [verifier.ask(LONG) for _ in range(4)]
    until(lambda: drafting(verifier) == [2, 2], "each has two")
    for client in clients:
        verifier.cancel(client)
