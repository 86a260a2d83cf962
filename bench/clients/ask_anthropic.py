"""The anthropic library."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
from work import MILD, MODEL, QUESTION, SCHEMA, Place, called, weather

TOOL: Any = {"name": "weather", "description": "The forecast.", "input_schema": SCHEMA}
NAMED: Any = {"type": "tool", "name": "weather", "disable_parallel_tool_use": True}
ANY: Any = {"type": "any", "disable_parallel_tool_use": True}
NONE: Any = {"type": "none"}


def ask(place: Place, _installed: Path) -> Iterator[tuple[str, str]]:
    """Yield each piece of work, and its text."""
    url = place.url.removesuffix("/v1")
    client = anthropic.Anthropic(base_url=url, api_key=place.key, max_retries=0)
    messages: Any = [{"role": "user", "content": QUESTION}]
    short: Any = {"model": MODEL, "messages": messages, "max_tokens": 16}
    yield "models", client.models.list().data[0].id
    count = client.messages.count_tokens(model=MODEL, messages=messages).input_tokens
    yield "count", str(count)
    answer = client.messages.create(**short)
    usage = answer.usage
    assert usage.input_tokens + (usage.cache_read_input_tokens or 0) == count
    yield "message", text_of(answer)
    with client.messages.stream(**short) as events:
        text = "".join(events.text_stream)
        assert events.get_final_message().usage.output_tokens == 16
    yield "message stream", text
    for way in ("", " stream"):
        history = [*messages]
        for choice in (NAMED, ANY, NONE):
            body: Any = {"model": MODEL, "messages": history, "tools": [TOOL], "max_tokens": 128}
            body["tool_choice"] = choice
            if choice is NONE:
                body["extra_body"] = {"grammar": MILD}
            if way:
                with client.messages.stream(**body) as events:
                    answer = events.get_final_message()
            else:
                answer = client.messages.create(**body)
            results = results_of(answer)
            assert bool(results) == (answer.stop_reason == "tool_use")
            history.append({"role": "assistant", "content": answer.content})
            history.append({"role": "user", "content": results})
        called(2)
        yield f"tools{way}", text_of(answer)


def text_of(message: Any) -> str:
    """Return the text of a message."""
    return "".join(block.text for block in message.content if block.type == "text")


def results_of(message: Any) -> list[dict[str, str]]:
    """Return the blocks that answer a message's calls."""
    results: list[dict[str, str]] = []
    for block in message.content:
        if block.type == "tool_use":
            text = weather(**block.input)
            results.append({"type": "tool_result", "tool_use_id": block.id, "content": text})
    return results
