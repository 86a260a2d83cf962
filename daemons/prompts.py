"""A request's prompt as ids."""

from collections.abc import Sequence

from specmesh.engines.base import ChatEncoder, VerifyEngine
from specmesh.errors import RequestError
from specmesh.requests import Request


def prompt_ids(engine: VerifyEngine, request: Request) -> Sequence[int]:
    """The ids to continue, made by the target's tokenizer and chat template; safe from any thread.

    Raises RequestError for text that cannot be encoded, and for a chat where the target has no template.
    """
    if request.prompt_ids is not None:
        return request.prompt_ids
    if not request.messages:
        return engine.encode(request.prompt or "")
    if not isinstance(engine, ChatEncoder):
        raise RequestError("this target cannot chat: use /v1/completions", "messages")
    return engine.encode_chat(request.messages)
