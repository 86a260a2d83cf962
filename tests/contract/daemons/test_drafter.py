"""A drafter's loop, and a verifier under the test's control.

It goes away and comes back, or another does in its place: each text stays the same.
"""

import time
from dataclasses import replace
from threading import Event

import pytest
from harness import PATIENCE
from harness.loops import PROMPT, Flaky, request, until, welcome, welcomed
from harness.tables import cases
from named_texts import NAME, TEXT, Told, asked, back, wanted

from fuzz.frames import repaired
from specmesh import errors
from specmesh.core.requests import Failed, Finished, Started
from specmesh.core.vocabulary.vocabulary import chunk
from specmesh.daemons.link.dealer import ConnectionState, Dealer
from specmesh.engines.grammar import Grammars
from specmesh.engines.ngram import NgramDrafter
from specmesh.wire import messages as m
from specmesh.wire.codec import encode


def of_version_9(message):
    """Return a frame with another version byte and the old checksum."""
    return b"SM\x09" + encode(message)[3:]


ERROR = encode(m.Error("version", "I speak version 9"))
WELCOME = repaired(of_version_9(welcome()))
ANSWERS = {
    "version told": (ERROR, ["refused", "version 9"]),
    "version seen": (WELCOME, ["version 9", "this drafter 2", "update"]),
}


@pytest.mark.parametrize("name", ANSWERS)
@pytest.mark.fault("E8.98")
def test_a_verifier_of_another_version(bench, name):
    """The drafter stays, gives the reason, and serves once the verifier was updated."""
    answer, words = ANSWERS[name]
    router = bench.router()
    drafter = bench.drafter()
    router.expect(m.Hello)
    router.raw(answer)
    for word in (*words, bench.address):
        until(lambda word=word: word in drafter.trouble, f"it says {word}")
    [shown] = drafter.stats()["verifiers"]
    assert shown["refusal"] == shown["no_drafts"] == drafter.trouble
    error = drafter.ask(request()).error()
    assert type(error) is errors.DaemonUnreachable
    assert str(error) == drafter.trouble
    router.say(welcome())
    drafter.joins()
    [shown] = drafter.stats()["verifiers"]
    assert shown["refusal"] is None
    assert bench.errors.empty()


def test_a_damaged_frame_after_the_welcome(bench):
    """One of the token plane or of another version is dropped.

    With any other one something may be lost for good: it connects anew.
    """
    router, drafter = welcomed(bench)
    router.raw(of_version_9(m.Truth(1, 0, 0, (1, 2), 4)))
    router.raw(WELCOME)
    router.ping(5)
    assert drafter.stats()["wire"]["rejected"] == {"checksum": 1, "version": 1}
    before = router.peer
    router.raw(of_version_9(m.Done(1, "stop", 4)))
    router.expect(m.Hello)
    assert router.peer != before
    assert bench.errors.empty()


@pytest.mark.parametrize(
    "token", ["!", "ü", "YQ=="], ids=["not base64", "not ASCII", "not as told"]
)
@pytest.mark.fault("E7.78")
def test_a_lying_vocabulary(bench, token):
    """No client is served by it, and each gets the reason; it is asked for once, and another
    verifier's is taken.
    """
    router = bench.router()
    drafter = bench.drafter(NgramDrafter(2))
    router.welcomes(n_vocab=1)
    router.expect(m.Vocab)
    router.say(m.Vocab(0, [token]))
    until(lambda: "the verifier's vocabulary" in drafter.trouble, "it says why")
    assert drafter.stats()["verifiers"][0]["refusal"] in drafter.trouble
    back(router, verifier="v", n_vocab=1)
    while not isinstance(said := router.on_event(), m.Ping):
        assert not isinstance(said, m.Vocab), "it is asked for again"
    assert said.no_drafts == "vocabulary"
    back(router)
    asked = router.expect(m.Vocab)
    router.say(m.Vocab(asked.start, chunk(Flaky().vocabulary, 0)))
    drafter.joins()
    assert bench.errors.empty()


def test_grammars_are_prepared_before_a_verifier_is_drafted_for(bench, monkeypatch):
    """That takes all threads seconds in a large vocabulary, which no text shall wait for."""
    begun, go_on = Event(), Event()
    made = []
    prepare = Grammars.prepare

    def slow(grammars):
        begun.set()
        assert go_on.wait(PATIENCE)
        prepare(grammars)
        made.append(grammars)

    monkeypatch.setattr(Grammars, "prepare", slow)
    router = bench.router()
    drafter = bench.drafter()
    router.expect(m.Hello)
    router.say(welcome())
    assert begun.wait(PATIENCE)
    assert drafter.stats()["verifiers"][0]["vocabulary"] is None
    go_on.set()
    until(lambda: drafter.stats()["verifiers"][0]["vocabulary"], "it is known")
    assert len(made) == 1


OF_NO_SESSION = [
    m.Truth(99, 5, 1, (1, 2), 4),
    m.Sync(99, 0, 0, (), 4),
    m.Nack(99, 2**32 - 1, 1),
    m.Done(99, "stop", 5),
    m.Logprobs(session=99, base=0, chosen=[-1.0], top_ids=[2**32 - 1], top=[0.0]),
]
TO_A_VERIFIER = [m.Close(99), m.Draft(99, 0, 0, (1,))]
UNASKED = [m.Error("session", "nonsense", 77), m.Pong(12345), m.Vocab(0, ["YQ=="])]
OPENED = m.Opened(5, 0, 3, {"temperature": 0})
HOT = m.Opened(6, 0, 3, {"temperature": "hot"})
WILD = [
    m.Truth(5, 2**32 - 1, 7, (-1, 2**31 - 1), 255),
    m.Sync(5, 0, 0, (-1,), 4),
    m.Truth(5, 0, 99, (1,), 4),
]


def test_drafter_survives_a_hostile_verifier(bench):
    """Frames that are none, messages for nobody, wild TRUTHs.

    They are counted or ignored, and it drafts on.
    """
    router, drafter = welcomed(bench)
    router.raw(b"junk")
    router.raw(b"two", b"parts")
    router.say(*OF_NO_SESSION, *TO_A_VERIFIER, *UNASKED)
    router.say(OPENED, HOT, *WILD)
    router.say(m.Sync(5, 0, 0, PROMPT, 4))
    assert router.expect(m.Close).session == 6
    draft = router.expect(m.Draft)
    assert draft.session == 5
    assert draft.base == len(PROMPT)
    rejected = drafter.stats()["wire"]["rejected"]
    assert rejected["parts"] == 1
    assert rejected["direction"] == 2
    assert rejected["body"] == 1
    assert sum(rejected.values()) == 5


CLASSES = {
    "busy": errors.Busy,
    "request": errors.RequestError,
    "engine": errors.EngineError,
    "session": errors.NoSuchText,
    "context": errors.PromptTooLong,
}


@pytest.mark.parametrize("code", CLASSES)
def test_refused_open(bench, code):
    router, drafter = welcomed(bench)
    client = drafter.ask(request())
    order = router.expect(m.Open)
    router.say(m.Error(code, "no room", order.ref))
    refusal = client.error()
    assert type(refusal) is CLASSES[code]
    assert str(refusal).endswith("no room")


def test_hello_is_said_ever_more_rarely(bench):
    """Several drafters of one key, without an answer, stay within its limits."""
    began = time.monotonic()
    router = bench.router()
    bench.drafter()
    for _ in range(4):
        router.expect(m.Hello)
    assert time.monotonic() > began + 0.25 + 0.5 + 1.0, (
        "at the soonest; every half a second it would be sooner"
    )


def test_a_close_that_is_lost(bench, monkeypatch):
    """Nobody repeats it, and a session would go on without a client: the drafter connects anew."""
    send = Dealer.send

    def without_room(dealer, message):
        if isinstance(message, m.Close):
            dealer.state = ConnectionState.CUT
        return 0 if dealer.cut else send(dealer, message)

    monkeypatch.setattr(Dealer, "send", without_room)
    router, _ = welcomed(bench)
    before = router.peer
    router.opens(5, PROMPT)
    router.say(m.Done(5, "stop", len(PROMPT)))
    router.expect(m.Hello)
    assert router.peer != before


class Begun:
    """A scripted verifier, and a drafter's client with five ids of its text."""

    def __init__(self, bench, request=None, **changes):
        self.router, self.drafter = welcomed(bench, **changes)
        self.client = self.drafter.ask(request or asked())
        self.told = Told(self.router).more(5)
        self.client.heard(5)

    def returns(self):
        """A verifier is there again, and welcomes the drafter."""
        self.router.welcomes(verifier="w")
        until(lambda: self.drafter.connected, "it is back")

    def ends(self):
        """Check that the present verifier is asked, and send the rest."""
        Told(self.router).rest()
        self.client.whole(20)


def test_a_text_is_opened_again_with_what_is_known(bench):
    begun = Begun(bench)
    router = begun.router
    client = begun.client
    begun.told.more(2)
    back(router)
    order = router.expect(m.Open)
    assert order.name == NAME
    assert order.n_prompt == len(PROMPT)
    assert order.options["max_tokens"] == 20
    assert tuple(order.ids) == (*PROMPT, *TEXT[:7])
    assert not order.adopt
    Told(router, order).rest()
    while not isinstance(event := client.next(), Finished):
        assert not isinstance(event, Started | Failed)
    assert event.prompt_ids == PROMPT
    assert tuple(client.ids) == TEXT
    assert begun.drafter.stats()["sessions"]["resumed"] == 1


@pytest.mark.parametrize("timeout", [0.0, 0.2])
def test_a_verifier_that_does_not_come_back(bench, timeout):
    """The client's patience, then the error that has the address.

    A later one asks by name and has all of it.
    """
    begun = Begun(bench, asked(timeout))
    begun.router.say(m.Bye())
    error = begun.client.error()
    assert type(error) is errors.DaemonUnreachable
    assert bench.address in str(error)
    begun.returns()
    begun.client = begun.drafter.ask(wanted())
    begun.ends()


@cases("now", '{"model": "another", "model_hash": "x"} {"model_hash": ""} {"model_hash": "y"}')
def test_another_model_does_not_go_on(bench, now):
    """Equal ids would mean another text."""
    begun = Begun(bench, model_hash="x")
    back(begun.router, **now)
    assert "another model" in str(begun.client.error())


def test_what_was_not_opened_yet_is_asked_again(bench):
    """It is the same request, also to another model: its text has not begun."""
    router, drafter = welcomed(bench)
    client = drafter.ask(asked())
    first = router.expect(m.Open)
    back(router, model="another")
    again = router.expect(m.Open)
    assert replace(again, ref=first.ref) == first
    Told(router, again).rest()
    client.whole(20)


def test_a_verifier_without_room_is_asked_again(bench):
    """Busy is waited out, the refusal of a request is not."""
    begun = Begun(bench)
    router = begun.router
    back(router)
    router.say(m.Error("busy", "full", router.expect(m.Open).ref))
    order = router.expect(m.Open)
    assert tuple(order.ids) == (*PROMPT, *TEXT[:5])
    router.say(m.Error("request", "no", order.ref))
    assert isinstance(begun.client.error(), errors.RequestError)


def test_a_lost_end_is_asked_for_again(bench):
    """DONE counts more ids than arrived: the verifier still has them, by name."""
    begun = Begun(bench)
    begun.router.say(m.Done(4, "length", len(PROMPT) + 20, {}))
    order = replace(begun.router.expect(m.Open), ids=[*PROMPT, *TEXT])
    Told(begun.router, order).done()
    begun.client.whole(20)


def test_a_client_that_leaves_meanwhile_is_not_asked_for(bench):
    begun = Begun(bench)
    router = begun.router
    drafter = begun.drafter
    router.say(m.Bye())
    router.expect(m.Hello)
    drafter.cancel(begun.client)
    until(lambda: drafter.stats()["sessions"]["interrupted"] == 0, "it has heard")
    begun.returns()
    drafter.ask(request(9))
    assert router.expect(m.Open).options["max_tokens"] == 9


def test_a_session_that_moved_is_told_so(bench):
    begun = Begun(bench)
    begun.told.done("moved")
    assert isinstance(begun.client.error(), errors.RequestError)


def test_why_a_text_ends_in_an_error(bench):
    """ERROR has the reason, as of a grammar, and DONE ends the text."""
    begun = Begun(bench)
    begun.router.say(m.Error("request", "too much", begun.told.order.ref))
    begun.told.done("error")
    broken = begun.client.error()
    assert type(broken) is errors.RequestError
    assert str(broken) == "too much"


def test_a_text_that_ends_for_a_reason_of_its_verifiers_own(bench):
    """The client gets the word that DONE has."""
    begun = Begun(bench)
    begun.told.done("of_tomorrow")
    assert begun.client.end().reason == "of_tomorrow"


def test_forgetful_verifier_is_greeted_again(bench):
    """ERROR hello ends the sessions of its clients as unreachable, and it sends HELLO again."""
    begun = Begun(bench, request())
    begun.router.say(m.Error("hello", "who are you"))
    assert isinstance(begun.client.error(), errors.DaemonUnreachable)
    begun.returns()
    assert begun.drafter.stats()["reconnects"] == 1
