"""A client on the far side of the wire: what it asks for, and how it hears."""

from collections.abc import Callable
from dataclasses import replace
from typing import assert_never

from specmesh.api.requests import ClientEvent, Failed, Finished, Request, Started, Tokens
from specmesh.core.sampling.constraint import Grammar, check_grammar
from specmesh.core.sampling.logprobs import check_logprobs
from specmesh.core.sampling.sampler import check_sampling
from specmesh.core.sampling.stop import check_stops
from specmesh.core.session_params import MAX_DRAFTS, MAX_TOKENS, ChatMessage, SessionParams
from specmesh.daemons.link.frames import fields_of, grammar_of, params_of
from specmesh.errors import Busy, EngineError, NoSuchText, PromptTooLong, RequestError, SpecmeshError
from specmesh.wire import messages as m


def requested(order: m.Open) -> Request:
    """What an OPEN asks for; raises RequestError for what cannot be."""
    if order.n_prompt > len(order.ids):
        raise RequestError(f"{len(order.ids)} ids cannot begin with a prompt of {order.n_prompt}")
    if len(order.biased_ids) != len(order.biases):
        raise RequestError(f"{len(order.biased_ids)} biased ids cannot have {len(order.biases)} biases")
    if order.max_tokens > MAX_TOKENS:
        raise RequestError(f"max_tokens must be a number from 0 to {MAX_TOKENS}", "max_tokens")
    sampling = check_sampling(params_of(order))
    draft_n = None if order.draft_n == m.DRAFT_N_AUTO else min(order.draft_n, MAX_DRAFTS)
    logprobs = None if order.logprobs == m.NO_LOGPROBS else check_logprobs(order.logprobs)
    stops, grammar = check_stops(order.stop), _grammar(order)
    params = SessionParams(sampling, order.max_tokens, draft_n, stops, logprobs, grammar, order.cache_prompt)
    chat = tuple(
        ChatMessage(told.get("role", ""), told.get("content", ""), told.get("name", "")) for told in order.messages
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


def _grammar(order: m.Open) -> Grammar | None:
    grammar = grammar_of(order)
    if order.grammar_kind and grammar is None:
        raise RequestError("this verifier knows no grammars of that kind: update it", "grammar")
    return check_grammar(grammar) if grammar is not None else None


class RemoteClient:
    """A drafter whose own client asked for the session: hears by frames."""

    def __init__(self, say: Callable[[m.ControlMessage], object], order: m.Open) -> None:
        self._say, self._ref, self._rounds = say, order.ref, order.rounds
        self._session = 0

    def on_event(self, event: ClientEvent) -> None:
        """Send what the drafter cannot learn from TRUTH."""
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
                pass  # DONE has told it
            case Failed(error):
                self._say(m.Error(_code(error), str(error), self._ref, getattr(error, "param", None) or ""))
            case _:
                assert_never(event)


def _code(error: SpecmeshError) -> str:
    match error:
        case Busy():
            return "busy"
        case PromptTooLong():
            return "context"
        case NoSuchText():
            return "session"
        case EngineError():
            return "engine"
        case _:
            return "request"


def opened(session: int, ref: int, prompt_tokens: int, params: SessionParams) -> m.Opened:
    """The OPENED message for a session, as a drafter needs it that did not ask for it."""
    fields = fields_of(params.sampling, params.grammar)
    return m.Opened(session, ref, prompt_tokens, **fields, cache_prompt=params.cache_prompt)
