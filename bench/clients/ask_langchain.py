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
    daemon: Any = {"base_url": place.url, "api_key": place.key, "model": MODEL}
    chat = ChatOpenAI(**daemon, max_tokens=16)
    text = OpenAI(**daemon, max_tokens=16)
    two = [CODE, "import os\n"]
    yield "chat", str(chat.invoke([("system", "Be brief."), ("user", QUESTION)]).content)
    yield "chat stream", "".join(str(part.content) for part in chat.stream(QUESTION))
    yield "completion", text.invoke(CODE)
    yield "completion stream", "".join(text.stream(CODE))
    yield "completion batch", min(text.batch(two), key=len)
    yield "completion generate", text.generate(two).generations[1][0].text
    tool = langchain_core.tools.tool(weather)
    caller = ChatOpenAI(**daemon, max_tokens=128)
    for way in ("", " stream"):
        history: Any = [HumanMessage(QUESTION)]
        for choice in ("weather", "any", "none"):
            bound = caller.bind_tools([tool], tool_choice=choice, parallel_tool_calls=False)
            if way:
                message = reduce(add, bound.stream(history))
            else:
                message = bound.invoke(history)
            history += [message, *map(tool.invoke, message.tool_calls)]
        called(2)
        yield f"tools{way}", message.text
    schema = SCHEMA | {"title": "weather"}
    structured = caller.with_structured_output(schema, method="function_calling")
    *_, streamed = structured.stream(QUESTION)
    for way, wanted in (("", structured.invoke(QUESTION)), (" stream", streamed)):
        result = weather(**wanted)
        called(1)
        yield f"tools structured{way}", result
