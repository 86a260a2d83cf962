"""Which prompts a target can take."""

from collections.abc import Sequence

from specmesh.core.verifier_session import TargetLimits
from specmesh.errors import PromptTooLong, RequestError


def check_prompt(ids: Sequence[int], limits: TargetLimits) -> None:
    """Raise RequestError for an empty prompt or foreign ids, PromptTooLong where not one token would fit after it."""
    if not ids:
        raise RequestError("the prompt is empty: give at least one token")
    if not all(0 <= token < limits.n_vocab for token in ids):
        raise RequestError(f"a prompt id is outside the model's vocabulary of {limits.n_vocab}")
    if len(ids) >= limits.n_ctx:
        raise PromptTooLong(len(ids), limits.n_ctx)
