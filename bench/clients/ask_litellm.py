"""LiteLLM, as its openai provider."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import litellm
from work import CODE, MODEL, NAMED, QUESTION, SINGLY, TOOL, Place, called, weather


def ask(place: Place, _installed: Path) -> Iterator[tuple[str, str]]:
    """Yield each piece of work, and its text."""

    told: Any = {"api_base": place.url, "api_key": place.key, "max_tokens": 16}
    messages: Any = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": QUESTION},
    ]
    chat = litellm.completion(model=f"openai/{MODEL}", messages=messages, **told)
    yield "chat", chat.choices[0].message.content
    stream = litellm.completion(model=f"openai/{MODEL}", messages=messages, stream=True, **told)
    yield "chat stream", "".join(part.choices[0].delta.content or "" for part in stream)
    text = litellm.text_completion(model=f"text-completion-openai/{MODEL}", prompt=CODE, **told)
    yield "completion", text.choices[0].text
    texts = litellm.text_completion(
        model=f"text-completion-openai/{MODEL}", prompt=CODE, stream=True, **told
    )
    yield "completion stream", "".join(part.choices[0].text or "" for part in texts)
    for way in ("", " stream"):
        for choice in (NAMED, "required", "none"):
            more = told | SINGLY | {"tools": [TOOL], "tool_choice": choice, "stream": bool(way)}
            answer = litellm.completion(model=f"openai/{MODEL}", messages=messages, **more)
            said = (
                (litellm.stream_chunk_builder([*answer], messages) if way else answer)
                .choices[0]
                .message
            )
            messages.append(said.model_dump(exclude_none=True))
            for call in said.tool_calls or ():
                result = weather(**json.loads(call.function.arguments))
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
        called(2)
        yield f"tools{way}", said.content
