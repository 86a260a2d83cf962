"""Who drafts for which session, and who stands by: the verifier's loop with several drafters."""

import pytest
from harness.loops import PROMPT, Bench, Flaky, Hearing, Running, request, truth, until

from specmesh.api.requests import Finished
from specmesh.core.draft_length.gate import SpeculationGate
from specmesh.core.draft_length.step_costs import StepCosts
from specmesh.core.drafting.drafter_pool import PROOF
from specmesh.engines.sim import SimDrafter, SimSettings
from specmesh.wire import messages as m

LONG = request(8000, None)


def peers(verifier: Running) -> list[dict[str, object]]:
    told = verifier.stats().get("peers", [])
    assert isinstance(told, list)
    return told


def drafting(verifier: Running) -> list[object]:
    return [peer["sessions"] for peer in peers(verifier)]


def row(verifier: Running) -> dict[str, object]:
    """The only session; empty before it has begun."""
    sessions: dict[str, list[dict[str, object]]] = verifier.stats().get("sessions", {})
    rows = sessions.get("rows", [])
    return rows[0] if rows else {}


def hear_all(client: Hearing) -> None:
    while not client.empty():
        client.next()


def test_a_session_ends_up_with_the_best(bench: Bench):
    """The first one that attached is mostly wrong; the second, better one stands by and then drafts. When it goes the
    first drafts again, and the text is the target's own throughout."""
    verifier = bench.verifier(Flaky(SimSettings(step_ms=4, row_ms=0.2)))
    bench.drafter(SimDrafter(SimSettings(draft_ms=0.5, alpha=0.1)))
    until(lambda: len(peers(verifier)) == 1, "the first is attached")
    good = bench.drafter(SimDrafter(SimSettings(draft_ms=0.5, alpha=0.95)))
    until(lambda: len(peers(verifier)) == 2, "both are attached")
    client = verifier.ask(LONG)
    until(lambda: drafting(verifier) == [0, 1], "the better one drafts")
    until(lambda: [peer["standbys"] for peer in peers(verifier)] == [1, 0], "the other one stands by")
    assert peers(verifier)[1]["promised_tokens_per_second"] is not None
    changes = verifier.stats()["drafter_changes"]
    assert changes["better"] + changes["silent"] >= 1
    bench.end(good)
    until(lambda: drafting(verifier) == [1], "the other one drafts again")
    hear_all(client)
    seen = len(client.ids)
    until(lambda: client.next() and len(client.ids) > seen + 40, "the text goes on")
    verifier.cancel(client)
    assert client.ids == truth(len(client.ids))


def test_the_standby_takes_over_at_once(bench: Bench):
    """It follows without being asked for anything, and is asked from where it is as soon as the other one leaves. At
    the end it is told all of the text."""
    verifier = bench.verifier(Flaky(SimSettings(step_ms=2)))
    first, second = bench.dealer(), bench.dealer()
    client = verifier.ask(LONG)
    opened = first.expect(m.Opened)
    announced, known = second.expect(m.Opened), second.expect(m.Sync)
    assert (announced.session, known.base, known.draft_n) == (opened.session, 0, 0)
    assert known.ids[: len(PROMPT)] == PROMPT
    told = second.expect(m.Truth)
    assert (told.base, told.draft_n) == (len(known.ids), 0)
    until(lambda: row(verifier).get("standby") == "scripted", "it is shown")
    first.say(m.Bye())
    asked = second.expect(m.Sync)
    assert asked.base >= told.base + len(told.ids)
    assert asked.draft_n > 0
    until(lambda: row(verifier).get("standby") is None, "nobody else stands by")
    verifier.cancel(client)
    assert isinstance(second.expect(m.Done), m.Done)


def test_a_standby_hears_the_end(bench: Bench):
    verifier = bench.verifier(Flaky(SimSettings(step_ms=2)))
    first, second = bench.dealer(), bench.dealer()
    client = verifier.ask(request(110, None))
    first.expect(m.Opened)
    heard, length = list[int](), 0
    while not length:
        message = second.expect(m.Sync, m.Truth, m.Done)
        match message:
            case m.Done():
                assert message.finish_reason == "length"
                length = message.length
            case m.Sync() | m.Truth():
                assert (message.base, message.draft_n) == (len(heard), 0)
                heard += message.ids
            case _:
                raise AssertionError(message)
    assert length == len(heard) == len(PROMPT) + 110
    assert isinstance(client.end(), Finished)
    assert heard[len(PROMPT) :] == client.ids == truth(110)


def test_a_standby_that_shows_nothing_makes_room(bench: Bench):
    """It is told that the session is not its concern any more; the third one stands by instead."""
    verifier = bench.verifier(Flaky(SimSettings(step_ms=0.5)))
    bench.dealer()
    second, third = bench.dealer(), bench.dealer()
    client = verifier.ask(LONG)
    second.expect(m.Opened)
    done = second.expect(m.Done)
    assert done.finish_reason == "moved"
    assert done.length > len(PROMPT) + PROOF
    third.expect(m.Opened)
    verifier.cancel(client)


def test_sessions_are_shared_out(bench: Bench):
    verifier = bench.verifier(Flaky(SimSettings(step_ms=2)))
    for _ in range(2):
        bench.dealer()
    clients = [verifier.ask(LONG) for _ in range(4)]
    until(lambda: drafting(verifier) == [2, 2], "each has two")
    for client in clients:
        verifier.cancel(client)


def test_a_session_that_joins_many_asks_for_nothing(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    """Where drafts were measured not to pay for so many, its drafter hears so with the first that it is told."""
    pays, closed = SpeculationGate(), SpeculationGate()
    closed.drafts = False
    monkeypatch.setattr(StepCosts, "gate", lambda _, sessions: pays if sessions < 3 else closed)
    verifier = bench.verifier(Flaky(SimSettings(step_ms=2)))
    drafter = bench.dealer()
    clients, asked = list[Hearing](), list[int]()
    for _ in range(3):
        clients.append(verifier.ask(LONG))
        opened = drafter.expect(m.Opened)
        while (told := drafter.expect(m.Sync)).session != opened.session:
            pass
        asked.append(told.draft_n)
    assert asked[0] > 0
    assert asked[2] == 0
    for client in clients:
        verifier.cancel(client)
