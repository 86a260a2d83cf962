"""A drafter getting to know its verifier, without sockets."""

from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from pathlib import Path
from threading import Event
from typing import Any, TypeVar

import pytest

from specmesh.core.sampling.sampler import Sampler, SamplingParams
from specmesh.core.vocabulary.match import Verdict
from specmesh.core.vocabulary.vocabulary import Vocabulary
from specmesh.daemons.link.vocabulary_handshake import MAX_PROBES, RETRY, Introduction
from specmesh.daemons.link.vocabulary_transfer import VocabularyCache, vocabulary_chunk
from specmesh.engines.base import DraftEngine, EngineInfo
from specmesh.engines.ngram import NgramDrafter
from specmesh.engines.remapped import RemappedDrafter
from specmesh.errors import ConfigError, RemoteProtocolError, RequestError
from specmesh.wire import messages as m

T = TypeVar("T")

OWN = Vocabulary((*(b"word%d" % number for number in range(6000)), b"a", b" ", b""), frozenset({6002}))
TURNED = Vocabulary(OWN.pieces[::-1], frozenset({0}))
OTHER = Vocabulary((b"x", b"y", b""), frozenset({2}))


class Reader:
    """A draft engine with a tokenizer: it knows "a" and " "."""

    info = EngineInfo("reader", 64, 8, 1, trimming="removal", backend="test")
    vocabulary = OWN

    def __init__(self) -> None:
        self.asked: list[str] = []

    def predict(self, seq: int, ids: Sequence[int], sampler: Sampler | None) -> int | None:
        return 0

    def trim(self, seq: int, length: int) -> int:
        return 0

    def close(self) -> None:
        pass

    def encode(self, text: str) -> list[int]:
        self.asked.append(text)
        if not set(text) <= {"a", " "}:
            raise RequestError("only a")
        return [6000 if letter == "a" else 6001 for letter in text]


def welcome(vocabulary: Vocabulary, **changes: object) -> m.Welcome:
    fields = {
        "verifier": "v",
        "model": "target",
        "model_hash": "",
        "vocab_fingerprint": vocabulary.fingerprint(),
        "n_vocab": len(vocabulary),
        "n_ctx": 64,
        "eog_ids": sorted(vocabulary.end_ids),
    }
    return m.Welcome(**(fields | changes))  # type: ignore[arg-type]


class Inline(Executor):
    """Runs what it is given at once."""

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> "Future[T]":
        done: Future[T] = Future()
        try:
            done.set_result(fn(*args, **kwargs))
        except ConfigError as error:
            done.set_exception(error)
        return done


def introduction(engine: DraftEngine, cache: VocabularyCache | None = None) -> Introduction:
    return Introduction(engine, cache=cache, executor=Inline())


def introduce(made: Introduction, vocabulary: Vocabulary, **changes: object) -> int:
    """Let it meet a verifier; how many VOCAB requests it took."""
    requests = 0
    request = made.welcomed(welcome(vocabulary, **changes), 0.0)
    while request is not None:
        requests += 1
        assert made.engine is None
        assert made.vocabulary is None
        request = made.answered(vocabulary_chunk(vocabulary, request.start), 0.0)
    made.settle()
    return requests


def test_the_same_vocabulary_needs_no_fetch():
    """Equal fingerprints: the engine as it is, no question asked."""
    engine = Reader()
    made = introduction(engine)
    assert introduce(made, OWN) == 0
    assert (made.engine, made.vocabulary) == (engine, OWN)
    assert made.comparison
    assert made.comparison.verdict is Verdict.SAME


def test_a_comparison_holds_nothing_up():
    """It runs beside the loop, which is woken for its result; of a verifier gone meanwhile nothing is taken over."""
    woken, comparing, go_on = Event(), Event(), Event()

    class Slow(Reader):
        def encode(self, text: str) -> list[int]:
            comparing.set()
            assert go_on.wait(30)
            return super().encode(text)

    made = Introduction(Slow(), wake=woken.set)
    made.welcomed(welcome(OWN, probes={"a": [6000]}), 0.0)
    assert comparing.wait(30)
    made.settle()
    assert made.engine is None
    assert not woken.is_set()
    assert made.welcomed(welcome(TURNED), 0.0) == m.Vocab(0)
    go_on.set()
    assert woken.wait(30)
    made.settle()
    assert made.engine is None
    assert introduce(made, OWN) == 0
    while made.engine is None:
        assert woken.wait(30)
        made.settle()


def test_other_ids_are_translated(tmp_path: Path):
    """A permuted vocabulary is fetched, kept, and spoken through a table; the next drafter asks for nothing."""
    cache = VocabularyCache(tmp_path)
    for requests in (1, 0):
        made = introduction(Reader(), cache=cache)
        assert introduce(made, TURNED) == requests
        assert isinstance(made.engine, RemappedDrafter)
        assert made.engine.predict(0, (1,), Sampler(SamplingParams())) == len(OWN) - 1
        assert made.vocabulary == TURNED


def test_an_engine_without_vocabulary(tmp_path: Path):
    """Prompt lookup knows ids only: it fetches the vocabulary for the text, and nothing is compared."""
    engine = NgramDrafter(64, 1)
    for requests in (1, 0):
        made = introduction(engine, cache=VocabularyCache(tmp_path))
        assert introduce(made, TURNED) == requests
        assert (made.engine, made.vocabulary, made.comparison) == (engine, TURNED, None)


def test_too_little_in_common():
    """A vocabulary that does not suit ends the drafter with both models' names and the reason."""
    made = introduction(Reader())
    with pytest.raises(ConfigError) as caught:
        introduce(made, OTHER)
    for words in ("reader", "target", "only 0 %", "0 is 'word0' for the drafter, 'x' for the verifier", "same family"):
        assert words in str(caught.value)
    assert made.engine is None


def test_the_same_verifier_again():
    """After a reconnection nothing is fetched or compared again; end ids or another vocabulary change that."""
    made = introduction(Reader())
    assert introduce(made, TURNED) == 1
    engine = made.engine
    made.lost()
    assert introduce(made, TURNED) == 0
    assert made.engine is engine
    assert introduce(made, TURNED, eog_ids=[0, 5]) == 1
    assert made.engine is not engine
    assert introduce(made, OWN) == 0
    assert isinstance(made.engine, Reader)


def test_lost_answers_are_asked_for_again():
    """VOCAB without an answer is repeated after a while; answers out of turn bring no new questions."""
    made = introduction(NgramDrafter(64, 1))
    first = made.welcomed(welcome(OWN), 10.0)
    assert first == m.Vocab(0)
    assert made.overdue(10.0 + RETRY / 2) is None
    assert made.overdue(10.1 + RETRY) == first
    assert made.overdue(10.2 + RETRY) is None
    assert made.answered(m.Vocab(7, ["YQ=="]), 12.0) is None
    assert made.answered(m.Vocab(0, ["YQ=="]), 12.0) == m.Vocab(1)
    assert made.answered(m.Vocab(0, ["YQ=="]), 12.0) is None
    made.lost()
    assert made.overdue(99.0) is None
    assert made.answered(m.Vocab(1, ["YQ=="]), 12.0) is None


def test_lies_are_the_peers_error(tmp_path: Path):
    """A vocabulary that is not what its fingerprint says is neither used nor kept."""
    made = introduction(Reader(), cache=VocabularyCache(tmp_path))
    with pytest.raises(RemoteProtocolError):
        introduce(made, TURNED, vocab_fingerprint="0" * 64)
    assert made.engine is None
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(RemoteProtocolError):
        made.welcomed(welcome(TURNED, n_vocab=2**31), 0.0)


@pytest.mark.parametrize(
    ("probes", "asked", "warned"),
    [
        ({}, 0, False),
        ({"a a": [2, 1, 2]}, 1, False),
        ({"a a": [0, 2, 1, 2, 0]}, 1, False),
        ({"a a": [2, 2]}, 1, True),
        ({"b": [2], "aa": [2, 2]}, 2, False),
        ({"a": "no", "aa": [2, -1], "aaa": [True], "aaaa": [10**6], "aaaaa": None, " ": [[1]]}, 0, False),
        ({"a" * 10_000: [2]}, 0, False),
        ({"a" * number: [2] * number for number in range(1, 100)}, MAX_PROBES, False),
    ],
    ids=["none", "alike", "control tokens", "differ", "not to be encoded", "nonsense", "too long", "too many"],
)
def test_probes(capsys: pytest.CaptureFixture[str], probes: dict[str, object], asked: int, warned: bool):
    """Encoders are compared as far as a peer's probes make sense; a difference is said and refuses nothing."""
    engine = Reader()
    made = introduction(engine)
    introduce(made, TURNED, probes=probes)
    assert made.engine is not None
    assert len(engine.asked) == asked
    assert ("encoders_differ" in "".join(capsys.readouterr())) == warned
