"""Which ids a request continues."""

import pytest

from specmesh.core.chat import ChatMessage
from specmesh.core.sampling import SamplingParams
from specmesh.core.verifier_session import SessionParams
from specmesh.daemons.prompts import prompt_ids
from specmesh.engines.sim import SimSettings, SimVerifier
from specmesh.errors import RequestError
from specmesh.requests import Request

PARAMS = SessionParams(SamplingParams(), 1)
SAID = (ChatMessage("user", "hi"),)


class NoChat:
    """An engine without a chat template."""

    def __init__(self) -> None:
        self.encode = SimVerifier(SimSettings()).encode


def test_ids_before_a_chat_before_a_text():
    """The first that is given counts."""
    engine = SimVerifier(SimSettings())
    assert prompt_ids(engine, Request("text", (1, 2), PARAMS, False, SAID)) == (1, 2)
    assert prompt_ids(engine, Request("text", None, PARAMS, False, SAID)) == list(b"user: hi\nassistant: ")
    assert prompt_ids(engine, Request("text", None, PARAMS)) == list(b"text")


def test_an_engine_that_cannot_chat():
    """It continues texts, and refuses chats."""
    assert prompt_ids(NoChat(), Request("text", None, PARAMS)) == list(b"text")  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="cannot chat"):
        prompt_ids(NoChat(), Request(None, None, PARAMS, False, SAID))  # type: ignore[arg-type]
