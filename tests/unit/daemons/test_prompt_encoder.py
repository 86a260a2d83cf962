"""The verifier's encoder of requests."""

from dataclasses import replace
from queue import SimpleQueue
from unittest.mock import Mock

import pytest

from specmesh.core.requests import Request
from specmesh.core.sampling.sampler import SamplingParams
from specmesh.core.session_params import SessionParams, TargetLimits
from specmesh.core.text.chat import Tokenizer
from specmesh.core.verifier import events as vev
from specmesh.core.vocabulary.vocabulary import Vocabulary
from specmesh.daemons.verifier.daemon import PromptEncoder

PREDICTION = "what is expected"


@pytest.fixture
def encoder():
    """Return an encoder; `encoded` are the texts it has encoded, `openings` its results."""
    tokenizer = Mock(Tokenizer, vocabulary=Vocabulary((b"a",) * 8, frozenset({7})))
    tokenizer.least_ids.return_value = 1
    tokenizer.encode.return_value = [1, 2, 3]
    limits = TargetLimits(64, 8, frozenset({7}), max_drafts=4)
    openings = SimpleQueue()
    made = PromptEncoder(tokenizer, limits, lambda _: True, openings.put)
    made.openings = openings
    made.encoded = tokenizer.encode
    yield made
    made.close(1.0)


def predictions(encoder, tenants):
    """Have a choice of each tenant encoded; return their predictions."""
    request = Request(None, (1, 2), SessionParams(SamplingParams(), 30), prediction=PREDICTION)
    found = []
    for client, tenant in enumerate(tenants):
        choice = replace(request, choice=client)
        encoder.add(vev.Opening(client=client, request=choice, ids=(), n_prompt=0, tenant=tenant))
        found.append(encoder.openings.get().predicted)
    return found


def test_choices_share_a_prediction(encoder):
    first, second = predictions(encoder, [("a",), ("a",)])
    assert first is second
    encoder.encoded.assert_called_once_with(PREDICTION, special=False)


def test_tenants_share_no_prediction(encoder):
    first, second = predictions(encoder, [("a",), ("b",)])
    assert first is not second
