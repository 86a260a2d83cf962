"""A verifier that goes away from a drafter and comes back, or another in its place: each text is what it would be."""

from dataclasses import replace

import pytest
from harness.loops import PROMPT, Bench, request, until, welcome, welcomed
from named_texts import NAME, TEXT, Told, asked, back, wanted

from specmesh.core.requests import Failed, Finished, Request, Started
from specmesh.errors import DaemonUnreachable, RequestError
from specmesh.wire import messages as m


class Begun:
    """A scripted verifier that has told a drafter's client five ids of its text."""

    def __init__(self, bench: Bench, request: Request | None = None, **changes: object) -> None:
        self.router, self.drafter = welcomed(bench, **changes)
        self.client = self.drafter.ask(request or asked(20))
        self.told = Told(self.router, self.router.expect(m.Open)).more(5)
        self.client.heard(5)

    def returns(self) -> None:
        """A verifier is there again, and welcomes the drafter."""
        self.router.expect(m.Hello)
        self.router.say(welcome(verifier="w"))
        until(lambda: self.drafter.connected, "it is back")

    def ends(self) -> None:
        """The verifier that is there now is asked, and says the rest."""
        Told(self.router, self.router.expect(m.Open), 5).rest()
        self.client.whole(20)


def test_a_text_is_opened_again_with_what_is_known(bench: Bench):
    begun = Begun(bench)
    router, client = begun.router, begun.client
    begun.told.more(2)
    back(router)
    order = router.expect(m.Open)
    assert (order.name, order.n_prompt, order.options["max_tokens"]) == (NAME, len(PROMPT), 20)
    assert tuple(order.ids) == (*PROMPT, *TEXT[:7])
    assert not order.adopt
    Told(router, order, 5).rest()
    events = []
    while not isinstance(event := client.next(), Finished | Failed):
        events.append(event)
    assert event.prompt_ids == PROMPT
    assert tuple(client.ids) == TEXT
    assert not any(isinstance(event, Started) for event in events)
    assert begun.drafter.stats()["sessions"]["resumed"] == 1


@pytest.mark.parametrize("timeout", [0.0, 0.2])
def test_a_verifier_that_does_not_come_back(bench: Bench, timeout: float):
    """The client's patience, then DaemonUnreachable with the address; a later one asks by name and has all of it."""
    begun = Begun(bench, asked(20, timeout))
    begun.router.say(m.Bye())
    error = begun.client.error()
    assert (type(error), error.address) == (DaemonUnreachable, bench.address)
    begun.returns()
    begun.client = begun.drafter.ask(wanted())
    begun.ends()


@pytest.mark.parametrize("now", [{"model": "another", "model_hash": "x"}, {"model_hash": ""}, {"model_hash": "y"}])
def test_another_model_does_not_go_on(bench: Bench, now: dict[str, object]):
    """Equal ids would mean another text."""
    begun = Begun(bench, model_hash="x")
    back(begun.router, **now)
    assert "another model" in str(begun.client.error())


def test_what_was_not_opened_yet_is_asked_again(bench: Bench):
    """As it was, also of another model: nothing of it has been said."""
    router, drafter = welcomed(bench)
    client = drafter.ask(asked(20))
    first = router.expect(m.Open)
    back(router, model="another")
    again = router.expect(m.Open)
    assert replace(again, ref=first.ref) == first
    Told(router, again, 5).rest()
    client.whole(20)


def test_a_verifier_without_room_is_asked_again(bench: Bench):
    """Busy is waited out, the refusal of a request is not."""
    begun = Begun(bench)
    router = begun.router
    back(router)
    router.say(m.Error("busy", "full", router.expect(m.Open).ref))
    order = router.expect(m.Open)
    assert tuple(order.ids) == (*PROMPT, *TEXT[:5])
    router.say(m.Error("request", "no", order.ref))
    assert isinstance(begun.client.error(), RequestError)


def test_a_lost_end_is_asked_for_again(bench: Bench):
    """DONE for more ids than were heard: the verifier still has them, by name."""
    begun = Begun(bench)
    begun.router.say(m.Done(4, "length", len(PROMPT) + 20, {}))
    Told(begun.router, begun.router.expect(m.Open), said=20).done()
    begun.client.whole(20)


def test_a_client_that_leaves_meanwhile_is_not_asked_for(bench: Bench):
    begun = Begun(bench)
    router, drafter = begun.router, begun.drafter
    router.say(m.Bye())
    router.expect(m.Hello)
    drafter.cancel(begun.client)
    until(lambda: drafter.stats()["sessions"]["interrupted"] == 0, "it has heard")
    begun.returns()
    drafter.ask(replace(asked(9), id="cmpl-" + 32 * "b"))
    assert router.expect(m.Open).options["max_tokens"] == 9


def test_a_session_that_moved_is_told_so(bench: Bench):
    begun = Begun(bench)
    begun.told.done("moved")
    assert isinstance(begun.client.error(), RequestError)


def test_why_a_text_ends_in_an_error(bench: Bench):
    """ERROR says it, as of a grammar, and DONE that it is so."""
    begun = Begun(bench)
    begun.router.say(m.Error("request", "too much", begun.told.order.ref))
    begun.told.done("error")
    broken = begun.client.error()
    assert (type(broken), str(broken)) == (RequestError, "too much")


def test_a_text_that_ends_for_a_reason_of_its_verifiers_own(bench: Bench):
    """The client gets the word that DONE has."""
    begun = Begun(bench)
    begun.told.done("of_tomorrow")
    assert begun.client.end().reason == "of_tomorrow"


def test_forgetful_verifier_is_greeted_again(bench: Bench):
    """ERROR hello: the sessions of the drafter's clients end as unreachable, and it says HELLO again."""
    begun = Begun(bench, request())
    begun.router.say(m.Error("hello", "who are you"))
    assert isinstance(begun.client.error(), DaemonUnreachable)
    begun.returns()
    assert begun.drafter.stats()["reconnects"] == 1
