"""Texts through two encoders: whether they are cut into the same tokens.

Vocabularies can agree while encoders differ, in merges, normalisation or how text is split before. Ids still mean what
they say, so a drafter whose encoder differs is not refused: the text and its tokens are the verifier's, and the draft
model reads those. But it has learnt from text cut otherwise, so fewer of its drafts may stand: worth a warning.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from specmesh.core.vocabulary.match import spelling
from specmesh.core.vocabulary.vocabulary import Vocabulary

PROBES = (
    "The quick brown fox jumps over the lazy dog.",
    "it's, they're; WE'LL (don't) -- \"quoted\"... e.g. $3.50?",
    "def f(x: int) -> str:\n    return f'{x!r}'\n\n\nclass A:\n\tpass\n",
    "if (a != b && c->d[0] == 0x1F) { i++; } // TODO",
    "https://example.org/a_b-c?d=1&e=%20#f user@example.org",
    "3.14159 1000000 2026-11-21 12:30:45 1e-9 007",
    "  two    four        eight\t\ttabs \n\n \r\n end ",
    "Grüße, naïve café, Ελληνικά, Русский, עברית, العربية, हिन्दी",
    "cafe\u0301 \ufb01 \u2460 \u00a0\u3000 \u200b",
    "日本語のテキスト、中文字符。한국어 문장",
    "😀👩‍👩‍👧‍👦🇩🇪 ✓ → ∑",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa ________________________________",
)
"""What is tried: words, punctuation, code, addresses, digits, runs of white space, scripts, emoji."""


@dataclass(frozen=True, slots=True)
class Probed:
    """How many of the texts that were compared came out alike, and in words the first that did not."""

    agreed: int
    compared: int
    first: str = ""


def compare_encodings(
    draft: Vocabulary, verifier: Vocabulary, encodings: Iterable[tuple[str, Sequence[int], Sequence[int]]]
) -> Probed:
    """Compare (text, draft's ids, verifier's ids). Ids must lie in their vocabularies.

    Tokens without text, which models want around a prompt, are left out. A text in which the verifier uses a token
    that the drafter lacks must come out differently, and is not compared.
    """
    known = frozenset(draft.pieces)
    agreed = compared = 0
    first = ""
    for text, mine, theirs in encodings:
        own = [draft.pieces[token] for token in mine if draft.pieces[token]]
        expected = [verifier.pieces[token] for token in theirs if verifier.pieces[token]]
        if not known.issuperset(expected):
            continue
        compared += 1
        if own == expected:
            agreed += 1
        elif not first:
            first = _difference(text, own, expected)
    return Probed(agreed, compared, first)


def _difference(text: str, own: list[bytes], expected: list[bytes]) -> str:
    """The first place where two encodings part."""
    same = next(
        (i for i, (a, b) in enumerate(zip(own, expected, strict=False)) if a != b), min(len(own), len(expected))
    )
    shown = [" ".join(map(spelling, pieces[same : same + 4])) or "the end" for pieces in (own, expected)]
    return f"{spelling(text.encode())}: from token {same} on {shown[0]} for the drafter, {shown[1]} for the verifier"
