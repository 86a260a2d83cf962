"""Do the clients that people have do their work, with tools and without, at both daemons?

    python bench/clients.py --venvs DIR [--only openai,aider] [--record tests/e2e/client_bodies.json]

Each client is installed by pip in a virtual environment of its own under DIR, where it is not there yet, and asks a
verifier and a drafter of the bundled pair, with API keys and without, streaming and not. Work with tools: calls, which
a grammar has this target write, and answers to what came of them. Prints a table, and what could not be installed; exit
code 1 where something failed or nothing ran. `--record` writes down what the clients sent, without keys.
"""

import argparse
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar, Literal
from urllib.parse import urlsplit

PACKAGES = {
    "openai": "openai>=3",
    "langchain": "langchain-openai",
    "litellm": "litellm",
    "llm": "llm",
    "instructor": "instructor",
    "pydantic_ai": "pydantic-ai-slim[openai]",
    "agents": "openai-agents",
    "aider": "aider-chat",
}
"""What pip installs for each client. `langchain` is two of them, chat and completions."""
OFFLINE = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_TELEMETRY": "False",
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
    "AIDER_ANALYTICS_DISABLE": "true",
    "AIDER_CHECK_UPDATE": "false",
    "AIDER_SHOW_RELEASE_NOTES": "false",
}
"""Variables without which a client asks the internet for prices, updates or a place for its traces."""
KEY = "sk-of-this-benchmark"
KEPT = ("accept", "content-type", "transfer-encoding")
"""Headers that are recorded."""
SHORT = 200
MODEL = "target"
QUESTION = "Write a function that adds two numbers."
CODE = "def add(a, b):\n"
CTX = 4096
"""Tokens: the bundled target was trained on 1,024, and aider's instructions have more."""

HERMES = (
    "{% if tools %}<|im_start|>system\n{{ tools | tojson }}: call by <tool_call><|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for call in m.tool_calls or () %}<tool_call>\n{{ call.function | tojson }}\n</tool_call>{% endfor %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""A small template of the family whose calls are between `<tool_call>` marks."""

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "days": {"type": "integer", "enum": [1, 2, 3]},
        "unit": {"type": "string", "enum": ["C", "F"]},
    },
    "required": ["days", "unit"],
    "additionalProperties": False,
}
TOOL: Any = {
    "type": "function",
    "function": {"name": "weather", "description": "The forecast.", "parameters": SCHEMA},
}
NAMED: Any = {"type": "function", "function": {"name": "weather"}}
SINGLY: Any = {"max_tokens": 128, "parallel_tool_calls": False}
"""One call at a time: this target would go on with calls."""

CALLED: list[object] = []


def weather(days: Literal[1, 2, 3], unit: Literal["C", "F"]) -> str:
    """The forecast."""
    assert days in {1, 2, 3}
    assert unit in {"C", "F"}
    CALLED.append((days, unit))
    return "mild"


def called(times: int) -> None:
    """Check that `weather` was called so often since this was asked."""
    assert len(CALLED) == times, CALLED
    CALLED.clear()


@dataclass(frozen=True, slots=True)
class Place:
    """Where a client asks: a daemon's /v1, and the key to send."""

    name: str
    url: str
    key: str


def asked_openai(place: Place) -> Iterator[tuple[str, str]]:
    """The openai library."""
    import openai

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


def asked_langchain(place: Place) -> Iterator[tuple[str, str]]:
    """LangChain's ChatOpenAI and OpenAI."""
    from functools import reduce
    from operator import add

    import langchain_core.tools
    from langchain_core.messages import HumanMessage
    from langchain_openai import ChatOpenAI, OpenAI

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


def asked_litellm(place: Place) -> Iterator[tuple[str, str]]:
    """LiteLLM, as its openai provider."""
    import litellm

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


LLM_TOOL = """
def weather(days: __import__("typing").Literal[1, 2, 3], unit: __import__("typing").Literal["C", "F"]):
    print("called", days, unit)
    return "mild"
"""
LLM_OPTIONS = ["-o", "max_tokens", "128", "-o", "temperature", "0", "-o", "stop", "</tool_call>"]
"""llm lets the model choose whether it calls: after many marks of a call, this one writes one more."""


def asked_llm(place: Place) -> Iterator[tuple[str, str]]:
    """Simon Willison's llm, as a command with a file that names the models."""
    with tempfile.TemporaryDirectory() as folder:
        models = [
            {
                "model_id": name,
                "model_name": MODEL,
                "api_base": place.url,
                "api_key_name": "specmesh",
            }
            | more
            for name, more in (
                ("chat", {}),
                ("text", {"completion": True}),
                ("caller", {"supports_tools": True}),
            )
        ]
        Path(folder, "extra-openai-models.yaml").write_text(json.dumps(models))  # JSON is YAML
        Path(folder, "keys.json").write_text(json.dumps({"specmesh": place.key}))

        def run(*words: str) -> str:
            command = [str(Path(sys.executable).with_name("llm")), "-o", "max_tokens", "16", *words]
            return output(command, {"LLM_USER_PATH": folder})

        yield "chat", run("-m", "chat", "--no-stream", "-s", "Be brief.", QUESTION)
        yield "chat stream", run("-m", "chat", QUESTION)
        yield "chat continued", run("-c", "And three?")
        for way, told in (("tools", ("--no-stream",)), ("tools stream", ())):
            said = run(
                "-m", "caller", *told, "--functions", LLM_TOOL, *LLM_OPTIONS, "<tool_call>\n" * 30
            )
            CALLED.extend(re.findall("called [123] [CF]", said))
            called(1)
            yield way, said
        yield "completion", run("-m", "text", "--no-stream", CODE)
        yield "completion stream", run("-m", "text", CODE)


def asked_instructor(place: Place) -> Iterator[tuple[str, str]]:
    """instructor, in its modes JSON_SCHEMA and TOOLS."""
    import instructor
    import openai
    import pydantic

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


def asked_pydantic_ai(place: Place) -> Iterator[tuple[str, str]]:
    """pydantic-ai, asked for text, and for an object as it asks where nothing is said: by a tool."""
    import asyncio

    import pydantic
    from pydantic_ai import Agent
    from pydantic_ai.capabilities import AbstractCapability
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    class Answer(pydantic.BaseModel):
        """How it will be."""

        works: bool

    class FirstTool(AbstractCapability[None]):
        """The first step calls `weather`, the next ones no function."""

        def get_model_settings(self) -> Any:
            return lambda context: {"tool_choice": ["weather"] if context.run_step == 1 else "none"}

    async def ask() -> list[tuple[str, str]]:
        model = OpenAIChatModel(
            MODEL, provider=OpenAIProvider(base_url=place.url, api_key=place.key)
        )
        agent = Agent(model, system_prompt="Be brief.", model_settings={"max_tokens": 16})
        first = await agent.run(QUESTION)
        async with agent.run_stream(QUESTION) as stream:
            streamed = "".join([part async for part in stream.stream_text(delta=True)])
        second = await agent.run("And three?", message_history=first.all_messages())
        texts = [
            ("chat", first.output),
            ("chat stream", streamed),
            ("chat continued", second.output),
        ]
        told: Any = {"tools": [weather], "capabilities": [FirstTool()], "model_settings": SINGLY}
        answer = await Agent(model, output_type=Answer, **told).run(QUESTION)
        async with Agent(model, **told).run_stream(QUESTION) as stream:
            streamed = "".join([part async for part in stream.stream_text(delta=True)])
        called(2)
        return [*texts, ("tools", answer.output.model_dump_json()), ("tools stream", streamed)]

    yield from asyncio.run(ask())


ENDS = {"seed": 1, "stop": ["(", ".", "p", "f"]}
"""What ends a free text, and is in no call: openai-agents refuses a stream whose text is cut off."""


def asked_agents(place: Place) -> Iterator[tuple[str, str]]:
    """openai-agents, by chat completions; its tools by responses, which is what it does where nothing is said."""
    import asyncio

    import agents
    import openai

    async def ask() -> list[tuple[str, str]]:
        client = openai.AsyncOpenAI(base_url=place.url, api_key=place.key)
        model = agents.OpenAIChatCompletionsModel(model=MODEL, openai_client=client)
        settings = agents.ModelSettings(max_tokens=16)
        agent = agents.Agent(
            name="A", instructions="Be brief.", model=model, model_settings=settings
        )
        first = await agents.Runner.run(agent, QUESTION)
        stream = agents.Runner.run_streamed(agent, QUESTION)
        parts = [
            event.data
            async for event in stream.stream_events()
            if event.type == "raw_response_event"
        ]
        streamed = "".join(
            part.delta for part in parts if part.type == "response.output_text.delta"
        )
        more = [*first.to_input_list(), {"role": "user", "content": "And three?"}]
        second = await agents.Runner.run(agent, more)
        texts = [
            ("chat", first.final_output),
            ("chat stream", streamed),
            ("chat continued", second.final_output),
        ]
        agents.set_default_openai_client(client, use_for_tracing=False)
        settings = agents.ModelSettings(tool_choice="required", extra_body=ENDS, **SINGLY)
        tools: Any = [agents.function_tool(weather)]
        agent = agents.Agent(
            name="B", instructions="Be brief.", model=MODEL, model_settings=settings, tools=tools
        )
        answer = await agents.Runner.run(agent, QUESTION)
        stream = agents.Runner.run_streamed(agent, QUESTION)
        kinds = [
            event.item.type
            async for event in stream.stream_events()
            if event.type == "run_item_stream_event"
        ]
        assert kinds == ["tool_call_item", "tool_call_output_item", "message_output_item"]
        called(2)
        return [*texts, ("tools", answer.final_output), ("tools stream", stream.final_output)]

    yield from asyncio.run(ask())


def asked_aider(place: Place) -> Iterator[tuple[str, str]]:
    """aider, as a command: a question about a file, and a change of it, which a grammar has this target write."""
    changed = CODE + "    return a + b\n"
    answer = json.dumps(f"add.py\n```\n{changed}```\n")
    params = {"max_tokens": 128, "extra_body": {"grammar": f"root ::= {answer}"}}
    settings = [{"name": f"openai/{MODEL}", "edit_format": "whole", "extra_params": params}]

    def run(*words: str) -> str:
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "add.py").write_text(CODE)
            Path(folder, "settings.yml").write_text(json.dumps(settings))
            command = [
                str(Path(sys.executable).with_name("aider")),
                "--model",
                f"openai/{MODEL}",
                *words,
                "add.py",
            ]
            command += [
                "--no-git",
                "--yes-always",
                "--no-pretty",
                "--no-show-model-warnings",
                "--map-tokens",
                "0",
            ]
            command += [
                "--model-settings-file",
                "settings.yml",
                "--no-detect-urls",
                "--message",
                QUESTION,
            ]
            told = {"OPENAI_API_BASE": place.url, "OPENAI_API_KEY": place.key, "HOME": folder}
            said = output(command, told, folder)
            assert "return a + b" in said, said[-300:]
            return Path(folder, "add.py").read_text()

    for way, told in (("--no-stream", ""), ("--stream", " stream")):
        assert run(way, "--chat-mode", "ask") == CODE
        yield f"ask{told}", "a question leaves the file"
        assert run(way) == changed
        yield f"edit{told}", changed


CLIENTS: dict[str, Callable[[Place], Iterator[tuple[str, str]]]] = {
    "openai": asked_openai,
    "langchain": asked_langchain,
    "litellm": asked_litellm,
    "llm": asked_llm,
    "instructor": asked_instructor,
    "pydantic_ai": asked_pydantic_ai,
    "agents": asked_agents,
    "aider": asked_aider,
}


def output(command: list[str], told: dict[str, str], folder: str | None = None) -> str:
    """What a command prints; raises AssertionError where it fails."""
    done = subprocess.run(
        command,
        cwd=folder,
        env=os.environ | told,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-300:]
    return done.stdout


def as_client(name: str, places: list[Place]) -> None:
    """In the client's environment: a line of JSON for each piece of work, with what failed and how."""
    for place in places:
        what = "before"
        try:
            for what, text in CLIENTS[name](place):
                print(json.dumps([name, place.name, what, "ok" if text else "no text"]), flush=True)
        except Exception as error:  # noqa: BLE001  (whatever a client raises is a line of the table)
            told = " ".join(f"{type(error).__name__}: {error}".split())
            print(json.dumps([name, place.name, f"after {what}", told[:300]]), flush=True)


class Recorder(BaseHTTPRequestHandler):
    """Passes requests on to a daemon, and keeps what was asked."""

    place: Place
    client = ""
    kept: ClassVar[list[dict[str, Any]]] = []

    def do_GET(self) -> None:
        """Keep it and pass it on."""
        self._passed(None)

    def do_POST(self) -> None:
        """Likewise, with its body."""
        self._passed(self.rfile.read(int(self.headers["Content-Length"])))

    def _passed(self, raw: bytes | None) -> None:
        headers = {name: self.headers[name] for name in KEPT if name in self.headers}
        asked = {
            "client": Recorder.client,
            "method": self.command,
            "path": self.path,
            "headers": headers,
        }
        asked |= {
            "key": "Authorization" in self.headers,
            "body": raw and json.loads(raw, object_hook=shortened),
        }
        if asked not in self.kept:
            self.kept.append(asked)
        connection = HTTPConnection(urlsplit(self.place.url).netloc)
        connection.request(
            self.command, self.path, raw, {name: self.headers[name] for name in self.headers}
        )
        answer = connection.getresponse()
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.getheader("Content-Type") or "")
        self.end_headers()
        while piece := answer.read1(65536):
            self.wfile.write(piece)
        connection.close()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def shortened(value: dict[str, Any]) -> dict[str, Any]:
    """An object whose `content` is not long: instructions are their client's own."""
    content = value.get("content")
    return value | {"content": content[:SHORT]} if isinstance(content, str) else value


def recorded(place: Place) -> Place:
    """The same place through a recorder."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("One", (Recorder,), {"place": place}))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return Place(place.name, f"http://127.0.0.1:{server.server_address[1]}/v1", place.key)


def installed(name: str, venvs: Path) -> Path | None:
    """The interpreter that has this client; None where pip cannot install it."""
    folder = venvs / name
    python = folder / "bin" / "python"
    if not (folder / "installed").exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        done = subprocess.run(
            [str(python), "-m", "pip", "install", "--quiet", PACKAGES[name]], check=False
        )
        if done.returncode != 0:
            return None
        (folder / "installed").touch()
    return python


def pair(folder: Path, keys: bool) -> Any:
    """A running pair, as `live.daemons` has it, and where its two APIs are."""
    sys.path.insert(0, str(Path(__file__).parent))
    from live import daemons

    template, file = folder / "template.jinja", folder / "keys"
    template.write_text(HERMES)
    file.touch(0o600)
    file.write_text(KEY)
    places, options = [], []
    for name in ("verifier", "drafter"):
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        places.append(
            Place(f"{name}, {'a key' if keys else 'no key'}", f"http://127.0.0.1:{port}/v1", KEY)
        )
        asks = ["--api-key-file", str(file)] if keys else []
        options.append(
            [
                "--model",
                "bundled",
                "--threads",
                "1",
                "--ctx",
                str(CTX),
                "--http",
                f"127.0.0.1:{port}",
                *asks,
            ]
        )
    options[0] += ["--chat-template", str(template), "--max-sessions", "2"]
    return places, daemons(folder, *options)


def main() -> None:
    """Install the clients, run them, print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--venvs", type=Path, required=True, help="a folder for the clients' environments"
    )
    parser.add_argument("--only", default=",".join(CLIENTS), help="names, with commas")
    parser.add_argument("--record", type=Path, help="write what the clients sent into this file")
    options = parser.parse_args()
    pythons = {name: installed(name, options.venvs.resolve()) for name in options.only.split(",")}
    rows: list[list[str]] = []
    for keys in (True, False):
        with tempfile.TemporaryDirectory(prefix="sm-", dir="/tmp") as folder:
            places, running = pair(Path(folder), keys)
            if options.record and keys:
                places[0] = recorded(places[0])
            with running:
                for name, python in pythons.items():
                    Recorder.client = name
                    rows += asked_by(name, python, places) if python else []
    print("| client | daemon | what | |\n|---|---|---|---|")
    for row in rows:
        print(f"| {' | '.join(row)} |")
    bad = [row for row in rows if row[-1] != "ok"]
    print(f"\n{len(rows) - len(bad)} of {len(rows)} ok")
    print(
        *(
            f"skipped, pip cannot install it: {name}"
            for name, python in pythons.items()
            if not python
        ),
        sep="\n",
    )
    if options.record:
        options.record.write_text(json.dumps(Recorder.kept, indent=1, ensure_ascii=False) + "\n")
    raise SystemExit(1 if bad or not rows else 0)


def asked_by(name: str, python: Path, places: list[Place]) -> list[list[str]]:
    """The rows of a client: what it did at these places."""
    command = [
        str(python),
        __file__,
        "--client",
        name,
        json.dumps([asdict(place) for place in places]),
    ]
    told = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("OPENAI_", "SPECMESH_", "PYTHON"))
    }
    done = subprocess.run(
        command, env=told | OFFLINE, capture_output=True, text=True, timeout=900, check=False
    )
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('["')]
    return rows or [[name, "", "", f"nothing was said: {' '.join(done.stderr.split())[-300:]}"]]


if __name__ == "__main__":
    if sys.argv[1] == "--client":
        as_client(sys.argv[2], [Place(**place) for place in json.loads(sys.argv[3])])
    else:
        main()
