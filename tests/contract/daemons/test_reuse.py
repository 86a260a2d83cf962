"""What sessions leave in memory for those after them, at both daemons: nothing but time changes."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from harness.loops import Bench, Flaky, Hearing, Running, truth, until, welcome, welcomed
from numpy.typing import NDArray

from specmesh.config import ModelSettings
from specmesh.core.events import Span
from specmesh.core.requests import Finished, Request, Tokens
from specmesh.core.sampling.logprobs import Logprob
from specmesh.core.sampling.sampler import SamplingParams
from specmesh.core.session_params import SessionParams
from specmesh.engines.base import VerifyEngine
from specmesh.engines.llama import LlamaVerifier
from specmesh.engines.sim import SimSettings
from specmesh.paths import bundled
from specmesh.wire import messages as m

SYSTEM = tuple(b"You answer in verse, and never in prose. ")


class Counting(Flaky):
    rows = 0

    def decode(self, spans: Sequence[Span]) -> list[NDArray[np.float32] | None]:
        self.rows += sum(len(span.ids) for span in spans)
        return super().decode(spans)


def asked(ids: Sequence[int], max_tokens: int = 20, draft_n: int | None = 4, *, cached: bool = True) -> Request:
    params = SessionParams(SamplingParams(), max_tokens, draft_n, cache_prompt=cached)
    return Request(None, tuple(ids), params)


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
    found = 0
    for turn in range(4):
        ids += tuple(b"\nAnd then? %d" % turn)
        client = (verifier if socket_of == "verifier" else drafter).ask(asked(ids))
        end = ended(client)
        assert client.ids == truth(20, ids)
        assert end.report["cached_tokens"] == found
        ids += tuple(client.ids)
        found = len(ids) - 1
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


# --- real models


Said = tuple[list[int], list[Logprob | None]]


def said(running: Running, ids: Sequence[int], *, cached: bool) -> tuple[Said, int]:
    """A text's ids with their log-probabilities, and how much of its prompt was in memory."""
    params = SessionParams(SamplingParams(), 16, 0, logprobs=2, cache_prompt=cached)
    client, logprobs = running.ask(Request(None, tuple(ids), params)), list[Logprob | None]()
    while not isinstance(event := client.next(), Finished):
        logprobs += event.logprobs if isinstance(event, Tokens) else ()
    return (client.ids, logprobs), event.report["cached_tokens"]


def assert_same(target: VerifyEngine, cold: Said, warm: Said) -> None:
    """Equal to the last bit with steps of one width; else apart at a near tie, and before that by noise."""
    noise = 0.1
    assert target.info.width is None or warm == cold
    for token, other, mine, theirs in zip(cold[0], warm[0], cold[1], warm[1], strict=False):
        if token != other:
            best, second = mine.top
            assert best - second < 2 * noise
            return
        assert abs(mine.chosen - theirs.chosen) < noise


@pytest.fixture(params=[False, True], ids=["fast", "reproducible"])
def target(request: pytest.FixtureRequest) -> Iterator[VerifyEngine]:
    pytest.importorskip("llama_cpp")
    path = Path(bundled("target.gguf"))
    settings = ModelSettings("llama", str(path), ctx=1024, max_sessions=4, threads=1, reproducible=request.param)
    engine = LlamaVerifier(settings)
    yield engine
    engine.close()


@pytest.mark.models
def test_a_warm_text_is_a_cold_one(bench: Bench, target: VerifyEngine):
    """A chat of the bundled model: warm it says what it says cold. With steps of a constant width that holds to the
    last bit of each log-probability; else up to the kernels' noise, and to a near tie."""
    verifier = bench.verifier(target)
    text = Path(__file__).read_text(encoding="utf-8")
    lines = [tuple(target.tokenizer.encode(text[start : start + 200])) for start in range(2000, 2400, 200)]
    ids: tuple[int, ...] = tuple(target.tokenizer.encode(text[:600]))
    found = []
    for line in lines:
        ids += line
        (cold, nothing), (warm, cached) = said(verifier, ids, cached=False), said(verifier, ids, cached=True)
        assert nothing == 0
        found.append(cached)
        assert_same(target, cold, warm)
        ids += tuple(cold[0])
    again, cached = said(verifier, ids[: -len(cold[0])], cached=True)
    assert_same(target, cold, again)
    assert found[0] == 0
    assert all(found[1:])
    assert cached == len(ids) - len(cold[0]) - 1
    if target.info.width is not None:
        assert all(cached % 128 == 0 for cached in found)
