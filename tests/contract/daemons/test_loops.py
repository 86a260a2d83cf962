"""The two loops in this process, over real sockets, with engines that fail and peers that are scripted."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from harness.loops import PATIENCE, PROMPT, Bench, Flaky, FlakyDrafter, attach, request, truth, until
from numpy.typing import NDArray

from specmesh.api.body import endless
from specmesh.api.requests import Finished, Peer, Pinged, Ponged, Request, Started
from specmesh.core.sampling.sampler import Sampler
from specmesh.core.vocabulary.vocabulary import Vocabulary
from specmesh.daemons.link.vocabulary_handshake import VocabularyCache, vocabulary_chunk
from specmesh.daemons.runtime.shared_cores import host_id
from specmesh.daemons.verifier import daemon as verifier_module
from specmesh.engines.ngram import NgramDrafter
from specmesh.engines.sim import SimDrafter, SimSettings, SimVerifier
from specmesh.errors import EngineError, PromptTooLong, RequestError, SpecmeshError
from specmesh.wire import messages as m


def test_verifier_alone(bench: Bench):
    """A request is answered by Started, its ids and the report; nothing was drafted."""
    client = bench.verifier().ask(request())
    started = client.next()
    assert isinstance(started, Started)
    assert started.prompt_tokens == len(PROMPT)
    end = client.end()
    assert isinstance(end, Finished)
    assert (client.ids, end.reason, end.prompt_ids) == (truth(20), "length", PROMPT)
    assert (end.report["generated_tokens"], end.report["drafted"], end.report["bytes_sent"]) == (20, 0, 0)


@pytest.mark.parametrize(
    ("what", "error"),
    [
        (request(ids=()), RequestError),
        (request(ids=(256,)), RequestError),
        (request(ids=(-1,)), RequestError),
        (request(ids=(65,) * 8192), PromptTooLong),
    ],
    ids=["empty", "id too large", "id negative", "too long"],
)
def test_requests_that_cannot_be(bench: Bench, what: Request, error: type[SpecmeshError]):
    """What can never be served fails at once and takes no place."""
    verifier = bench.verifier()
    assert type(verifier.ask(what).error()) is error
    assert isinstance(verifier.ask(request(3)).end(), Finished)


@pytest.mark.fault("E5.57")
def test_engine_failure_ends_the_session_only(bench: Bench):
    """A step that fails: the client gets the engine's error, and the place serves the next request."""
    engine = Flaky(SimSettings(n_seq=1))
    engine.fail_from = len(PROMPT) + 5
    verifier = bench.verifier(engine)
    client = verifier.ask(request())
    assert isinstance(client.error(), EngineError)
    assert client.ids == truth(6)
    short = verifier.ask(request(3))
    short.whole(3)


@pytest.mark.parametrize("ignored", [False, True])
def test_a_forbidden_end_is_not_said(bench: Bench, ignored: bool):
    """`ignore_eos`: the text goes on where the target would have ended it, at either end, with drafts and without."""
    verifier = bench.verifier(Flaky(SimSettings(end_after=len(PROMPT) + 5)))
    drafter = bench.drafter()
    attach(verifier, drafter)
    what = request(20, draft_n=0)
    if ignored:
        what = replace(what, params=endless(what.params, {255}))
    clients = verifier.ask(what), drafter.ask(replace(what, params=replace(what.params, draft_n=4)))
    reasons = {client.end().reason for client in clients}
    assert (clients[0].ids, reasons) == (clients[1].ids, {"length" if ignored else "stop"})
    assert (len(clients[0].ids), 255 in clients[0].ids) == (20 if ignored else 5, False)


def test_engine_failure_is_told_to_the_drafters_client(bench: Bench):
    """The same with the client on the drafter's socket: an error, never a text that only looks finished."""
    engine = Flaky(SimSettings())
    engine.fail_from = len(PROMPT) + 30
    _, drafter = bench.pair(engine)
    client = drafter.ask(request(200))
    assert str(client.error()) == "the verifier's engine failed: out of memory"
    assert client.ids == truth(len(client.ids))


def test_draft_engine_failure_changes_nothing(bench: Bench):
    """A draft model that fails is given up for that session: the text is whole, at both sockets."""
    verifier = bench.verifier()
    engine = FlakyDrafter(SimSettings())
    drafter = bench.drafter(engine)
    attach(verifier, drafter)
    for asked in (verifier, drafter):
        engine.left = 3
        client = asked.ask(request(60))
        client.whole(60)


def test_cancel_frees_the_place(bench: Bench):
    """A client that leaves, at either socket, frees its place at the verifier."""
    verifier, drafter = bench.pair(Flaky(SimSettings(n_seq=1, step_ms=1)))
    for asked in (verifier, drafter):
        client = asked.ask(request(8000))
        client.heard(1)
        asked.cancel(client)
        until(lambda: verifier.stats()["sessions"]["live"] == 0, "the session ends")
        last = asked.ask(request(5))
        last.whole(5)


def test_more_sessions_than_the_draft_model_holds(bench: Bench):
    """Sessions without a place in the draft model are followed without drafts, and whole all the same."""
    _, drafter = bench.pair(draft=SimDrafter(SimSettings(n_seq=1)))
    clients = [drafter.ask(request(80)) for _ in range(4)]
    for client in clients:
        client.whole(80)


def test_vocabulary_comes_to_a_drafter_without_one(bench: Bench):
    """An n-gram drafter downloads the verifier's vocabulary."""
    _, drafter = bench.pair(draft=NgramDrafter(4096, 2))
    assert drafter.vocabulary == SimVerifier(SimSettings()).vocabulary


class Turned(SimDrafter):
    """The simulated draft model with its ids in reverse order."""

    def __init__(self, settings: SimSettings) -> None:
        super().__init__(settings)
        self.vocabulary = Vocabulary(self.vocabulary.pieces[::-1], frozenset({0}))

    def predict(self, seq: int, ids: Sequence[int], sampler: Sampler | None) -> int | None:
        guess = super().predict(seq, [255 - token for token in ids], sampler and Reversing(sampler))
        return None if guess is None else 255 - guess


class Reversing(Sampler):
    """Shows a sampler the logits of `Turned`."""

    def __init__(self, sampler: Sampler) -> None:
        super().__init__(sampler.params)
        self._own = sampler

    def choose(self, logits: NDArray[np.float32], position: int) -> int:
        return 255 - self._own.choose(logits[::-1], position)


def test_remapped_drafter_is_asked_once_for_what_it_can_keep(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Other ids: right drafts, the verifier's text. VOCAB is asked the first time only, or where the file is bad."""
    asked: list[int] = []
    monkeypatch.setattr(
        verifier_module,
        "vocabulary_chunk",
        lambda vocabulary, start: asked.append(start) or vocabulary_chunk(vocabulary, start),
    )
    verifier = bench.verifier(Flaky(SimSettings(step_ms=4)))
    for number, expected in enumerate(([0], [0], [0, 0])):
        drafter = bench.drafter(Turned(SimSettings(alpha=1.0)), VocabularyCache(tmp_path))
        attach(verifier, drafter)
        client = drafter.ask(request(60))
        end = client.end()
        assert isinstance(end, Finished)
        assert client.ids == truth(60)
        assert end.report["accepted"] == end.report["drafted"] > 0
        assert asked == expected
        drafter.stop()
        until(lambda: not verifier.stats()["peers"], "the verifier has noticed")
        if number == 1:
            next(tmp_path.iterdir()).write_bytes(b"damaged")


def test_probes_from_both_sides(bench: Bench):
    """A probe goes to every peer, and each answer is told with its time; the peer is named with its address."""
    verifier, drafter = bench.pair()
    for side, peer in ((verifier, Peer("d", "tcp://127.0.0.1")), (drafter, Peer("v", bench.address))):
        heard = side.probe(4)
        assert heard.get(timeout=PATIENCE) == Pinged(4, (peer,))
        answered = heard.get(timeout=PATIENCE)
        assert isinstance(answered, Ponged)
        assert (answered.number, answered.peer) == (4, peer)
        assert 0 < answered.seconds < PATIENCE


@pytest.mark.parametrize("role", ["verifier", "drafter"])
def test_a_probe_without_peers(bench: Bench, role: str):
    """Where nobody is there, that is what is told."""
    side = bench.verifier() if role == "verifier" else bench.drafter()
    assert side.probe(1).get(timeout=PATIENCE) == Pinged(1, ())


def test_a_hosts_name_is_told_to_those_that_know_it(bench: Bench):
    """With it anybody could claim to take all cores of the verifier's host."""
    bench.verifier()
    for host, told in ((host_id(), host_id()), ("", ""), ("another", "")):
        drafter = bench.dealer(known=False)
        drafter.say(m.Hello("scripted", "scripted", "none", "", 0, 4096, host, 1))
        answer = drafter.expect(m.Welcome)
        assert answer.host == told
