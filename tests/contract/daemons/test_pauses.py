"""Readers that stop.

Their sessions wait for them, at a verifier, at a drafter and between the two.
"""

from functools import partial

import pytest
from harness.loops import PROMPT, Flaky, ask_for, request, truth, welcomed
from named_texts import Told, asked, back

from specmesh.core.liveness import Link
from specmesh.wire import messages as m

COUNT = 2000  # ids of a text that is far from its end while others have some


def goes_on_without(verifier, paused):
    """Check that others go on, and that the paused one gets nothing more, far from its end.

    The pause takes a while to the verifier, and ids on their way as long to the client.
    """
    verifier.ask(request(40)).whole(40)
    while not paused.empty():
        while not paused.empty():
            paused.next()
        verifier.ask(request(40)).whole(40)
    assert len(paused.ids) < COUNT


def told_so_far(drafter):
    """Return how many ids arrived once the verifier has read everything so far."""
    drafter.ping(1)
    return len(drafter.truth)


@pytest.mark.fault("E5.56")
@pytest.mark.parametrize("draft_n", [0, 4, None])
def test_a_text_waits_for_its_reader(bench, role, draft_n):
    """It has no steps meanwhile, and is the target's own to its end."""
    engine = Flaky(step_ms=1)
    verifier, drafter = bench.pair(engine)
    asked = drafter if role == "drafter" else verifier
    client = asked.ask(request(COUNT, draft_n))
    client.heard(10)
    asked.pause(client)
    goes_on_without(verifier, client)
    asked.pause(client, paused=False)
    engine.pace(0)
    client.whole(COUNT)


def test_a_reader_that_leaves(bench, role):
    """Its session ends, paused or not."""
    verifier, drafter = bench.pair(Flaky(step_ms=1, max_sessions=1))
    asked = drafter if role == "drafter" else verifier
    client = asked.ask(request(5000))
    client.heard(10)
    asked.pause(client)
    asked.cancel(client)
    verifier.ask(request(40)).whole(40)


def test_who_may_pause(bench):
    """Only the drafter whose client asked may."""
    engine = Flaky(step_ms=1)
    verifier = bench.verifier(engine, link=partial(Link, silence=1e9))
    own = bench.dealer()
    other = bench.dealer()
    own.say(ask_for(1, ids=PROMPT, max_tokens=COUNT))
    opened = own.expect(m.Opened)
    other.say(m.Pause(opened.session), m.Pause(4_000_000_000))
    other.ping(1)
    engine.pace(0)
    own.expect(m.Done)
    assert own.truth == [*PROMPT, *truth(COUNT)]
    engine.pace(1)
    own.say(m.Close(opened.session), ask_for(2, ids=PROMPT, max_tokens=COUNT))
    opened = own.expect(m.Opened)
    own.say(m.Pause(opened.session))
    told_so_far(own)
    verifier.ask(request(40)).whole(40)  # the step under way at the pause ends too
    known = told_so_far(own)
    verifier.ask(request(40)).whole(40)
    assert told_so_far(own) == known
    own.say(m.Pause(opened.session, paused=False))
    engine.pace(0)
    own.expect(m.Done)
    assert own.truth == [*PROMPT, *truth(COUNT)]


def test_a_drafter_says_it_again(bench):
    """To a verifier that comes back, of which it asks for the text anew."""
    router, drafter = welcomed(bench)
    client = drafter.ask(asked())
    told = Told(router).more(2)
    client.heard(2)
    drafter.pause(client)
    assert router.expect(m.Pause) == m.Pause(told.session)
    back(router)
    again = Told(router, session=told.session + 1)
    assert router.expect(m.Pause) == m.Pause(again.session)
    drafter.pause(client, paused=False)
    assert router.expect(m.Pause) == m.Pause(again.session, paused=False)
    again.rest()
    client.whole(20)
