"""instructor, in its modes JSON_SCHEMA and TOOLS."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import instructor
import openai
import pydantic
from work import MODEL, QUESTION, Place, called, results_of, weather


def ask(place: Place, _installed: Path) -> Iterator[tuple[str, str]]:
    """Yield each piece of work, and its text."""

    class Answer(pydantic.BaseModel):
        """A short answer, which even a model that knows nothing ends."""

        language: Literal["python", "c"]
        lines: Literal[1, 2, 3]
        works: bool

    daemon = openai.OpenAI(base_url=place.url, api_key=place.key)
    chats = instructor.from_openai(daemon, mode=instructor.Mode.JSON_SCHEMA).chat.completions
    messages: Any = [{"role": "user", "content": QUESTION}]
    body: Any = {"model": MODEL, "messages": messages, "max_tokens": 128}
    answer = chats.create(response_model=Answer, max_retries=1, **body)
    yield "chat", answer.model_dump_json()
    *_, last = chats.create_partial(response_model=Answer, **body)
    yield "chat stream", Answer(**last.model_dump()).model_dump_json()

    class Weather(pydantic.BaseModel):
        """A wish for a forecast."""

        days: Literal[1, 2, 3]
        unit: Literal["C", "F"]

    chats = instructor.from_openai(daemon, mode=instructor.Mode.TOOLS).chat.completions
    _, reply = chats.create_with_completion(response_model=Weather, max_retries=1, **body)
    message = reply.choices[0].message
    messages += [message.model_dump(), *results_of(message.tool_calls)]
    answer = chats.create(response_model=Answer, max_retries=1, **body)
    called(1)
    yield "tools", answer.model_dump_json()
    *_, last = chats.create_partial(response_model=Weather, **body)
    result = weather(**Weather(**last.model_dump()).model_dump())
    called(1)
    yield "tools stream", result
