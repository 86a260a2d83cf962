"""A client at a drafter: its OPEN as a request, and its events as frames."""

from collections.abc import Callable
from dataclasses import replace
from typing import assert_never

from specmesh.api.requests import ClientEvent, Failed, Finished, Request, Started, Tokens
from specmesh.core.sampling.constraint import check_grammar
from specmesh.core.sampling.logprobs import check_logprobs
from specmesh.core.sampling.sampler import check_sampling
from specmesh.core.sampling.stop import check_stops
from specmesh.core.session_params import MAX_DRAFTS, MAX_TOKENS, ChatMessage, SessionParams
from specmesh.daemons.link.frames import grammar_of, opened, params_of
from specmesh.errors import Busy, EngineError, NoSuchText, PromptTooLong, RequestError
from specmesh.wire import messages as m


def requested(order: m.Open) -> Request:
    if order.n_prompt > len(order.ids):
        raise RequestError(f"{len(order.ids)} ids cannot begin with a prompt of {order.n_prompt}")
    if len(order.biased_ids) != len(order.biases):
        raise RequestError(f"{len(order.biased_ids)} biased ids cannot have {len(order.biases)} biases")
    if order.max_tokens > MAX_TOKENS:
        raise RequestError(f"max_tokens must be a number from 0 to {MAX_TOKENS}", "max_tokens")
    sampling = check_sampling(params_of(order))
    draft_n = None if order.draft_n == m.DRAFT_N_AUTO else min(order.draft_n, MAX_DRAFTS)
    logprobs = None if order.logprobs == m.NO_LOGPROBS else check_logprobs(order.logprobs)
    stops, grammar = check_stops(order.stop), grammar_of(order)
    if grammar is not None:
        check_grammar(grammar)
    elif order.grammar_kind:
        raise RequestError("this verifier knows no grammars of that kind: update it", "grammar")
    params = SessionParams(sampling, order.max_tokens, draft_n, stops, logprobs, grammar, order.cache_prompt)
    chat = tuple(
        ChatMessage(message.get("role", ""), message.get("content", ""), message.get("name", ""))
        for message in order.messages
    )
    n_prompt = order.n_prompt or len(order.ids)
    return Request(
        order.prompt,
        tuple(order.ids[:n_prompt]) or None,
        params,
        order.rounds,
        chat,
        order.continued,
        order.name,
        tuple(order.ids[n_prompt:]),
        named_only=order.adopt,
        priority=order.priority,
    )


_CODES = ((Busy, "busy"), (PromptTooLong, "context"), (NoSuchText, "session"), (EngineError, "engine"))


class RemoteClient:
    """The client of a session that a drafter asked for: `say` sends it a frame."""

    def __init__(self, say: Callable[[m.ControlMessage], object], order: m.Open) -> None:
        self._say, self._ref, self._rounds = say, order.ref, order.rounds
        self._session = 0

    def on_event(self, event: ClientEvent) -> None:
        """Send what TRUTH does not."""
        match event:
            case Started(session, prompt_tokens, _, params):
                assert params is not None, "a verifier knows them"
                self._session = session
                answer = opened(session, self._ref, prompt_tokens, params)
                top = m.NO_LOGPROBS if params.logprobs is None else params.logprobs
                self._say(replace(answer, stop=list(params.stop), max_tokens=params.max_tokens, logprobs=top))
            case Tokens(_, accepted, drafts):
                if self._rounds:
                    self._say(m.Round(self._session, list(drafts or ()), accepted))
            case Finished():
                pass  # DONE was sent
            case Failed(error):
                code = next((code for kind, code in _CODES if isinstance(error, kind)), "request")
                self._say(m.Error(code, str(error), self._ref, getattr(error, "param", None) or ""))
            case _:
                assert_never(event)
