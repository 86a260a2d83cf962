"""A vocabulary over the wire in parts."""

import dataclasses

import pytest

from specmesh.core.vocabulary.vocabulary import Vocabulary
from specmesh.daemons.link.vocabulary_transfer import VocabularyDownload, vocabulary_chunk
from specmesh.errors import RemoteProtocolError
from specmesh.wire.codec import decode, encode
from specmesh.wire.messages import Vocab, Welcome

SMALL = Vocabulary((b"a", b"\xff\x00", b"", "ü".encode()), frozenset({2}))
LARGE = Vocabulary(tuple(b"<%d>" % n * 3 for n in range(40_000)), frozenset({1, 2}))


def welcome(vocabulary: Vocabulary) -> Welcome:
    return Welcome("v", "m", "", vocabulary.fingerprint(), len(vocabulary), 4096, sorted(vocabulary.end_ids))


def downloaded(vocabulary: Vocabulary, told: Welcome) -> tuple[Vocabulary | None, int]:
    """What a drafter puts together, over encoded frames, and in how many answers."""
    download, answers, whole = VocabularyDownload(told), 0, None
    while whole is None and answers < 1000:
        request = decode(encode(download.next_request()))
        assert isinstance(request, Vocab)
        answer = decode(encode(vocabulary_chunk(vocabulary, request.start)))
        assert isinstance(answer, Vocab)
        whole = download.add(answer)
        answers += 1
    return whole, answers


@pytest.mark.parametrize("vocabulary", [SMALL, LARGE], ids=["small", "large"])
def test_round_trip(vocabulary: Vocabulary):
    """Any vocabulary arrives as it is, in frames of bounded size, end ids too."""
    whole, answers = downloaded(vocabulary, welcome(vocabulary))
    assert whole == vocabulary
    assert (answers > 1) == (len(vocabulary) > 1000)


def test_past_the_end():
    """Past the end there is nothing; so is what a hostile start gets."""
    for start in (4, 5, 2**32 - 1):
        assert vocabulary_chunk(SMALL, start) == Vocab(start, [])


def test_wrong_fingerprint():
    """Pieces that do not match WELCOME's fingerprint are an error of the peer."""
    told = dataclasses.replace(welcome(SMALL), vocab_fingerprint="0" * 64)
    with pytest.raises(RemoteProtocolError, match="fingerprint"):
        downloaded(SMALL, told)


@pytest.mark.parametrize("piece", ["not base64!", "YQ", "YQ==x", "ü"])
def test_bad_base64(piece: str):
    """What is not base64 is an error of the peer."""
    with pytest.raises(RemoteProtocolError, match="base64"):
        VocabularyDownload(welcome(SMALL)).add(Vocab(0, [piece]))


def test_answers_out_of_turn_are_ignored():
    """A part twice, out of order or empty changes nothing."""
    download = VocabularyDownload(welcome(SMALL))
    assert download.add(Vocab(2, ["YQ=="])) is None
    assert download.add(Vocab(0, [])) is None
    assert download.next_request() == Vocab(0)
    assert download.add(Vocab(0, ["YQ=="])) is None
    assert download.add(Vocab(0, ["YQ=="])) is None
    assert download.next_request() == Vocab(1)
    assert download.add(vocabulary_chunk(SMALL, 1)) == SMALL
