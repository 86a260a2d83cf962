"""Who drafts for which session: the verifier's loop with several drafters."""

from harness.loops import Bench, Flaky, Running, request, truth, until

from specmesh.engines.sim import SimDrafter, SimSettings
from specmesh.wire import messages as m

LONG = request(8000, None)


def peers(verifier: Running) -> list[dict[str, object]]:
    told = verifier.stats().get("peers", [])
    assert isinstance(told, list)
    return told


def drafting(verifier: Running) -> list[object]:
    return [peer["sessions"] for peer in peers(verifier)]


def test_a_session_ends_up_with_the_best(bench: Bench):
    """The first one that attached is mostly wrong; the second, better one is tried and kept. When it goes the first
    drafts again, and the text is the target's own throughout."""
    verifier = bench.verifier(Flaky(SimSettings(step_ms=20, row_ms=1)))
    bench.drafter(SimDrafter(SimSettings(draft_ms=2.5, alpha=0.1)))
    until(lambda: len(peers(verifier)) == 1, "the first is attached")
    good = bench.drafter(SimDrafter(SimSettings(draft_ms=2.5, alpha=0.95)))
    until(lambda: len(peers(verifier)) == 2, "both are attached")
    client = verifier.ask(LONG)
    until(lambda: drafting(verifier) == [0, 1], "the better one drafts")
    until(lambda: None not in [peer["promised_tokens_per_second"] for peer in peers(verifier)], "both are measured")
    first, second = (peer["promised_tokens_per_second"] for peer in peers(verifier))
    assert first < second
    bench.end(good)
    until(lambda: drafting(verifier) == [1], "the other one drafts again")
    while not client.empty():
        client.next()
    seen = len(client.ids)
    until(lambda: client.next() and len(client.ids) > seen + 40, "the text goes on")
    verifier.cancel(client)
    assert client.ids == truth(len(client.ids))


def test_a_drafter_that_says_nothing_is_not_kept_on_trial(bench: Bench):
    """It is told that the session is not its concern any more, and the next one is tried."""
    verifier = bench.verifier(Flaky(SimSettings(step_ms=20)))
    bench.drafter(SimDrafter(SimSettings(draft_ms=0.5, alpha=0.5)))
    until(lambda: len(peers(verifier)) == 1, "the first is attached")
    client = verifier.ask(LONG)
    until(lambda: drafting(verifier) == [1], "it drafts")
    mute = bench.dealer()
    mute.expect(m.Opened)
    done = mute.expect(m.Done)
    assert done.finish_reason == "moved"
    until(lambda: drafting(verifier) == [1, 0], "the first drafts again")
    verifier.cancel(client)


def test_sessions_are_shared_out(bench: Bench):
    verifier = bench.verifier(Flaky(SimSettings(step_ms=20)))
    for _ in range(2):
        bench.dealer()
    clients = [verifier.ask(LONG) for _ in range(4)]
    until(lambda: drafting(verifier) == [2, 2], "each has two")
    for client in clients:
        verifier.cancel(client)
