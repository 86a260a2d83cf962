"""Grammars as values, and rows that are masked."""

import json

import numpy as np
import pytest

from specmesh.core.sampling.constraint import MAX_GRAMMAR, Grammar, GrammarKind, check_grammar, masked
from specmesh.core.sampling.sampler import FORBIDDEN, Penalties, Sampler, SamplingParams
from specmesh.errors import RequestError

GBNF, SCHEMA = GrammarKind.GBNF, GrammarKind.JSON_SCHEMA


@pytest.mark.parametrize(
    ("grammar", "why"),
    [
        (Grammar(GBNF, "x" * (MAX_GRAMMAR + 1)), "bytes"),
        (Grammar(GBNF, " \n"), "empty"),
        (Grammar(GBNF, 'root ::= "x" # \x01'), "control characters"),
        (Grammar(GBNF, "\udc80"), "not valid Unicode"),
        (Grammar(SCHEMA, "{"), "not JSON"),
        (Grammar(SCHEMA, "[" * 20_000), "nested too deeply"),
        (Grammar(SCHEMA, "[]"), "must be a JSON object"),
        (Grammar(GrammarKind.TOOLS, "[]"), "must be a JSON object"),
        (Grammar(SCHEMA, json.dumps({"title": "x" * MAX_GRAMMAR})), "bytes"),
    ],
)
def test_what_cannot_be_a_grammar(grammar: Grammar, why: str):
    with pytest.raises(RequestError, match=why) as told:
        check_grammar(grammar)
    assert told.value.param == ("grammar" if grammar.kind is GBNF else grammar.kind.value)


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(0.8),
        SamplingParams(100.0, seed=3),
        SamplingParams(0.7, top_k=5, top_p=0.99),
        SamplingParams(0.7, min_p=0.01),
        SamplingParams(0.7, top_p=1 - 1e-12),
        SamplingParams(1.0, logit_bias=((3, FORBIDDEN), (5, 100.0), (7, FORBIDDEN))),
        SamplingParams(0.0, logit_bias=((3, FORBIDDEN), (5, 100.0), (7, FORBIDDEN))),
        SamplingParams(1.0, penalties=Penalties(100.0, 100.0, 100.0)),
        SamplingParams(1.0, penalties=Penalties(0.01, -100.0, -100.0)),
    ],
)
def test_nothing_makes_a_barred_id_win(params: SamplingParams):
    allowed = np.zeros(64, np.bool_)
    allowed[[3, 7]] = True
    rows = np.random.default_rng(1).normal(0, 8, (50, 64)).astype(np.float32)
    with np.errstate(all="raise", under="ignore"):
        chosen = {
            Sampler(params, (5, 5, 3)).choose(masked(row, allowed), position) for position, row in enumerate(rows)
        }
    assert chosen <= {3, 7}
