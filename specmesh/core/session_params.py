"""Parameters of a session, as clients ask for them, and the limits that the target sets.

The same fields come on three ways: a request's body, the options of an OPEN or OPENED, and the
command line, which writes a body. `session_params` reads all of them. So a range is written once,
and a client of a drafter is refused for the same reasons as one of the verifier.

What depends on the target cannot be checked there, as a drafter has none: ids within the
vocabulary, room in the context. `check_request` does that at the verifier, once the prompt's ids
are known.
"""

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

from specmesh.core.draft_length import MAX_DRAFTS
from specmesh.core.draft_sources import DRAFT_SOURCES
from specmesh.core.fields import Fields, Json, is_id, is_list, is_object
from specmesh.core.sampling.constraint import Constraint, Grammar, GrammarKind, check_grammar
from specmesh.core.sampling.logprobs import MAX_ALTERNATIVES
from specmesh.core.sampling.sampler import (
    FORBIDDEN,
    MAX_BIASES,
    MOST,
    WINDOW,
    Penalties,
    SamplingParams,
)
from specmesh.core.sampling.strategy import THRESHOLD, Strategy
from specmesh.core.text.stop import MAX_LENGTH, MAX_STOPS, MAX_TOGETHER
from specmesh.errors import PromptTooLong, RequestError
from specmesh.wire.messages import MAX_BODY

MERGED_ROLES = ("assistant", "system", "user")
"""Roles whose messages may be joined to others for a template."""

LARGEST_MAX_TOKENS = 2**31 - 1  # largest max_tokens of a request; 0: the prompt only
LEAST_FACTOR = 1e-6  # a repeat_penalty must be above 0
LEAST_SHARE = 1e-9  # a threshold must be above 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionParams:
    """Parameters of a session.

    max_tokens: most tokens after the prompt.
    draft_n: drafts of every step; None adapts their number, 0 never drafts.
    draft_sources: names of the sources that may draft; None for all, and none without any.
    stop: texts with which the text ends.
    logprobs: alternatives shown with each id; None for no log-probabilities.
    grammar: of the text, which max_tokens may cut.
    cache_prompt: reuse KV entries of earlier sessions, and leave the session's own.
    thinking: the form of the target's thoughts, see core.text.reasoning.
    echo: the answer begins with the prompt, also in its log-probabilities.
    merged: roles whose messages were joined to others for the template.
    sources: the client is shown whose draft each token was.
    progress: the client is shown how far a long prompt is read.
    """

    sampling: SamplingParams = field(kw_only=False)
    max_tokens: int = field(kw_only=False)
    draft_n: int | None = None
    draft_sources: tuple[str, ...] | None = None
    stop: tuple[str, ...] = ()
    logprobs: int | None = None
    grammar: Grammar | None = None
    cache_prompt: bool = True
    thinking: str = ""
    echo: bool = False
    merged: tuple[str, ...] = ()
    sources: bool = False
    progress: bool = False

    @property
    def scored(self) -> bool:
        """Return True if log-probabilities of the prompt's ids are wanted."""
        return self.echo and self.logprobs is not None

    @property
    def annotated(self) -> bool:
        """Return True if log-probabilities or sources of the text's ids are wanted."""
        return self.sources or self.logprobs is not None

    @property
    def allowed_draft_n(self) -> int | None:
        """Return draft_n, or 0 for a strategy without drafts, and without any source of them."""
        if self.sampling.strategy == Strategy.GREEDY or self.draft_sources == ():
            return 0
        return self.draft_n

    def drafts_by(self, source: str) -> bool:
        """Return True if a source may draft."""
        if self.allowed_draft_n == 0:
            return False
        return self.draft_sources is None or source in self.draft_sources

    def named(self) -> Json:
        """Return the parameters as the wire has them: see `wire_params`."""
        named = self.sampling.named()
        named["max_tokens"] = self.max_tokens
        named["draft_n"] = self.draft_n
        named["draft_sources"] = None
        if self.draft_sources is not None:
            named["draft_sources"] = list(self.draft_sources)
        named["stop"] = list(self.stop)
        named["logprobs"] = self.logprobs
        named["logit_bias"] = list(map(list, self.sampling.logit_bias))
        named["grammar"] = None
        named["grammar_kind"] = None
        if self.grammar is not None:
            named["grammar"] = self.grammar.text
            named["grammar_kind"] = self.grammar.kind.value
        named["cache_prompt"] = self.cache_prompt
        named["thinking"] = self.thinking
        named["echo"] = self.echo
        named["merged"] = list(self.merged)
        named["sources"] = self.sources
        named["return_progress"] = self.progress
        return named


_REST_OF_OPENED = 1024  # bytes, at most


def opened_options(params: SessionParams) -> Json:
    """Return the parameters as OPENED has them.

    A grammar that no frame holds is left out: a drafter can do without.
    """
    named = params.named()
    # To write the body takes long, so only a grammar that might be too long is tried.
    if params.grammar is not None and len(params.grammar.text) > MAX_BODY // 8:
        body = json.dumps(named, ensure_ascii=False).encode()
        if len(body) > MAX_BODY - _REST_OF_OPENED:
            named["grammar"] = None
            named["grammar_kind"] = None
    return named


def session_params(
    fields: Fields,
    seed: int,
    max_tokens: int,
    logprobs: int | None,
    grammar: Grammar | None,
    most_bias: float = MOST,
) -> SessionParams:
    """Return the parameters that the fields of a request ask for.

    Most have one name for both the API and the wire; those that these two write differently are
    arguments.

    Raises RequestError for parameters that no session can have.
    """
    sampling = SamplingParams(
        temperature=fields.number("temperature", 1.0, 0.0, MOST),
        top_k=max(fields.integer("top_k", 0, -1, 2**31 - 1), 0),
        top_p=fields.number("top_p", 1.0, 0.0, 1.0),
        seed=seed,
        min_p=fields.number("min_p", 0.0, 0.0, 1.0),
        penalties=_penalties_of(fields),
        logit_bias=biases_of(fields.get("logit_bias"), most_bias),
        strategy=fields.text("strategy", Strategy.DETERMINISTIC),
        threshold=fields.number("threshold", THRESHOLD, LEAST_SHARE, 1.0),
    )
    if sampling.strategy not in tuple(Strategy):
        raise RequestError(f"strategy must be one of {', '.join(Strategy)}", "strategy")
    echo = fields.flag("echo")
    draft_n = None
    if fields.get("draft_n") not in (None, "auto"):
        draft_n = fields.integer("draft_n", 0, 0, MAX_DRAFTS)
    stop = stops_of(fields.get("stop"))
    if grammar is not None:
        grammar = check_grammar(grammar)
    scored = echo and logprobs is not None
    return SessionParams(
        sampling,
        max_tokens,
        draft_n=draft_n,
        draft_sources=_draft_sources_of(fields),
        stop=stop,
        logprobs=logprobs,
        grammar=grammar,
        # Ids out of the cache have no logits, and a scored prompt wants those of all.
        cache_prompt=fields.flag("cache_prompt", True) and not scored,
        echo=echo,
        sources=fields.flag("sources"),
        progress=fields.flag("return_progress"),
    )


def _draft_sources_of(fields: Fields) -> tuple[str, ...] | None:
    """Return the sources that may draft, each once; None for all."""
    if fields.get("draft_sources") is None:
        return None
    given = fields.listed("draft_sources")
    for name in given:
        if name not in DRAFT_SOURCES:
            known = ", ".join(DRAFT_SOURCES)
            raise RequestError(f"draft_sources must be a list of some of {known}", "draft_sources")
    return tuple(name for name in DRAFT_SOURCES if name in given)


def _penalties_of(fields: Fields) -> Penalties:
    """Return the penalties of a request, by the names that llama.cpp and OpenAI have for them."""
    return Penalties(
        repeat=fields.number("repeat_penalty", 1.0, LEAST_FACTOR, MOST),
        frequency=fields.number("frequency_penalty", 0.0, -MOST, MOST),
        presence=fields.number("presence_penalty", 0.0, -MOST, MOST),
        window=fields.integer("repeat_last_n", WINDOW, -1, 2**31 - 1),
    )


def wire_params(options: Json) -> SessionParams:
    """Return the parameters in options of OPEN or OPENED, without a grammar of an unknown kind.

    Raises RequestError as `session_params` does.
    """
    fields = Fields(options)
    kind = fields.text("grammar_kind")
    text = fields.text("grammar")
    thinking = fields.text("thinking")
    grammar = None
    if kind in set(GrammarKind):
        before = "" if kind == GrammarKind.TOOLS else thinking  # tools have it in their text
        grammar = Grammar(GrammarKind(kind), text, before)
    seed = fields.integer("seed", 0, 0, 2**32 - 1)
    max_tokens = fields.integer("max_tokens", LARGEST_MAX_TOKENS, 0, LARGEST_MAX_TOKENS)
    logprobs = None
    if fields.get("logprobs") is not None:
        logprobs = fields.integer("logprobs", 0, 0, MAX_ALTERNATIVES)
    params = session_params(
        fields,
        seed=seed,
        max_tokens=max_tokens,
        logprobs=logprobs,
        grammar=grammar,
        most_bias=-FORBIDDEN,
    )
    listed = fields.listed("merged")
    # Only known roles, each once: a peer's list goes to clients.
    merged = tuple(role for role in MERGED_ROLES if role in listed)
    return replace(params, thinking=thinking, merged=merged)


def biases_of(value: object, largest: float) -> tuple[tuple[int, float], ...]:
    """Return biases of OpenAI's {"id": bias}, or llama-server's [[id, bias], ...].

    Raises RequestError for other values, and for biases beyond `largest`.
    """
    pairs: object = [] if value is None else value
    if is_object(pairs):
        pairs = [[token, bias] for token, bias in pairs.items()]
    if is_list(pairs):
        check_biases(pairs)
        biases = [_bias(pair, largest) for pair in pairs]
        if None not in biases:
            return tuple(filter(None, biases))
    raise RequestError(
        f"logit_bias must map token ids to numbers from {-largest:g} to {largest:g}", "logit_bias"
    )


def check_biases(biases: Sequence[object]) -> None:
    """Raise RequestError for too many biases."""
    if len(biases) > MAX_BIASES:
        raise RequestError(f"logit_bias can name {MAX_BIASES} tokens at most", "logit_bias")


def _bias(pair: object, largest: float) -> tuple[int, float] | None:
    """Return a token's id and bias; None if they are none."""
    if not is_list(pair) or len(pair) != 2:
        return None
    token, bias = pair
    if isinstance(token, str) and token.isdecimal() and len(token) < 10:  # a key of an object
        token = int(token)
    # For Python `True` is a number, in JSON it is none.
    if not isinstance(bias, int | float) or isinstance(bias, bool):
        return None
    if not is_id(token) or not abs(bias) <= largest:  # NaN is beyond any bound
        return None
    return token, float(bias)


def endless(params: SessionParams, end_ids: Collection[int]) -> SessionParams:
    """Return the parameters of a text that does not end by itself, as llama.cpp's ignore_eos.

    Biases forbid the ids that end texts: so a drafter, and a continued session, know of it.
    """
    biases = [bias for bias in params.sampling.logit_bias if bias[0] not in end_ids]
    for token in sorted(end_ids):
        biases.append((token, FORBIDDEN))
    check_biases(biases)
    sampling = replace(params.sampling, logit_bias=tuple(biases))
    return replace(params, sampling=sampling)


_TOO_MUCH_TO_STOP_AT = (
    f"stop must be at most {MAX_STOPS} texts, of {MAX_LENGTH} characters each"
    f" and {MAX_TOGETHER} together"
)


def stops_of(value: object) -> tuple[str, ...]:
    """Return the stop strings of a request: a text, or a list of texts.

    Raises RequestError for other values, and for too much text.
    """
    given = [value] if isinstance(value, str) else value or []
    stops = list[str]()
    if is_list(given):
        if len(given) > MAX_STOPS:
            raise RequestError(_TOO_MUCH_TO_STOP_AT, "stop")
        stops = [stop for stop in given if isinstance(stop, str)]
    if stops != given:
        raise RequestError("stop must be a text or a list of texts", "stop")
    longest = max(map(len, stops), default=0)
    together = "".join(stops)
    if longest > MAX_LENGTH or len(together) > MAX_TOGETHER:
        raise RequestError(_TOO_MUCH_TO_STOP_AT, "stop")
    if "\ufffd" in together:  # it stands for bytes that are no text
        raise RequestError("stop must not contain U+FFFD", "stop")
    try:
        together.encode()
    except UnicodeEncodeError as error:
        raise RequestError(f"stop is not valid Unicode: {error.reason}", "stop") from None
    return tuple(filter(None, stops))


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetLimits:
    """Limits that the target sets to every session.

    n_ctx: most ids of a text.
    n_vocab: ids of the vocabulary.
    end_ids: ids that end a text.
    max_drafts: most drafts of a step.
    max_copied: the same, if it is more, of drafts that repeat known text while the session has the
        step to itself.
    pieces: the bytes of each id.
    width: rows of every step, if constant.
    drafts_repeats: texts are drafted from what they repeat.
    """

    n_ctx: int = field(kw_only=False)
    n_vocab: int = field(kw_only=False)
    end_ids: frozenset[int] = field(kw_only=False)
    max_drafts: int = MAX_DRAFTS
    max_copied: int = 0
    pieces: Sequence[bytes] = ()
    width: int | None = None
    drafts_repeats: bool = True


_UNMASKED = (Strategy.PROBABILISTIC, Strategy.THRESHOLD)
"""Strategies that take drafts by the target's rows as they are, without a grammar's mask."""


def check_request(
    params: SessionParams, ids: Sequence[int], n_prompt: int, limits: TargetLimits
) -> None:
    """Raise RequestError for a session that the target cannot have; quick for any input.

    ids: a text so far, of which the first `n_prompt` are the prompt.

    Raises PromptTooLong if not one token would fit after the prompt.
    """
    if not ids:
        raise RequestError("the prompt is empty: give at least one token")
    # The check of a prompt that is too long comes next, with an error that names its length.
    if not 0 < n_prompt <= len(ids) or len(ids) > max(limits.n_ctx, n_prompt):
        raise RequestError(
            f"{len(ids)} ids are no text that began with {n_prompt} and has {limits.n_ctx} at most"
        )
    if n_prompt >= limits.n_ctx:
        raise PromptTooLong.of(n_prompt, limits.n_ctx)
    if min(ids) < 0 or max(ids) >= limits.n_vocab:
        raise RequestError(f"a prompt id is outside the model's vocabulary of {limits.n_vocab}")
    for token, _ in params.sampling.logit_bias:
        if token >= limits.n_vocab:
            raise RequestError(
                f"logit_bias names token {token}, and the model has {limits.n_vocab}", "logit_bias"
            )
    strategy = params.sampling.strategy
    if params.grammar is not None and strategy in _UNMASKED:
        raise RequestError(
            f"strategy {strategy} does not go with a grammar or schema: use deterministic",
            "strategy",
        )


def check_resumed(generated: Sequence[int], constraint: Constraint, limits: TargetLimits) -> None:
    """Raise RequestError for a text so far that its grammar forbids.

    It takes about the time of a step for each id.
    """
    text = [token for token in generated if token not in limits.end_ids]
    if constraint.count_allowed(text) < len(text):
        raise RequestError(
            "the text so far is not what its grammar allows: it cannot be gone on with", "resume"
        )
