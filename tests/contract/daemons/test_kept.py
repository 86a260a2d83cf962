"""Sessions that a verifier keeps of a side that goes away: each text stays the same.

Sessions leave ids in memory, at both daemons; later ones only gain time by it.
"""

from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest
import zmq
from harness.loops import PROMPT, Flaky, request, truth, until, welcome, welcomed
from named_texts import LONG, NAME, back, by_name, followed, kept, named, sessions, slow, wanted

from specmesh.core.requests import Finished
from specmesh.core.verifier.admission import KeptSessions
from specmesh.core.verifier.session_context import SessionContext
from specmesh.daemons.link.sockets import Router
from specmesh.errors import RequestError
from specmesh.wire import messages as m


def test_a_session_is_given_to_who_names_it(bench):
    """It goes on after its drafter's BYE, and another that names it gets all of it once."""
    verifier = bench.verifier(slow())
    first = bench.dealer()
    first.say(named(1))
    session = first.expect(m.Opened).session
    first.expect(m.Truth)
    first.say(m.Bye())
    kept(verifier)
    second = bench.dealer()
    second.say(by_name(7))
    opened, ids, done = followed(second)
    assert (opened.session, opened.ref) == (session, 7)
    assert (opened.prompt_tokens, opened.options["max_tokens"]) == (len(PROMPT), 200)
    assert ids == [*PROMPT, *truth(200)]
    assert (done.finish_reason, done.report["generated_tokens"]) == ("length", 200)
    second.say(m.Close(session))
    kept(verifier, 0)
    assert (sessions(verifier)["opened"], sessions(verifier)["resumed"]) == (1, 1)


@pytest.mark.parametrize("heard", [False, True], ids=["ended while away", "DONE was not answered"])
def test_an_end_that_nobody_heard_is_kept(bench, heard):
    """Everyone that names it gets the whole text and its report, until it is closed."""
    verifier = bench.verifier(slow())
    first = bench.dealer()
    first.say(named(1, max_tokens=30))
    session = first.expect(m.Done if heard else m.Truth).session
    first.say(m.Bye())
    until(lambda: sessions(verifier)["live"] == 0, "it ends")
    kept(verifier)
    for ref in (2, 3):
        bench.dealer().say(m.Close(session))  # somebody else's, which closes nothing
        peer = bench.dealer()
        peer.say(by_name(ref))
        opened, ids, done = followed(peer)
        assert ids == [*PROMPT, *truth(30)]
        assert (done.finish_reason, done.report["generated_tokens"]) == ("length", 30)
    peer.say(m.Close(opened.session))
    kept(verifier, 0)


@pytest.mark.parametrize("name", [NAME, ""])
def test_what_is_not_kept(bench, name):
    """A session that is closed: its client has left.

    One without a name, with which nobody could ask for it.
    """
    verifier = bench.verifier(slow())
    peer = bench.dealer()
    peer.say(named(1, name, max_tokens=LONG))
    session = peer.expect(m.Opened).session
    if name:
        peer.say(m.Close(session))
    peer.say(m.Bye())
    until(lambda: sessions(verifier)["ended"]["cancelled"] == 1, "it is cancelled")
    assert sessions(verifier)["kept"] == 0


def test_the_newer_of_two_has_it(bench, role):
    """The older one gets notice of it, and its leaving then ends nothing."""
    engine = slow()
    verifier = bench.verifier(engine)
    old = bench.dealer()
    count = 2000
    old.say(named(1, max_tokens=count))
    old.expect(m.Truth)
    if role == "verifier":
        client = verifier.ask(wanted())
    else:
        new = bench.dealer()
        new.say(by_name(5))
    done = old.expect(m.Done)
    assert done.finish_reason == "moved"
    old.say(m.Close(done.session))
    old.ping(1)
    old.say(m.Bye())
    engine.pace(0)
    if role == "drafter":
        assert followed(new)[1] == [*PROMPT, *truth(count)]
        return
    newest = verifier.ask(wanted())
    assert isinstance(client.error(), RequestError)
    verifier.cancel(client)
    newest.whole(count)


def test_the_same_drafter_asks_again(bench):
    """OPENED with the number that it knows replaces the session that it has; no DONE is between."""
    engine = slow()
    bench.verifier(engine)
    peer = bench.dealer()
    peer.say(named(1, max_tokens=2000))
    session = peer.expect(m.Opened).session
    peer.say(by_name(2))
    again = peer.expect(m.Opened, m.Done)
    assert (type(again), again.session, again.ref) == (m.Opened, session, 2)
    engine.pace(0)
    assert peer.expect(m.Done).finish_reason == "length"


def test_whoever_is_there_goes_before_whoever_left(bench):
    """A kept session gives up its place if all are taken; one with a client does not."""
    verifier = bench.verifier(slow(max_sessions=1))
    peer = bench.dealer()
    peer.say(named(1, max_tokens=LONG))
    peer.expect(m.Truth)
    peer.say(m.Bye())
    kept(verifier)
    verifier.ask(request(20)).whole(20)
    assert sessions(verifier)["kept"] == 0


FULL = named(3, said=(65,) * (8192 - len(PROMPT)))
IMPOSSIBLE = {
    "more prompt than ids": replace(named(3), n_prompt=len(PROMPT) + 1),
    "foreign id": named(3, said=(256,)),
    "beyond the context": replace(FULL, ids=[*FULL.ids, 65]),
    "prompt too long": replace(FULL, n_prompt=8192),
}


@pytest.mark.parametrize("order", IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_texts_that_cannot_be_are_refused(bench, order):
    verifier = bench.verifier()
    peer = bench.dealer()
    peer.say(order)
    error = peer.expect(m.Error, m.Opened)
    assert (type(error), error.ref) == (m.Error, 3)
    assert error.code == ("context" if order.n_prompt == 8192 else "request")
    assert (sessions(verifier)["live"], sessions(verifier)["kept"]) == (0, 0)


def test_a_session_belongs_to_the_key_that_opened_it(bench, monkeypatch):
    """Another key has neither it nor a session of that name.

    Its own has it, and so has the verifier's own client.
    """

    def one_per_connection(router):
        return f"key {router.inlet.known(zmq.SRCFD)}"

    monkeypatch.setattr(Router, "proved_key", one_per_connection)
    verifier = bench.verifier(slow())
    first = bench.dealer()
    first.say(named(1))
    first.expect(m.Truth)
    stranger = bench.dealer()
    stranger.say(by_name(2), named(3, said=truth(3)))
    assert {stranger.expect(m.Error).ref for _ in range(2)} == {2, 3}
    first.say(by_name(4))
    assert first.expect(m.Opened).ref == 4
    assert isinstance(verifier.ask(wanted()).end(), Finished)


def test_kept_sessions_are_bounded():
    store = KeptSessions(30.0)
    for number in range(1000):
        session = SimpleNamespace(id=number)
        store.add(SessionContext(session=session, client=None, owner=None), float(number))
    excess = store.expire(5.0)
    assert 900 < len(excess) < 1000, "so few are kept that they take no memory to speak of"
    excess += store.expire(9000.0)
    assert [live.id for live in excess] == list(range(1000))
    assert len(store) == 0


SYSTEM = tuple(b"You answer in verse, and never in prose. ")


class Counting(Flaky):
    rows = 0

    def decode(self, spans):
        self.rows += sum(len(span.ids) for span in spans)
        return super().decode(spans)


def prefix_cache(running):
    return running.stats()["prefix_cache"]


def test_turns_of_a_chat(bench, role):
    """Each turn finds all of the one before but its last id, and its text stays the same."""
    engine = Counting()
    verifier, drafter = bench.pair(engine)
    ids = SYSTEM
    found = 0
    counts = Counter()
    for turn in range(4):
        ids += tuple(b"\nAnd then? %d" % turn)
        client = (verifier if role == "verifier" else drafter).ask(request(ids=ids))
        end = client.whole(20, ids)
        assert end.report["cached_tokens"] == found
        for name in ("generated_tokens", "drafted", "accepted"):
            counts[name] += end.report[name]
        ids += tuple(client.ids)
        found = len(ids) - 1
    assert counts.items() <= verifier.stats()["totals"].items()
    assert engine.rows < len(ids) + 4 * 20 * 5
    assert prefix_cache(verifier)["hits"] == 3
    assert prefix_cache(verifier)["tokens_saved"] > 3 * len(SYSTEM)
    assert prefix_cache(verifier)["kept_tokens"] == len(ids) - 1


def test_a_system_prompt_of_a_session_that_lives(bench):
    """A session begins with a copy of another one's ids; both texts stay the same."""
    verifier = bench.verifier(Flaky(step_ms=1))
    one = verifier.ask(request(8000, 0, ids=(*SYSTEM, 65)))
    one.heard(1)
    other = verifier.ask(request(10, 0, ids=(*SYSTEM, 66)))
    assert other.whole(10, (*SYSTEM, 66)).report["cached_tokens"] == len(SYSTEM)
    verifier.cancel(one)
    assert one.end().reason == "cancelled"
    assert one.ids == truth(len(one.ids), (*SYSTEM, 65))


@pytest.mark.parametrize(
    ("fingerprint", "keeps"), [(welcome().vocab_fingerprint, True), ("0" * 64, False)]
)
def test_the_same_ids_of_another_vocabulary(bench, fingerprint, keeps):
    """A drafter whose verifier comes back with another vocabulary keeps nothing.

    The ids may mean other tokens.
    """
    router, drafter = welcomed(bench)
    router.opens(1, SYSTEM)
    router.expect(m.Draft)
    router.say(m.Done(1, "stop", len(SYSTEM)))
    until(lambda: prefix_cache(drafter)["kept_tokens"] > 0, "it is kept")
    back(router, model="other", vocab_fingerprint=fingerprint)
    if not keeps:
        until(lambda: prefix_cache(drafter)["kept_tokens"] == 0, "it is given up")
        return
    router.opens(1, (*SYSTEM, 65))
    router.expect(m.Draft)
    until(lambda: prefix_cache(drafter)["hits"] > 0, "it is found again")
