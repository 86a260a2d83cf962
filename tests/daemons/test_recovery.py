"""A side that goes away and comes back, or another in its place: each text is what it would have been."""

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace

import pytest
from loops import (
    PATIENCE,
    PROMPT,
    Bench,
    Flaky,
    Hearing,
    Running,
    Scripted,
    ScriptedDrafter,
    ask_for,
    attach,
    request,
    truth,
    until,
    welcome,
)

from specmesh.core.prefix import Prefix
from specmesh.daemons import verifier as verifier_module
from specmesh.daemons.doorkeeper import Doorkeeper
from specmesh.daemons.kept import MOST, Kept
from specmesh.engines.sim import SimSettings
from specmesh.errors import DaemonUnreachable, NoSuchText, RequestError, WentAway
from specmesh.requests import Failed, Finished, Request, Started, Tokens
from specmesh.wire import messages as m

NAME = "cmpl-" + 32 * "a"
LONG = 8000


def named(ref: int, name: str = NAME, *, said: Sequence[int] = (), max_tokens: int = 200) -> m.Open:
    """An OPEN of this name for PROMPT, after the ids that were said."""
    order = ask_for(ref, ids=(*PROMPT, *said), max_tokens=max_tokens)
    return replace(order, name=name, n_prompt=len(PROMPT))


def by_name(ref: int, name: str = NAME) -> m.Open:
    """An OPEN that wants the session of that name and nothing else."""
    return replace(ask_for(ref), name=name, adopt=True)


def asked(max_tokens: int = 200, timeout: float = PATIENCE, *, rounds: bool = False) -> Request:
    """A request of a local client that waits so long for a verifier."""
    return replace(request(max_tokens, None, rounds=rounds), id=NAME, reconnect_timeout=timeout)


def wanted(name: str = NAME) -> Request:
    """A request for the text of that name."""
    return replace(request(1, ids=()), prompt_ids=None, id=name, named_only=True, reconnect_timeout=PATIENCE)


def followed(peer: ScriptedDrafter) -> tuple[m.Opened, list[int], m.Done]:
    """What a drafter hears of a session: OPENED, all ids in their places, DONE."""
    opened = peer.expect(m.Opened)
    assert isinstance(opened, m.Opened)
    known = Prefix()
    while not isinstance(told := peer.expect(m.Sync, m.Truth, m.Done), m.Done):
        assert isinstance(told, m.Sync | m.Truth)
        assert told.session == opened.session
        assert known.holds(told.base, told.prefix_crc), "a gap"
        known.truncate(told.base)
        known.extend(told.ids)
    assert told.length == len(known)
    return opened, known[0:], told


def sessions(running: Running) -> dict[str, object]:
    return running.loop.snapshot(0.0)["sessions"]  # type: ignore[return-value]


def kept(verifier: Running, count: int = 1) -> None:
    until(lambda: sessions(verifier)["kept"] == count, f"{count} kept")


def slow(n_seq: int = 8) -> Flaky:
    return Flaky(SimSettings(step_ms=2, n_seq=n_seq))


# --- at the verifier


def test_a_session_is_given_to_who_names_it(bench: Bench):
    """Its drafter says BYE: it goes on, and another that names it has all of it and what follows, once."""
    verifier, first = bench.verifier(slow()), bench.dealer()
    first.say(named(1))
    session = first.expect(m.Opened).session  # type: ignore[union-attr]
    first.expect(m.Truth)
    first.say(m.Bye())
    kept(verifier)
    second = bench.dealer()
    second.say(by_name(7))
    opened, ids, done = followed(second)
    assert (opened.session, opened.ref, opened.prompt_tokens, opened.max_tokens) == (session, 7, len(PROMPT), 200)
    assert ids == [*PROMPT, *truth(200)]
    assert (done.finish_reason, done.report["generated_tokens"]) == ("length", 200)
    second.say(m.Close(session, 0, 0.0))
    kept(verifier, 0)
    assert (sessions(verifier)["opened"], sessions(verifier)["resumed"]) == (1, 1)


def test_after_the_grace_it_is_gone(bench: Bench):
    """Its place is free, and its name means nothing."""
    verifier, first = bench.verifier(slow(), grace=0.2), bench.dealer()
    first.say(named(1, max_tokens=LONG))
    first.expect(m.Truth)
    first.say(m.Bye())
    until(lambda: sessions(verifier)["ended"]["cancelled"] == 1, "it is dropped")  # type: ignore[index]
    assert (sessions(verifier)["live"], sessions(verifier)["kept"]) == (0, 0)
    second = bench.dealer()
    second.say(by_name(2))
    assert second.expect(m.Error).code == "session"  # type: ignore[union-attr]


@pytest.mark.parametrize("heard", [False, True], ids=["ended while away", "DONE was not answered"])
def test_an_end_that_nobody_heard_is_kept(bench: Bench, heard: bool):
    """The whole text and its report are told to who names it, again and again until it is closed."""
    verifier, first = bench.verifier(slow()), bench.dealer()
    first.say(named(1, max_tokens=30))
    if heard:
        first.expect(m.Done)
    else:
        first.expect(m.Truth)
    first.say(m.Bye())
    until(lambda: sessions(verifier)["live"] == 0, "it ends")
    kept(verifier)
    for ref in (2, 3):
        peer = bench.dealer()
        peer.say(by_name(ref))
        opened, ids, done = followed(peer)
        assert ids == [*PROMPT, *truth(30)]
        assert (done.finish_reason, done.report["generated_tokens"]) == ("length", 30)
    peer.say(m.Close(opened.session, 0, 0.0))
    kept(verifier, 0)


def test_close_ends_it_at_once(bench: Bench):
    """A client that left is not waited for."""
    verifier, peer = bench.verifier(slow()), bench.dealer()
    peer.say(named(1, max_tokens=LONG))
    session = peer.expect(m.Opened).session  # type: ignore[union-attr]
    peer.say(m.Close(session, 0, 0.0), m.Bye())
    until(lambda: sessions(verifier)["ended"]["cancelled"] == 1, "it is cancelled")  # type: ignore[index]
    assert sessions(verifier)["kept"] == 0


def test_without_a_name_it_ends_with_its_drafter(bench: Bench):
    """As for drafters that know of no names."""
    verifier, peer = bench.verifier(slow()), bench.dealer()
    peer.say(named(1, "", max_tokens=LONG))
    peer.expect(m.Truth)
    peer.say(m.Bye())
    until(lambda: sessions(verifier)["ended"]["cancelled"] == 1, "it is cancelled")  # type: ignore[index]
    assert sessions(verifier)["kept"] == 0


def test_a_client_of_the_verifier_asks_by_name(bench: Bench):
    """It is told the whole text, whatever the drafter's client was told, and its end."""
    verifier, peer = bench.verifier(slow()), bench.dealer()
    peer.say(named(1, max_tokens=60))
    peer.expect(m.Truth)
    peer.say(m.Bye())
    kept(verifier)
    client = verifier.ask(wanted())
    started = client.next()
    assert isinstance(started, Started)
    assert started.prompt_ids == PROMPT
    assert started.params is not None
    assert started.params.max_tokens == 60
    assert isinstance(client.end(), Finished)
    assert client.ids == truth(60)
    assert isinstance(verifier.ask(wanted()).error(), NoSuchText)


def test_a_client_that_knows_the_beginning_is_told_the_rest(bench: Bench):
    """Of a session as of ids."""
    verifier, peer = bench.verifier(slow()), bench.dealer()
    peer.say(named(1, max_tokens=60))
    peer.expect(m.Truth)
    peer.say(m.Bye())
    kept(verifier)
    said = tuple(truth(1))
    knows = replace(asked(60), generated=said, known=1)
    for client in (verifier.ask(knows), verifier.ask(replace(knows, id="cmpl-" + 32 * "b"))):
        assert isinstance(client.end(), Finished)
        assert client.ids == truth(60)[1:]


@pytest.mark.parametrize("socket_of", ["verifier", "drafter"])
def test_the_newer_of_two_has_it(bench: Bench, socket_of: str):
    """Whoever had the session is told that it has it no more, and its leaving then ends nothing."""
    verifier, old = bench.verifier(slow()), bench.dealer()
    old.say(named(1))
    old.expect(m.Truth)
    if socket_of == "verifier":
        client = verifier.ask(wanted())
        assert old.expect(m.Done).finish_reason == "moved"  # type: ignore[union-attr]
        newest = verifier.ask(wanted())
        assert isinstance(client.error(), RequestError)
        verifier.cancel(client)
    else:
        new = bench.dealer()
        new.say(by_name(5))
        done = old.expect(m.Done)
        assert done.finish_reason == "moved"  # type: ignore[union-attr]
        old.say(m.Close(done.session, 0, 0.0), m.Bye())  # type: ignore[union-attr]
        assert followed(new)[1] == [*PROMPT, *truth(200)]
        return
    old.say(m.Bye())
    assert isinstance(newest.end(), Finished)
    assert newest.ids == truth(200)


def test_the_same_drafter_asks_again(bench: Bench):
    """OPENED with the number that it knows replaces the session that it has; no DONE is between."""
    bench.verifier(slow())
    peer = bench.dealer()
    peer.say(named(1))
    session = peer.expect(m.Opened).session  # type: ignore[union-attr]
    peer.say(by_name(2))
    again = peer.expect(m.Opened, m.Done)
    assert (type(again), again.session, again.ref) == (m.Opened, session, 2)  # type: ignore[union-attr]
    assert peer.expect(m.Done).finish_reason == "length"  # type: ignore[union-attr]


def test_whoever_is_there_goes_before_whoever_left(bench: Bench):
    """A kept session gives its place up where all are taken; one that is listened to does not."""
    verifier, peer = bench.verifier(slow(n_seq=1)), bench.dealer()
    peer.say(named(1, max_tokens=LONG))
    peer.expect(m.Truth)
    peer.say(m.Bye())
    kept(verifier)
    client = verifier.ask(request(20))
    assert isinstance(client.end(), Finished)
    assert client.ids == truth(20)
    assert sessions(verifier)["kept"] == 0


def test_gone_on_with_by_its_ids(bench: Bench):
    """n_prompt and ids: max_tokens counts from the prompt, and the text is the same; the report says both."""
    bench.verifier()
    peer = bench.dealer()
    said = truth(50)
    peer.say(named(1, said=said[:20], max_tokens=50))
    opened, ids, done = followed(peer)
    assert opened.prompt_tokens == len(PROMPT)
    assert ids == [*PROMPT, *said]
    assert (done.report["generated_tokens"], done.report["resumed_tokens"]) == (50, 20)


def test_a_text_that_has_ended_is_answered_at_once(bench: Bench):
    """OPENED, SYNC and DONE; its place is free again."""
    verifier, peer = bench.verifier(Flaky(SimSettings(n_seq=1))), bench.dealer()
    for ref, name in ((1, NAME), (2, "")):
        peer.say(named(ref, name, said=truth(50), max_tokens=50))
        opened, ids, done = followed(peer)
        assert ids == [*PROMPT, *truth(50)]
        assert done.finish_reason == "length"
        peer.say(m.Close(opened.session, 0, 0.0))
    client = verifier.ask(replace(asked(50), generated=tuple(truth(50)), known=50))
    assert isinstance(client.end(), Finished)
    assert client.ids == []


@pytest.mark.parametrize(
    "order",
    [
        replace(named(3), n_prompt=len(PROMPT) + 1),
        named(3, said=(256,)),
        replace(ask_for(3, ids=(65,) * 8193), name=NAME, n_prompt=5),
        replace(ask_for(3, ids=(65,) * 8192), name=NAME, n_prompt=8192),
    ],
    ids=["more prompt than ids", "foreign id", "beyond the context", "prompt too long"],
)
def test_texts_that_cannot_be_are_refused(bench: Bench, order: m.Open):
    """ERROR request, and nothing of them stays."""
    verifier, peer = bench.verifier(), bench.dealer()
    peer.say(order)
    error = peer.expect(m.Error, m.Opened)
    assert (type(error), error.ref) == (m.Error, 3)  # type: ignore[union-attr]
    assert error.code == "request"  # type: ignore[union-attr]
    assert (sessions(verifier)["live"], sessions(verifier)["kept"]) == (0, 0)


def test_a_session_belongs_to_the_key_that_opened_it(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    """Another key has neither it nor a session of that name; its own has it, and so has the verifier's own client."""
    keys: dict[bytes, str] = {}
    monkeypatch.setattr(Doorkeeper, "key_of", lambda _, identity: keys.setdefault(identity, "abcdef"[len(keys)]))
    verifier, first = bench.verifier(slow()), bench.dealer()
    first.say(named(1))
    first.expect(m.Truth)
    stranger = bench.dealer()
    stranger.say(by_name(2), named(3, said=truth(3)))
    assert {stranger.expect(m.Error).ref for _ in range(2)} == {2, 3}  # type: ignore[union-attr]
    first.say(by_name(4))
    assert first.expect(m.Opened).ref == 4  # type: ignore[union-attr]
    assert isinstance(verifier.ask(wanted()).end(), Finished)


def test_a_verifier_that_stops_keeps_nobody(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    """It does not wait for those who are away."""
    monkeypatch.setattr(verifier_module, "DRAIN", 1e6)
    verifier, peer = bench.verifier(slow()), bench.dealer()
    peer.say(named(1, max_tokens=LONG))
    peer.expect(m.Truth)
    peer.say(m.Bye())
    kept(verifier)
    bench.end(verifier)
    assert sessions(verifier)["ended"]["cancelled"] == 1  # type: ignore[index]


def test_kept_sessions_are_bounded():
    """Of too many that ended the oldest go."""
    store = Kept(30.0)
    for number in range(MOST + 3):
        live = SimpleNamespace(id=number, name=f"n{number}", owner=b"d")
        store.add(live, float(number), Finished("stop", (), {}))  # type: ignore[arg-type]
    assert store.expire(5.0) == []
    assert len(store) == MOST
    assert store.ended("n2") is None
    assert store.ended("n3") is not None
    store.closed(3, b"other")
    store.closed(4, b"d")
    assert (store.ended("n3") is not None, store.ended("n4")) == (True, None)
    assert store.expire(1000.0) == []
    assert len(store) == 0


# --- at the drafter


class Told:
    """A scripted verifier's session, told in frames."""

    def __init__(self, router: Scripted, session: int, order: m.Message, text: Sequence[int]) -> None:
        assert isinstance(order, m.Open)
        self.router, self.session, self.order = router, session, order
        self.ids = (*PROMPT, *text)
        self.known = Prefix(self.ids[: max(len(order.ids), len(PROMPT))])
        router.say(
            m.Opened(session, order.ref, len(PROMPT), 0.0, 0, 1.0, 0, max_tokens=order.max_tokens),
            m.Sync(session, 0, 0, tuple(self.known[0:]), 0),
        )

    def more(self, count: int) -> "Told":
        """A TRUTH of so many ids."""
        base = len(self.known)
        ids = self.ids[base : base + count]
        self.router.say(m.Truth(self.session, base, self.known.crc, ids, 0))
        self.known.extend(ids)
        return self

    def done(self, reason: str = "length") -> None:
        self.router.say(m.Done(self.session, reason, len(self.known), {}))


def welcomed(bench: Bench) -> tuple[Scripted, Running]:
    """A scripted verifier and a drafter it has welcomed."""
    router, drafter = bench.router(), bench.drafter()
    router.expect(m.Hello)
    router.say(welcome())
    until(lambda: drafter.loop.vocabulary is not None, "it is welcome")
    return router, drafter


def back(router: Scripted, **changes: object) -> None:
    """It goes away, and another is in its place."""
    router.say(m.Bye())
    router.expect(m.Hello)
    router.say(welcome(**({"verifier": "w"} | changes)))


def heard(client: Hearing, count: int) -> None:
    while len(client.ids) < count:
        client.next()


TEXT = tuple(truth(20))


def test_a_text_is_opened_again_with_what_is_known(bench: Bench):
    """By name and all ids; the client hears each id once, one start, one end."""
    router, drafter = welcomed(bench)
    client = drafter.ask(asked(20))
    first = Told(router, 4, router.expect(m.Open), TEXT).more(5)
    heard(client, 5)
    first.more(2)
    back(router)
    order = router.expect(m.Open)
    assert isinstance(order, m.Open)
    assert (order.name, order.n_prompt, order.max_tokens) == (NAME, len(PROMPT), 20)
    assert tuple(order.ids) == (*PROMPT, *TEXT[:7])
    assert not order.adopt
    Told(router, 5, order, TEXT).more(13).done()
    events = []
    while not isinstance(event := client.next(), Finished | Failed):
        events.append(event)
    assert isinstance(event, Finished)
    assert event.prompt_ids == PROMPT
    assert tuple(client.ids) == TEXT
    assert not any(isinstance(event, Started) for event in events)
    assert drafter.loop.snapshot(0.0)["sessions"]["resumed"] == 1  # type: ignore[index]


def test_what_the_verifier_knows_beyond_is_told(bench: Bench):
    """SYNC of a session that went on alone brings ids that the client has not heard."""
    router, drafter = welcomed(bench)
    client = drafter.ask(asked(20))
    Told(router, 4, router.expect(m.Open), TEXT).more(5)
    heard(client, 5)
    back(router)
    order = router.expect(m.Open)
    went_on = replace(order, ids=[*PROMPT, *TEXT[:15]])  # type: ignore[arg-type]
    Told(router, 4, went_on, TEXT).more(5).done()
    assert isinstance(client.end(), Finished)
    assert tuple(client.ids) == TEXT


def test_rounds_are_told_once_each(bench: Bench):
    """What waited for its ROUND when the verifier went away is told without it."""
    router, drafter = welcomed(bench)
    client = drafter.ask(asked(20, rounds=True))
    told = Told(router, 4, router.expect(m.Open), TEXT).more(2)
    router.say(m.Round(4, [TEXT[0], 99], 1))
    told.more(3)
    heard(client, 2)
    back(router)
    again = Told(router, 5, router.expect(m.Open), TEXT).more(15)
    router.say(m.Round(5, [7], 0))
    again.done()
    rounds = []
    while not isinstance(event := client.next(), Finished | Failed):
        rounds.append(event)
    assert tuple(client.ids) == TEXT
    assert [event.drafts for event in rounds if isinstance(event, Tokens)] == [None, (7,)]


@pytest.mark.parametrize("timeout", [0.0, 0.2])
def test_a_verifier_that_does_not_come_back(bench: Bench, timeout: float):
    """The client's patience, then DaemonUnreachable with the address; a later one asks by name and has all of it."""
    router, drafter = welcomed(bench)
    client = drafter.ask(asked(20, timeout))
    Told(router, 4, router.expect(m.Open), TEXT).more(5)
    heard(client, 5)
    router.say(m.Bye())
    error = client.error()
    assert type(error) is DaemonUnreachable
    assert bench.address in str(error)
    router.expect(m.Hello)
    router.say(welcome(verifier="w"))
    until(lambda: drafter.loop.verifier is not None, "it is back")
    later = drafter.ask(wanted())
    Told(router, 5, router.expect(m.Open), TEXT).more(15).done()
    assert isinstance(later.end(), Finished)
    assert tuple(later.ids) == TEXT


def test_another_model_does_not_go_on(bench: Bench):
    """Equal ids would mean another text."""
    router, drafter = welcomed(bench)
    client = drafter.ask(asked(20))
    Told(router, 4, router.expect(m.Open), TEXT).more(5)
    heard(client, 5)
    back(router, model="another")
    assert "another model" in str(client.error())


@pytest.mark.parametrize(
    ("before", "now", "goes_on"), [("", "x", True), ("x", "", True), ("x", "x", True), ("x", "y", False)]
)
def test_models_are_told_apart_by_their_hash_where_it_is_known(bench: Bench, before: str, now: str, goes_on: bool):
    """It takes minutes to compute, so it may not be known yet."""
    router, drafter = bench.router(), bench.drafter()
    router.expect(m.Hello)
    router.say(welcome(model_hash=before))
    until(lambda: drafter.loop.vocabulary is not None, "it is welcome")
    client = drafter.ask(asked(20))
    Told(router, 4, router.expect(m.Open), TEXT).more(5)
    heard(client, 5)
    back(router, model_hash=now)
    if goes_on:
        Told(router, 5, router.expect(m.Open), TEXT).more(15).done()
    assert isinstance(client.end(), Finished if goes_on else Failed)


def test_what_was_not_opened_yet_is_asked_again(bench: Bench):
    """As it was, also of another model: nothing of it has been said."""
    router, drafter = welcomed(bench)
    client = drafter.ask(asked(20))
    first = router.expect(m.Open)
    back(router, model="another")
    again = router.expect(m.Open)
    assert replace(again, ref=first.ref) == first  # type: ignore[arg-type, union-attr]
    Told(router, 5, again, TEXT).more(20).done()
    assert isinstance(client.end(), Finished)
    assert tuple(client.ids) == TEXT


def test_a_verifier_without_room_is_asked_again(bench: Bench):
    """Busy is waited out, the refusal of a request is not."""
    router, drafter = welcomed(bench)
    client = drafter.ask(asked(20))
    Told(router, 4, router.expect(m.Open), TEXT).more(5)
    heard(client, 5)
    back(router)
    router.say(m.Error("busy", "full", router.expect(m.Open).ref))  # type: ignore[union-attr]
    order = router.expect(m.Open)
    assert tuple(order.ids) == (*PROMPT, *TEXT[:5])  # type: ignore[union-attr]
    router.say(m.Error("request", "no", order.ref))  # type: ignore[union-attr]
    assert isinstance(client.error(), RequestError)


def test_a_verifier_that_stops_before_the_end_is_waited_for(bench: Bench):
    """DONE shutdown is no end."""
    router, drafter = welcomed(bench)
    client = drafter.ask(asked(20))
    Told(router, 4, router.expect(m.Open), TEXT).more(5).done("shutdown")
    back(router)
    Told(router, 5, router.expect(m.Open), TEXT).more(15).done()
    assert isinstance(client.end(), Finished)
    assert tuple(client.ids) == TEXT


def test_a_lost_end_is_asked_for_again(bench: Bench):
    """DONE for more ids than were heard: the verifier still has them, by name."""
    router, drafter = welcomed(bench)
    client = drafter.ask(asked(20))
    Told(router, 4, router.expect(m.Open), TEXT).more(5)
    router.say(m.Done(4, "length", len(PROMPT) + 20, {}))
    order = router.expect(
        m.Open,
    )
    went_on = replace(order, ids=[*PROMPT, *TEXT])  # type: ignore[arg-type]
    Told(router, 4, went_on, TEXT).done()
    assert isinstance(client.end(), Finished)
    assert tuple(client.ids) == TEXT


def test_a_client_that_leaves_meanwhile_is_not_asked_for(bench: Bench):
    """Nor is anything of it kept."""
    router, drafter = welcomed(bench)
    client = drafter.ask(asked(20))
    Told(router, 4, router.expect(m.Open), TEXT).more(5)
    heard(client, 5)
    router.say(m.Bye())
    router.expect(m.Hello)
    drafter.cancel(client)
    until(lambda: drafter.loop.snapshot(0.0)["sessions"]["interrupted"] == 0, "it has heard")  # type: ignore[index]
    router.say(welcome(verifier="w"))
    until(lambda: drafter.loop.verifier is not None, "it is back")
    drafter.ask(replace(asked(9), id="cmpl-" + 32 * "b"))
    assert router.expect(m.Open).max_tokens == 9  # type: ignore[union-attr]


def test_a_verifier_that_cannot_go_on_with_a_text(bench: Bench):
    """One of an earlier version takes all ids as the prompt: it is closed, and the client told."""
    router, drafter = welcomed(bench)
    client = drafter.ask(asked(20))
    Told(router, 4, router.expect(m.Open), TEXT).more(5)
    heard(client, 5)
    back(router)
    order = router.expect(m.Open)
    router.say(m.Opened(6, order.ref, len(PROMPT) + 5, 0.0, 0, 1.0, 0))  # type: ignore[union-attr]
    assert router.expect(m.Close).session == 6  # type: ignore[union-attr]
    assert "version" in str(client.error())


def test_a_session_that_moved_is_told_so(bench: Bench):
    """Somebody else has it now."""
    router, drafter = welcomed(bench)
    client = drafter.ask(asked(20))
    Told(router, 4, router.expect(m.Open), TEXT).more(5).done("moved")
    assert isinstance(client.error(), RequestError)


def test_a_drafter_that_stops_leaves_its_texts_to_the_verifier(bench: Bench):
    """BYE without a CLOSE; its clients may come back. The next drafter goes on with the same session."""
    verifier, drafter = bench.verifier(slow()), bench.drafter()
    attach(verifier, drafter)
    client = drafter.ask(asked(300))
    heard(client, 10)
    bench.end(drafter)
    assert isinstance(client.error(), WentAway)
    kept(verifier)
    again = bench.drafter()
    attach(verifier, again)
    later = again.ask(replace(asked(300), generated=tuple(client.ids), known=len(client.ids)))
    assert isinstance(later.end(), Finished)
    assert client.ids + later.ids == truth(300)
    kept(verifier, 0)
    assert (sessions(verifier)["opened"], sessions(verifier)["resumed"]) == (1, 1)


def test_nobody_has_the_text(bench: Bench):
    """A name that neither the drafter nor its verifier knows."""
    verifier, drafter = bench.verifier(), bench.drafter()
    attach(verifier, drafter)
    assert isinstance(drafter.ask(wanted()).error(), NoSuchText)
