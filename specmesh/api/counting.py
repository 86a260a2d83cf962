"""The number of tokens of a chat's prompt, before anything is generated."""

import asyncio

from specmesh.api.backend import Backend, Cancel, Submit
from specmesh.api.dialects.message_body import parse_count
from specmesh.api.generation import Generation
from specmesh.core.fair_queue import Tenant
from specmesh.core.requests import ClientEvent, Failed, Request, Started
from specmesh.core.text.chat import Tokenizer, prompt_of
from specmesh.errors import PromptTooLong, SpecmeshError, WentAway


def count_at_verifier(body: object, tokenizer: Tokenizer) -> tuple[Generation, int]:
    """Return the generation of a body, and the tokens of its prompt. Raises RequestError."""
    generation = parse_count(body)
    [request] = generation.requests
    ids, _ = prompt_of(request, tokenizer)
    return generation, len(ids)


class _Beginning:
    """The client of a session that ends as soon as it has begun. count: of its prompt's tokens."""

    def __init__(self) -> None:
        self.count: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def on_event(self, event: ClientEvent) -> None:
        """Take the number of tokens, or the error, from the first event."""
        if self.count.done():
            return
        match event:
            case Started():
                self.count.set_result(event.prompt_tokens)
            case Failed():
                self._fail(event.error)
            case _:
                self.count.set_exception(WentAway("the session ended before it began"))

    def _fail(self, error: SpecmeshError) -> None:
        """Take the number from an error that has it: too many for a session, not for a number."""
        match error:
            case PromptTooLong(counted=True, lengths=(prompt_tokens, _)):
                self.count.set_result(prompt_tokens)
            case _:
                self.count.set_exception(error)


async def count_at_drafter(request: Request, backend: Backend, tenant: Tenant) -> int:
    """Return the tokens of a prompt that only the verifier can write.

    It begins a session there, which is told to end before the prompt is read. Raises the error
    with which that is refused.
    """
    client = _Beginning()
    backend.submit(Submit([(request, client)], tenant))
    try:
        return await client.count
    finally:
        backend.submit(Cancel(client))
