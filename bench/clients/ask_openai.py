"""The openai library."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
from work import CODE, MODEL, NAMED, QUESTION, SINGLY, TOOL, Place, called, weather


def ask(place: Place, _installed: Path) -> Iterator[tuple[str, str]]:
    """Yield each piece of work, and its text."""

    client = openai.OpenAI(base_url=place.url, api_key=place.key)
    messages: Any = [{"role": "user", "content": QUESTION}]
    yield "models", client.models.list().data[0].id
    chat = client.chat.completions.create(model=MODEL, messages=messages, max_tokens=16)
    yield "chat", chat.choices[0].message.content or ""
    stream = client.chat.completions.create(
        model=MODEL,
        messages=messages,
        max_tokens=16,
        stream=True,
        stream_options={"include_usage": True},
    )
    parts = list(stream)
    assert parts[-1].usage
    assert parts[-1].usage.completion_tokens == 16
    yield (
        "chat stream",
        "".join(part.choices[0].delta.content or "" for part in parts if part.choices),
    )
    yield (
        "completion",
        client.completions.create(model=MODEL, prompt=CODE, max_tokens=16).choices[0].text,
    )
    texts = client.completions.create(model=MODEL, prompt=CODE, max_tokens=16, stream=True)
    yield "completion stream", "".join(part.choices[0].text for part in texts)
    asked: Any = {"model": MODEL, "tools": [TOOL], **SINGLY}
    for way in ("", " stream"):
        chat_so_far, choices = [*messages], (NAMED, "required", "none")
        for choice in choices:
            told = asked | {"messages": chat_so_far, "tool_choice": choice}
            if choice == "none":  # its stream refuses a text that is cut off
                told["extra_body"] = {"grammar": 'root ::= "Mild."'}
            if way:
                with client.chat.completions.stream(**told) as deltas:
                    said = deltas.until_done().get_final_completion().choices[0]
            else:
                said = client.chat.completions.create(**told).choices[0]
            chat_so_far.append(said.message)
            for call in said.message.tool_calls or ():
                assert said.finish_reason == "tool_calls"
                result = weather(**json.loads(call.function.arguments))
                chat_so_far.append({"role": "tool", "tool_call_id": call.id, "content": result})
        called(2)
        yield f"tools{way}", said.message.content or ""
