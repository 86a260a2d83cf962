"""LangChain's ChatOpenAI and OpenAI."""

from collections.abc import Iterator
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any

import langchain_core.tools
from langchain_core.messages import HumanMessage
from langchain_openai import ChatOpenAI, OpenAI
from work import CODE, MODEL, QUESTION, SCHEMA, Place, called, weather


def ask(place: Place, _installed: Path) -> Iterator[tuple[str, str]]:
    """Yield each piece of work, and its text."""

    told: Any = {"base_url": place.url, "api_key": place.key, "model": MODEL, "max_tokens": 16}
    chat, text = ChatOpenAI(**told), OpenAI(**told)
    yield "chat", str(chat.invoke([("system", "Be brief."), ("user", QUESTION)]).content)
    yield "chat stream", "".join(str(part.content) for part in chat.stream(QUESTION))
    yield "completion", text.invoke(CODE)
    yield "completion stream", "".join(text.stream(CODE))
    yield "completion batch", min(text.batch([CODE, "import os\n"]), key=len)
    yield "completion generate", text.generate([CODE, "import os\n"]).generations[1][0].text
    tool, more = langchain_core.tools.tool(weather), {**told, "max_tokens": 128}
    caller = ChatOpenAI(**more)
    for way in ("", " stream"):
        said: Any = [HumanMessage(QUESTION)]
        for choice in ("weather", "any", "none"):
            bound = caller.bind_tools([tool], tool_choice=choice, parallel_tool_calls=False)
            message = reduce(add, bound.stream(said)) if way else bound.invoke(said)
            said += [message, *(tool.invoke(call) for call in message.tool_calls)]
        called(2)
        yield f"tools{way}", message.text
    structured = caller.with_structured_output(
        SCHEMA | {"title": "weather"}, method="function_calling"
    )
    for way, wanted in (
        ("", structured.invoke(QUESTION)),
        (" stream", [*structured.stream(QUESTION)][-1]),
    ):
        result = weather(**wanted)
        called(1)
        yield f"tools structured{way}", result
