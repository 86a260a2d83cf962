"""Vocabularies as bytes, and text that grows by whole characters."""

import hashlib
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from specmesh.core.sampling.stop import StopTextFilter
from specmesh.core.vocabulary.vocabulary import Vocabulary

PROFILE = settings(derandomize=True, deadline=None, max_examples=300)


def pieces_of(raw, cuts):
    """A vocabulary whose ids, in order, spell `raw` cut at these places."""
    edges = sorted({0, len(raw), *(cut % (len(raw) + 1) for cut in cuts)})
    return Vocabulary(tuple(raw[a:b] for a, b in pairwise(edges)), frozenset())


@PROFILE
@given(st.binary(max_size=40), st.lists(st.integers(0, 200), max_size=20))
def test_stream_of_any_bytes_equals_the_whole(raw, cuts):
    vocabulary = pieces_of(raw, cuts)
    stream = StopTextFilter(vocabulary, ())
    shown = stream.feed(range(len(vocabulary))).text + stream.finish().text
    assert shown == raw.decode("utf-8", "replace") == vocabulary.text(range(len(vocabulary)))


def test_fingerprint_is_the_sha_256_of_the_framed_pieces():
    digest = hashlib.sha256(b"\x02\0\0\0ab" + b"\0\0\0\0" + b"\x01\0\0\0c").hexdigest()
    assert Vocabulary((b"ab", b"", b"c"), frozenset()).fingerprint() == digest
