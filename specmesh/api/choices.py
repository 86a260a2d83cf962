"""Several answers to one request: a session each, their events as they come."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace

from specmesh.api.answer import Batches, Event, Merged
from specmesh.api.body import Prompt
from specmesh.api.requests import Request
from specmesh.api.shapes import new_id

_SEEDS = 2**32

_Come = tuple[int, list[Event] | None] | Exception


def choices(request: Request, count: int, prompts: Sequence[Prompt] = (), *, chat: bool) -> list[Request]:
    """A request for each, `count` for a prompt: seeds that follow one another, and names of their own. The first is
    the request's own."""
    each = [replace(request, prompt=text, prompt_ids=ids) for text, ids in prompts[1:]]
    told = [_numbered(one, number) for one in (request, *each) for number in range(count)]
    return [told[0], *(replace(one, id=new_id(chat)) for one in told[1:])]


def _numbered(request: Request, number: int) -> Request:
    sampling = request.params.sampling
    sampling = replace(sampling, seed=(sampling.seed + number) % _SEEDS)
    return replace(request, params=replace(request.params, sampling=sampling), choice=number)


def merged(sources: Sequence[Batches]) -> Merged:
    """The batches of all, each with its choice's number. Raises what one of them raises; the others are left then, as
    all are by whoever closes this."""
    return _several(sources) if len(sources) > 1 else _only(sources[0])


async def _only(batches: Batches) -> AsyncGenerator[tuple[int, list[Event]], None]:
    async with aclosing(batches):
        async for batch in batches:
            yield 0, batch


async def _several(sources: Sequence[Batches]) -> AsyncGenerator[tuple[int, list[Event]], None]:
    come: asyncio.Queue[_Come] = asyncio.Queue(len(sources))
    tasks = [asyncio.ensure_future(_pass_on(number, batches, come)) for number, batches in enumerate(sources)]
    left = len(sources)
    try:
        while left:
            what = await come.get()
            if isinstance(what, Exception):
                raise what
            number, batch = what
            if batch is None:
                left -= 1
            else:
                yield number, batch
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _pass_on(number: int, batches: Batches, to: asyncio.Queue[_Come]) -> None:
    try:
        async with aclosing(batches):
            async for batch in batches:
                await to.put((number, batch))
        await to.put((number, None))
    except Exception as error:  # noqa: BLE001  (raised again where the batches are merged)
        await to.put(error)
