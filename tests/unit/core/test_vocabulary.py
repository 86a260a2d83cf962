"""Vocabularies as bytes, and text that grows by whole characters."""

import hashlib
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specmesh.core.vocabulary.vocabulary import TextStream, Vocabulary

PROFILE = settings(derandomize=True, deadline=None, max_examples=300)


def pieces_of(raw, cuts):
    """A vocabulary whose ids, in order, spell `raw` cut at these places."""
    edges = sorted({0, len(raw), *(cut % (len(raw) + 1) for cut in cuts)})
    return Vocabulary(tuple(raw[a:b] for a, b in pairwise(edges)), frozenset())


@PROFILE
@given(st.text(max_size=30), st.lists(st.integers(0, 200), max_size=20))
@pytest.mark.fault("E7.83")
def test_stream_never_emits_half_a_character(text, cuts):
    vocabulary = pieces_of(text.encode(), cuts)
    stream, shown = TextStream(vocabulary), ""
    for token in range(len(vocabulary)):
        shown += stream.feed([token])
        assert text.startswith(shown)
    assert stream.finish() == ""
    assert shown == text == vocabulary.text(range(len(vocabulary)))


@PROFILE
@given(st.binary(max_size=40), st.lists(st.integers(0, 200), max_size=20))
def test_stream_of_any_bytes_equals_the_whole(raw, cuts):
    vocabulary = pieces_of(raw, cuts)
    stream = TextStream(vocabulary)
    shown = "".join(stream.feed([token]) for token in range(len(vocabulary))) + stream.finish()
    assert shown == raw.decode("utf-8", "replace") == vocabulary.text(range(len(vocabulary)))


def test_fingerprint_is_the_sha_256_of_the_framed_pieces():
    digest = hashlib.sha256(b"\x02\0\0\0ab" + b"\0\0\0\0" + b"\x01\0\0\0c").hexdigest()
    assert Vocabulary((b"ab", b"", b"c"), frozenset()).fingerprint() == digest


def test_fingerprint_sees_every_difference():
    variants = [(b"ab", b"c"), (b"c", b"ab"), (b"a", b"bc"), (b"ab", b"c", b""), (b"abc",)]
    assert len({Vocabulary(pieces, frozenset()).fingerprint() for pieces in variants}) == len(variants)
    assert Vocabulary((b"a",), frozenset({0})).fingerprint() == Vocabulary((b"a",), frozenset()).fingerprint()
