"""A client on the far side of the wire: what it asks for, and how it hears."""

from collections.abc import Callable
from typing import assert_never

from specmesh.core.chat import ChatMessage
from specmesh.core.sampling import SamplingParams
from specmesh.core.stop import check_stops
from specmesh.core.verifier_session import MAX_DRAFTS, SessionParams
from specmesh.errors import Busy
from specmesh.requests import ClientEvent, Failed, Finished, Request, Started, Tokens
from specmesh.wire import messages as m


def requested(order: m.Open) -> Request:
    """What an OPEN asks for; raises RequestError for stop strings that cannot be."""
    sampling = SamplingParams(order.temperature, order.top_k, order.top_p, order.seed)
    draft_n = None if order.draft_n == m.DRAFT_N_AUTO else min(order.draft_n, MAX_DRAFTS)
    params = SessionParams(sampling, max(order.max_tokens, 1), draft_n, check_stops(order.stop))
    chat = tuple(ChatMessage(told.get("role", ""), told.get("content", "")) for told in order.messages)
    return Request(order.prompt, tuple(order.ids) or None, params, order.rounds, chat)


class RemoteClient:
    """A drafter whose own client asked for the session: hears by frames."""

    def __init__(self, say: Callable[[m.ControlMessage], object], order: m.Open) -> None:
        self._say, self._ref, self._rounds = say, order.ref, order.rounds
        self._params = SamplingParams(order.temperature, order.top_k, order.top_p, order.seed)
        self._session = 0

    def hear(self, event: ClientEvent) -> None:
        """Send what the drafter cannot learn from TRUTH."""
        match event:
            case Started(session, prompt_tokens):
                self._session = session
                self._say(opened(session, self._ref, prompt_tokens, self._params))
            case Tokens(_, accepted, drafts):
                if self._rounds:
                    self._say(m.Round(self._session, list(drafts or ()), accepted))
            case Finished():
                pass  # DONE has told it
            case Failed(error):
                self._say(m.Error("busy" if isinstance(error, Busy) else "request", str(error), self._ref))
            case _:
                assert_never(event)


def opened(session: int, ref: int, prompt_tokens: int, params: SamplingParams) -> m.Opened:
    """The OPENED message for a session."""
    return m.Opened(session, ref, prompt_tokens, params.temperature, params.top_k, params.top_p, params.seed)
