"""LiteLLM, as its openai provider."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import litellm
from work import CODE, MODEL, NAMED, QUESTION, SINGLY, TOOL, Place, called, results_of


def ask(place: Place, _installed: Path) -> Iterator[tuple[str, str]]:
    """Yield each piece of work, and its text."""
    daemon: Any = {"api_base": place.url, "api_key": place.key, "max_tokens": 16}
    system = {"role": "system", "content": "Be brief."}
    messages: Any = [system, {"role": "user", "content": QUESTION}]
    chat = partial(litellm.completion, model=f"openai/{MODEL}", messages=messages, **daemon)
    complete = partial(
        litellm.text_completion, model=f"text-completion-openai/{MODEL}", prompt=CODE, **daemon
    )
    yield "chat", chat().choices[0].message.content
    yield "chat stream", "".join(part.choices[0].delta.content or "" for part in chat(stream=True))
    yield "completion", complete().choices[0].text
    yield "completion stream", "".join(part.choices[0].text or "" for part in complete(stream=True))
    for way in ("", " stream"):
        for choice in (NAMED, "required", "none"):
            answer = chat(tools=[TOOL], tool_choice=choice, stream=bool(way), **SINGLY)
            if way:
                answer = litellm.stream_chunk_builder([*answer], messages)
            message = answer.choices[0].message
            messages.append(message.model_dump(exclude_none=True))
            messages += results_of(message.tool_calls)
        called(2)
        yield f"tools{way}", message.content
