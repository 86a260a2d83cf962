"""Several answers to one request, and one that begins with its prompt."""

import asyncio

import pytest
from asgi_calls import LETTERS

from specmesh.api.answer import Batches, ChoiceStream, Event, choices, merged, whole
from specmesh.api.requests import Finished, Request, Started, Tokens
from specmesh.api.shapes import Shape
from specmesh.core.sampling.sampler import SamplingParams
from specmesh.core.session_params import SessionParams
from specmesh.errors import Busy

REQUEST = Request("hi", None, SessionParams(SamplingParams(seed=2**32 - 1), 9), id="cmpl-x")
DONE = Finished("length", (104, 105), {"drafted": 5, "accepted": 3})
SHAPE = Shape(False, "id", 0, "m")


class Source:
    """Batches, and whether they were left; `stays` when there are no more."""

    def __init__(self, *batches: list[Event], error: Exception | None = None, stays: bool = False) -> None:
        self._batches, self._error, self._stays = batches, error, stays
        self.left = False

    async def batches(self, number: int = 0) -> Batches:
        try:
            for batch in self._batches:
                await asyncio.sleep(0)
                yield number, batch
            if self._error is not None:
                raise self._error
            while self._stays:
                await asyncio.sleep(0.01)
        finally:
            self.left = True


def text(number: int) -> Source:
    return Source([Started(number, 2, (104, 105))], [Tokens((65 + number,), 0, None)], [DONE])


async def never() -> bool:
    return False


def tellings(count: int) -> list[ChoiceStream]:
    return [ChoiceStream(LETTERS, one, resumable=False) for one in choices(REQUEST, count, chat=False)]


def test_one_that_fails_ends_all():
    sources = Source([Started(1, 2)], stays=True), Source(error=Busy("full")), Source(stays=True)

    async def told() -> None:
        await whole(
            merged([source.batches(number) for number, source in enumerate(sources)]), SHAPE, tellings(3), never
        )

    with pytest.raises(Busy):
        asyncio.run(told())
    assert all(source.left for source in sources)


def test_who_leaves_leaves_all():
    sources = Source([Started(1, 2)], stays=True), Source([Started(2, 2)], stays=True)

    async def left() -> None:
        batches = merged([source.batches(number) for number, source in enumerate(sources)])
        await anext(batches)
        await anext(batches)
        await batches.aclose()

    asyncio.run(left())
    assert [source.left for source in sources] == [True, True]


@pytest.mark.parametrize(("prompt", "shown"), [("hi!", "hi!"), (None, "hi")])
def test_an_echo_is_the_prompt(prompt: str | None, shown: str):
    """As it was given, or the text of its ids; how likely they were is not told, and they are no ids of the answer."""
    params = SessionParams(SamplingParams(), 9, logprobs=0)
    ids = None if prompt else (104, 105)
    told = ChoiceStream(LETTERS, Request(prompt, ids, params), resumable=False, echo=True)

    async def answer() -> dict[str, object]:
        return await whole(merged([text(0).batches()]), SHAPE, [told], never)

    made = asyncio.run(answer())
    [choice] = made["choices"]  # type: ignore[misc]
    assert choice["text"] == shown + "A"
    assert choice["logprobs"]["tokens"] == ["h", "i", "A"]
    assert choice["logprobs"]["token_logprobs"] == [None, None, None]
    assert choice["logprobs"]["text_offset"] == [0, 1, len(shown)]
    assert (made["specmesh"]["token_ids"], made["usage"]["completion_tokens"]) == ([65], 1)  # type: ignore[index]
    assert [one["id"] for one in made["specmesh"]["logprobs"]] == [65]  # type: ignore[index]
