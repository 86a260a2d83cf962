"""openai-agents, by chat completions; its tools by responses, which is its default."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import agents
import openai
from work import MODEL, QUESTION, SINGLY, Place, called, weather

ENDS = {"seed": 1, "stop": ["(", ".", "p", "f"]}
"""Stops that end a free text, and are in no call: openai-agents refuses a text that is cut off."""


def ask(place: Place, _installed: Path) -> Iterator[tuple[str, str]]:
    """Yield each piece of work, and its text."""

    async def ask() -> list[tuple[str, str]]:
        client = openai.AsyncOpenAI(base_url=place.url, api_key=place.key)
        model = agents.OpenAIChatCompletionsModel(model=MODEL, openai_client=client)
        settings = agents.ModelSettings(max_tokens=16)
        agent = agents.Agent(
            name="A", instructions="Be brief.", model=model, model_settings=settings
        )
        first = await agents.Runner.run(agent, QUESTION)
        stream = agents.Runner.run_streamed(agent, QUESTION)
        streamed = ""
        async for event in stream.stream_events():
            if event.type == "raw_response_event":
                part = event.data
                if part.type == "response.output_text.delta":
                    streamed += part.delta
        more = [*first.to_input_list(), {"role": "user", "content": "And three?"}]
        second = await agents.Runner.run(agent, more)
        texts = [
            ("chat", first.final_output),
            ("chat stream", streamed),
            ("chat continued", second.final_output),
        ]
        agents.set_default_openai_client(client, use_for_tracing=False)
        settings = agents.ModelSettings(tool_choice="required", extra_body=ENDS, **SINGLY)
        tools: Any = [agents.function_tool(weather)]
        agent = agents.Agent(
            name="B", instructions="Be brief.", model=MODEL, model_settings=settings, tools=tools
        )
        answer = await agents.Runner.run(agent, QUESTION)
        stream = agents.Runner.run_streamed(agent, QUESTION)
        kinds: list[str] = []
        async for event in stream.stream_events():
            if event.type == "run_item_stream_event":
                kinds.append(event.item.type)
        assert kinds == ["tool_call_item", "tool_call_output_item", "message_output_item"]
        called(2)
        return [*texts, ("tools", answer.final_output), ("tools stream", stream.final_output)]

    yield from asyncio.run(ask())
