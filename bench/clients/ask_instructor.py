"""instructor, in its modes JSON_SCHEMA and TOOLS."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import instructor
import openai
import pydantic
from work import MODEL, QUESTION, Place, called, weather


def ask(place: Place, _installed: Path) -> Iterator[tuple[str, str]]:
    """Yield each piece of work, and its text."""

    class Answer(pydantic.BaseModel):
        """A short answer, which even a model that knows nothing ends."""

        language: Literal["python", "c"]
        lines: Literal[1, 2, 3]
        works: bool

    client = instructor.from_openai(
        openai.OpenAI(base_url=place.url, api_key=place.key), mode=instructor.Mode.JSON_SCHEMA
    )
    told: Any = {
        "model": MODEL,
        "messages": [{"role": "user", "content": QUESTION}],
        "max_tokens": 128,
    }
    answer = client.chat.completions.create(response_model=Answer, max_retries=1, **told)
    yield "chat", answer.model_dump_json()
    *_, last = client.chat.completions.create_partial(response_model=Answer, **told)
    yield "chat stream", Answer(**last.model_dump()).model_dump_json()

    class Weather(pydantic.BaseModel):
        """What is wanted of the forecast."""

        days: Literal[1, 2, 3]
        unit: Literal["C", "F"]

    client = instructor.from_openai(
        openai.OpenAI(base_url=place.url, api_key=place.key), mode=instructor.Mode.TOOLS
    )
    wanted, said = client.chat.completions.create_with_completion(
        response_model=Weather, max_retries=1, **told
    )
    message = said.choices[0].message
    result = {
        "role": "tool",
        "tool_call_id": message.tool_calls[0].id,
        "content": weather(**wanted.model_dump()),
    }
    told["messages"] += [message.model_dump(), result]
    answer = client.chat.completions.create(response_model=Answer, max_retries=1, **told)
    called(1)
    yield "tools", answer.model_dump_json()
    *_, last = client.chat.completions.create_partial(response_model=Weather, **told)
    result = weather(**Weather(**last.model_dump()).model_dump())
    called(1)
    yield "tools stream", result
