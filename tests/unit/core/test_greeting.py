"""When HELLO is said: quickly at first, ever more seldom, never in chorus."""

from specmesh.core.drafting.verifier_choice import FIRST, LONGEST, RENEW, STEADY, UNANSWERED, Greeting


def pauses(greeting: Greeting, count: int, *, sent: bool = True) -> list[float]:
    """The pauses after so many HELLOs, each said when it is due."""
    told = []
    for _ in range(count):
        now = greeting.due
        greeting.said(now, sent=sent)
        told.append(greeting.due - now)
    return told


def test_pauses_grow_to_a_bound():
    """At once, then twice as long each time, LONGEST at most."""
    greeting = Greeting(lambda: 0.0, 10.0)
    assert greeting.due == 10.0
    assert pauses(greeting, 6) == [FIRST, 2 * FIRST, 4 * FIRST, LONGEST, LONGEST, LONGEST]


def test_luck_shortens_them():
    """By up to a half, so that drafters of one verifier spread out."""
    assert pauses(Greeting(lambda: 0.5, 0.0), 2) == [0.75 * FIRST, 1.5 * FIRST]
    assert min(pauses(Greeting(lambda: 0.999, 0.0), 20)) >= FIRST / 2


def test_nobody_connected_is_no_refusal():
    """A HELLO that nobody took is tried again soon, however often."""
    greeting = Greeting(lambda: 0.0, 0.0)
    assert pauses(greeting, 50, sent=False) == [FIRST] * 50
    assert pauses(greeting, 1) == [FIRST]


def test_a_loss_after_a_while_is_answered_at_once():
    """And the pauses begin anew."""
    greeting = Greeting(lambda: 0.0, 0.0)
    pauses(greeting, 6)
    greeting.answered(20.0)
    greeting.lost(20.0 + STEADY)
    assert greeting.due == 20.0 + STEADY
    assert pauses(greeting, 2) == [FIRST, 2 * FIRST]


def test_a_verifier_that_comes_and_goes_is_asked_less_often():
    """Losses that follow each other wait longer each time."""
    greeting, waited = Greeting(lambda: 0.0, 0.0), []
    for turn in range(6):
        greeting.answered(float(turn))
        greeting.lost(float(turn))
        waited.append(greeting.due - turn)
    assert waited == [FIRST, 2 * FIRST, 4 * FIRST, LONGEST, LONGEST, LONGEST]


def test_no_answer_is_told_once():
    """After UNANSWERED seconds, and once more after each loss."""
    greeting = Greeting(lambda: 0.0, 0.0)
    assert [greeting.unanswered(now) for now in (UNANSWERED - 0.1, UNANSWERED, UNANSWERED + 1)] == [False, True, False]
    greeting.lost(100.0)
    assert [greeting.unanswered(100.0 + now) for now in (0.0, UNANSWERED, 99.0)] == [False, True, False]


def test_a_connection_without_an_answer_is_doubtful():
    """Now and then a fresh one is tried: what leads nowhere may look alive for long."""
    greeting = Greeting(lambda: 0.0, 0.0)
    assert [greeting.doubtful(now) for now in (RENEW - 1, RENEW, RENEW + 1, 2 * RENEW)] == [False, True, False, True]
    greeting.lost(3 * RENEW - 1)
    assert not greeting.doubtful(3 * RENEW)
