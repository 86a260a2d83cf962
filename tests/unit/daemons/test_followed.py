"""What a drafter asks a verifier for, and what it makes of the answer."""

import pytest

from specmesh.api.requests import Request
from specmesh.core.sampling.constraint import Grammar, GrammarKind
from specmesh.core.sampling.sampler import SamplingParams
from specmesh.core.session_params import SessionParams
from specmesh.daemons.drafter.draft_session import Asked
from specmesh.daemons.verifier.remote_client import opened
from specmesh.wire.messages import Opened

GBNF = Grammar(GrammarKind.GBNF, 'root ::= "a"')
PLAIN = SessionParams(SamplingParams(), 9)
OLDER = Opened(3, 9, 1, 0.0, 0, 1.0, 0)
"""The answer of a verifier that knows neither grammars nor strategies."""


def lacking(params: SessionParams, answer: Opened, *, by_name: bool = False) -> str | None:
    """What a session lacks of what was asked for."""
    return Asked(Request("x", None, params, named_only=by_name), None).lacking(answer)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (PLAIN, None),
        (SessionParams(SamplingParams(), 9, grammar=GBNF), "knows no grammar"),
        (SessionParams(SamplingParams(strategy="threshold"), 9), "knows no strategy threshold"),
        (SessionParams(SamplingParams(strategy="probabilistic"), 9), "knows no strategy probabilistic"),
        (SessionParams(SamplingParams(strategy="greedy"), 9), None),
    ],
)
def test_what_an_older_verifier_read_over(asked: SessionParams, said: str | None):
    """It is told where it changes the text; who asks by a name takes the text as it is."""
    assert lacking(asked, OLDER) == said
    assert lacking(asked, opened(3, 9, 1, asked)) is None
    assert lacking(asked, OLDER, by_name=True) is None
