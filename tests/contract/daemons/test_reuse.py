"""What sessions leave in memory for those after them, at both daemons: nothing but time changes."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from harness.loops import Bench, Flaky, Hearing, Running, truth, until, welcome, welcomed
from numpy.typing import NDArray

from specmesh.core.events import Span
from specmesh.core.requests import Finished, Request
from specmesh.core.sampling.sampler import SamplingParams
from specmesh.core.session_params import SessionParams
from specmesh.engines.sim import SimSettings
from specmesh.wire import messages as m

SYSTEM = tuple(b"You answer in verse, and never in prose. ")


class Counting(Flaky):
    rows = 0

    def decode(self, spans: Sequence[Span]) -> list[NDArray[np.float32] | None]:
        self.rows += sum(len(span.ids) for span in spans)
        return super().decode(spans)


def asked(ids: Sequence[int], max_tokens: int = 20, draft_n: int | None = 4) -> Request:
    return Request(None, tuple(ids), SessionParams(SamplingParams(), max_tokens, draft_n))


def ended(client: Hearing) -> Finished:
    end = client.end()
    assert isinstance(end, Finished), end
    return end


def prefix_cache(running: Running) -> dict[str, int]:
    return running.stats()["prefix_cache"]


@pytest.mark.parametrize("socket_of", ["verifier", "drafter"])
def test_turns_of_a_chat(bench: Bench, socket_of: str):
    """Each turn finds all of the one before but its last id, and says what it would alone."""
    engine = Counting(SimSettings())
    verifier, drafter = bench.pair(engine)
    ids: tuple[int, ...] = SYSTEM
    found, counts = 0, Counter[str]()
    for turn in range(4):
        ids += tuple(b"\nAnd then? %d" % turn)
        client = (verifier if socket_of == "verifier" else drafter).ask(asked(ids))
        end = ended(client)
        assert client.ids == truth(20, ids)
        assert end.report["cached_tokens"] == found
        counts.update({name: end.report[name] for name in ("generated_tokens", "drafted", "accepted")})
        ids += tuple(client.ids)
        found = len(ids) - 1
    assert counts.items() <= verifier.stats()["totals"].items()
    assert engine.rows < len(ids) + 4 * 20 * 5
    assert prefix_cache(verifier)["hits"] == 3
    assert prefix_cache(verifier)["tokens_saved"] > 3 * len(SYSTEM)
    assert prefix_cache(verifier)["kept_tokens"] == len(ids) - 1


def test_a_system_prompt_of_a_session_that_lives(bench: Bench):
    """A session begins with a copy of what another one holds, which goes on; both say what they would alone."""
    verifier = bench.verifier(Flaky(SimSettings(step_ms=1)))
    one = verifier.ask(asked((*SYSTEM, 65), 8000, 0))
    one.heard(1)
    other = verifier.ask(asked((*SYSTEM, 66), 10, 0))
    assert ended(other).report["cached_tokens"] == len(SYSTEM)
    assert other.ids == truth(10, (*SYSTEM, 66))
    verifier.cancel(one)
    assert ended(one).reason == "cancelled"
    assert one.ids == truth(len(one.ids), (*SYSTEM, 65))


@pytest.mark.parametrize(("fingerprint", "kept"), [(welcome().vocab_fingerprint, True), ("0" * 64, False)])
def test_the_same_ids_of_another_vocabulary(bench: Bench, fingerprint: str, kept: bool):
    """A drafter whose verifier comes back with another vocabulary keeps nothing: the ids may mean other tokens."""
    router, drafter = welcomed(bench)
    router.say(m.Opened(1, 0, len(SYSTEM), {"temperature": 0}), m.Sync(1, 0, 0, SYSTEM, 4))
    router.expect(m.Draft)
    router.say(m.Done(1, "stop", len(SYSTEM)))
    until(lambda: prefix_cache(drafter)["kept_tokens"] > 0, "it is kept")
    router.say(m.Bye())
    router.expect(m.Hello)
    router.say(welcome(verifier="w", model="other", vocab_fingerprint=fingerprint))
    if not kept:
        until(lambda: prefix_cache(drafter)["kept_tokens"] == 0, "it is given up")
        return
    router.say(m.Opened(1, 0, len(SYSTEM) + 1, {"temperature": 0}), m.Sync(1, 0, 0, (*SYSTEM, 65), 4))
    router.expect(m.Draft)
    until(lambda: prefix_cache(drafter)["hits"] > 0, "it is found again")
