"""pydantic-ai, asked for text, and for an object in its default way: by a tool."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pydantic
from pydantic_ai import Agent
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from work import MODEL, QUESTION, SINGLY, Place, called, weather


def ask(place: Place, _installed: Path) -> Iterator[tuple[str, str]]:
    """Yield each piece of work, and its text."""

    class Answer(pydantic.BaseModel):
        """How it will be."""

        works: bool

    class FirstTool(AbstractCapability[None]):
        """The first step calls `weather`, the next ones no function."""

        def get_model_settings(self) -> Any:
            return lambda context: {"tool_choice": ["weather"] if context.run_step == 1 else "none"}

    async def ask() -> list[tuple[str, str]]:
        model = OpenAIChatModel(
            MODEL, provider=OpenAIProvider(base_url=place.url, api_key=place.key)
        )
        agent = Agent(model, system_prompt="Be brief.", model_settings={"max_tokens": 16})
        first = await agent.run(QUESTION)
        async with agent.run_stream(QUESTION) as stream:
            streamed = "".join([part async for part in stream.stream_text(delta=True)])
        second = await agent.run("And three?", message_history=first.all_messages())
        texts = [
            ("chat", first.output),
            ("chat stream", streamed),
            ("chat continued", second.output),
        ]
        told: Any = {"tools": [weather], "capabilities": [FirstTool()], "model_settings": SINGLY}
        answer = await Agent(model, output_type=Answer, **told).run(QUESTION)
        async with Agent(model, **told).run_stream(QUESTION) as stream:
            streamed = "".join([part async for part in stream.stream_text(delta=True)])
        called(2)
        return [*texts, ("tools", answer.output.model_dump_json()), ("tools stream", streamed)]

    yield from asyncio.run(ask())
