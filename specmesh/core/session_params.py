"""What a client asked for, and what the target allows."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from specmesh.core.sampling import Strategy
from specmesh.core.sampling.constraint import Constraint, Grammar, check_grammar
from specmesh.core.sampling.logprobs import MAX_LOGPROBS
from specmesh.core.sampling.sampler import SamplingParams, check_sampling
from specmesh.core.sampling.stop import check_stops
from specmesh.errors import PromptTooLong, RequestError


@dataclass(frozen=True, slots=True)
class ChatMessage:
    role: str  # system, user, assistant, or what else the template knows
    content: str
    name: str = ""  # of who says it

    def fields(self) -> dict[str, str]:
        return {"role": self.role, "content": self.content} | ({"name": self.name} if self.name else {})


MAX_DRAFTS = 24  # most drafts of one step
MAX_TOKENS = 2**31 - 1  # largest max_tokens of a request; 0: the prompt only


@dataclass(frozen=True, slots=True)
class SessionParams:
    sampling: SamplingParams
    max_tokens: int
    draft_n: int | None = None  # None adapts, 0 never drafts, N takes N drafts in every step
    stop: tuple[str, ...] = ()  # texts with which the text ends
    logprobs: int | None = None  # alternatives told with each id; None for no log-probabilities
    grammar: Grammar | None = None  # what the text must be; max_tokens may cut it
    cache_prompt: bool = True  # reuse what earlier sessions left in memory, and leave one's own

    @property
    def drafts(self) -> int | None:
        """draft_n, as the strategy allows it."""
        return 0 if self.sampling.strategy == Strategy.GREEDY else self.draft_n


@dataclass(frozen=True, slots=True)
class TargetLimits:
    n_ctx: int
    n_vocab: int
    end_ids: frozenset[int]
    max_drafts: int = MAX_DRAFTS  # 0 for a model that cannot trim
    pieces: Sequence[bytes] = ()  # the bytes of each id
    width: int | None = None  # rows of every step, where constant


def check_params(params: SessionParams) -> SessionParams:
    """Return what a peer asks for; raise RequestError for what no session can have."""
    if params.max_tokens > MAX_TOKENS:
        raise RequestError(f"max_tokens must be a number from 0 to {MAX_TOKENS}", "max_tokens")
    if params.logprobs is not None and not 0 <= params.logprobs <= MAX_LOGPROBS:
        raise RequestError(f"logprobs must be a whole number from 0 to {MAX_LOGPROBS}", "logprobs")
    if params.grammar is not None:
        check_grammar(params.grammar)
    return replace(params, sampling=check_sampling(params.sampling), stop=check_stops(params.stop))


def check_request(
    params: SessionParams, ids: Sequence[int], n_prompt: int, constraint: Constraint | None, limits: TargetLimits
) -> None:
    """Raise RequestError for what the target cannot go on with, PromptTooLong where not one token would fit after the
    prompt: the first `n_prompt` of the ids, the others were generated before."""
    if not ids:
        raise RequestError("the prompt is empty: give at least one token")
    if not 0 < n_prompt <= len(ids) or len(ids) > max(limits.n_ctx, n_prompt):
        raise RequestError(f"{len(ids)} ids are no text that began with {n_prompt} and has {limits.n_ctx} at most")
    if not all(0 <= token < limits.n_vocab for token in ids):
        raise RequestError(f"a prompt id is outside the model's vocabulary of {limits.n_vocab}")
    if n_prompt >= limits.n_ctx:
        raise PromptTooLong.of(n_prompt, limits.n_ctx)
    foreign = [token for token, _ in params.sampling.logit_bias if token >= limits.n_vocab]
    if foreign:
        raise RequestError(f"logit_bias names token {foreign[0]}, and the model has {limits.n_vocab}", "logit_bias")
    strategy = params.sampling.strategy
    if params.grammar is not None and strategy in (Strategy.PROBABILISTIC, Strategy.THRESHOLD):  # of unmasked rows
        raise RequestError(f"strategy {strategy} does not go with a grammar or schema: use deterministic", "strategy")
    said = [token for token in ids[n_prompt:] if token not in limits.end_ids]
    if constraint is not None and constraint.count_allowed(said) < len(said):
        raise RequestError("the text so far is not what its grammar allows: it cannot be gone on with", "resume")
