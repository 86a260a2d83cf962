"""The openai library."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
from work import CODE, MILD, MODEL, NAMED, QUESTION, SINGLY, TOOL, Place, called, results_of


def ask(place: Place, _installed: Path) -> Iterator[tuple[str, str]]:
    """Yield each piece of work, and its text."""
    client = openai.OpenAI(base_url=place.url, api_key=place.key)
    chats = client.chat.completions
    messages: Any = [{"role": "user", "content": QUESTION}]
    chat: Any = {"model": MODEL, "messages": messages, "max_tokens": 16}
    text: Any = {"model": MODEL, "prompt": CODE, "max_tokens": 16}
    yield "models", client.models.list().data[0].id
    yield "chat", chats.create(**chat).choices[0].message.content or ""
    *parts, last = chats.create(**chat, stream=True, stream_options={"include_usage": True})
    assert last.usage
    assert last.usage.completion_tokens == 16
    yield "chat stream", "".join(part.choices[0].delta.content or "" for part in parts)
    yield "completion", client.completions.create(**text).choices[0].text
    texts = client.completions.create(**text, stream=True)
    yield "completion stream", "".join(part.choices[0].text for part in texts)
    with_tools: Any = {"model": MODEL, "tools": [TOOL], **SINGLY}
    for way in ("", " stream"):
        history = [*messages]
        for choice in (NAMED, "required", "none"):
            body = with_tools | {"messages": history, "tool_choice": choice}
            if choice == "none":  # its stream refuses a text that is cut off
                body["extra_body"] = {"grammar": MILD}
            if way:
                with chats.stream(**body) as deltas:
                    answer = deltas.until_done().get_final_completion().choices[0]
            else:
                answer = chats.create(**body).choices[0]
            message = answer.message
            assert not message.tool_calls or answer.finish_reason == "tool_calls"
            history += [message, *results_of(message.tool_calls)]
        called(2)
        yield f"tools{way}", message.content or ""
