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
    [model] = client.models.list()
    yield "models", model.id
    counted = client.messages.count_tokens(model=MODEL, messages=messages)
    count = counted.input_tokens
    yield "count", str(count)
    answer = client.messages.create(**short)
    read = answer.usage.cache_read_input_tokens or 0
    assert answer.usage.input_tokens + read == count
    yield "message", text_of(answer)
    with client.messages.stream(**short) as events:
        text = "".join(events.text_stream)
        assert events.get_final_message().usage.output_tokens == 16
    yield "message stream", text
    for way in ("", " stream"):
        history = [*messages]
        for choice in (NAMED, ANY, NONE):
            body: Any = {"model": MODEL, "max_tokens": 128}
            body["messages"] = history
            body["tools"] = [TOOL]
            body["tool_choice"] = choice
            if choice is NONE:
                body["extra_body"] = {"grammar": MILD}
            if way:
                with client.messages.stream(**body) as events:
                    answer = events.get_final_message()
            else:
                answer = client.messages.create(**body)
            results = results_of(answer)
            called_some = answer.stop_reason == "tool_use"
            assert bool(results) == called_some
            turn: Any = {"role": "assistant", "content": answer.content}
            history.append(turn)
            reply: Any = {"role": "user", "content": results}
            history.append(reply)
        called(2)
        yield f"tools{way}", text_of(answer)


def text_of(message: Any) -> str:
    """Return the text of a message."""
    texts: list[str] = []
    for block in message.content:
        if block.type == "text":
            texts.append(block.text)
    return "".join(texts)


def results_of(message: Any) -> list[dict[str, str]]:
    """Return the blocks that answer a message's calls."""
    results: list[dict[str, str]] = []
    for block in message.content:
        if block.type == "tool_use":
            text = weather(**block.input)
            result = {"type": "tool_result", "tool_use_id": block.id}
            result["content"] = text
            results.append(result)
    return results
