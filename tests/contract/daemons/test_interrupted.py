"""A verifier that goes away from a drafter and comes back, or another in its place: each text is what it would be."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from harness.loops import PROMPT, Bench, Scripted, attach, truth, until, welcome, welcomed
from named_texts import NAME, asked, heard, kept, sessions, slow, wanted

from specmesh.api.requests import Failed, Finished, Started, Tokens
from specmesh.core.prefix import Prefix
from specmesh.errors import DaemonUnreachable, NoSuchText, RequestError, WentAway
from specmesh.wire import messages as m


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


def back(router: Scripted, **changes: object) -> None:
    """It goes away, and another is in its place."""
    router.say(m.Bye())
    router.expect(m.Hello)
    router.say(welcome(**({"verifier": "w"} | changes)))


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
    assert drafter.stats()["sessions"]["resumed"] == 1


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
    until(lambda: drafter.connected, "it is back")
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
    until(lambda: drafter.welcome, "it is welcome")
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
    until(lambda: drafter.stats()["sessions"]["interrupted"] == 0, "it has heard")
    router.say(welcome(verifier="w"))
    until(lambda: drafter.connected, "it is back")
    drafter.ask(replace(asked(9), id="cmpl-" + 32 * "b"))
    assert router.expect(m.Open).max_tokens == 9  # type: ignore[union-attr]


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
