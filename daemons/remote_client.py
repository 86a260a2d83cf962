"""A client on the far side of the wire."""

from collections.abc import Callable
from typing import assert_never

from specmesh.core.sampling import SamplingParams
from specmesh.errors import Busy
from specmesh.requests import ClientEvent, Failed, Finished, Started, Tokens
from specmesh.wire import messages as m


class RemoteClient:
    """A drafter whose own client asked for the session: hears by frames."""

    def __init__(
        self, say: Callable[[m.ControlMessage], object], ref: int, params: SamplingParams, rounds: bool
    ) -> None:
        self._say, self._ref, self._params, self._rounds = say, ref, params, rounds
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
