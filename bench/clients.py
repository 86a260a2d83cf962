"""Do the clients that people have do their plain-text work at both daemons?

    python bench/clients.py --venvs DIR [--only openai,aider] [--record tests/e2e/client_bodies.json]

Each client is installed by pip in a virtual environment of its own under DIR, where it is not there yet, and asks a
verifier and a drafter of the bundled pair, with API keys and without, streaming and not. Prints a table, and what could
not be installed; exit code 1 where something failed or nothing ran. `--record` writes down what the clients sent,
without keys.
"""

import argparse
import json
import os
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
from typing import Any, ClassVar
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
        model=MODEL, messages=messages, max_tokens=16, stream=True, stream_options={"include_usage": True}
    )
    parts = list(stream)
    assert parts[-1].usage
    assert parts[-1].usage.completion_tokens == 16
    yield "chat stream", "".join(part.choices[0].delta.content or "" for part in parts if part.choices)
    yield "completion", client.completions.create(model=MODEL, prompt=CODE, max_tokens=16).choices[0].text
    texts = client.completions.create(model=MODEL, prompt=CODE, max_tokens=16, stream=True)
    yield "completion stream", "".join(part.choices[0].text for part in texts)


def asked_langchain(place: Place) -> Iterator[tuple[str, str]]:
    """LangChain's ChatOpenAI and OpenAI."""
    from langchain_openai import ChatOpenAI, OpenAI

    told: Any = {"base_url": place.url, "api_key": place.key, "model": MODEL, "max_tokens": 16}
    chat, text = ChatOpenAI(**told), OpenAI(**told)
    yield "chat", str(chat.invoke([("system", "Be brief."), ("user", QUESTION)]).content)
    yield "chat stream", "".join(str(part.content) for part in chat.stream(QUESTION))
    yield "completion", text.invoke(CODE)
    yield "completion stream", "".join(text.stream(CODE))
    yield "completion batch", min(text.batch([CODE, "import os\n"]), key=len)
    yield "completion generate", text.generate([CODE, "import os\n"]).generations[1][0].text


def asked_litellm(place: Place) -> Iterator[tuple[str, str]]:
    """LiteLLM, as its openai provider."""
    import litellm

    told: Any = {"api_base": place.url, "api_key": place.key, "max_tokens": 16}
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": QUESTION}]
    chat = litellm.completion(model=f"openai/{MODEL}", messages=messages, **told)
    yield "chat", chat.choices[0].message.content
    stream = litellm.completion(model=f"openai/{MODEL}", messages=messages, stream=True, **told)
    yield "chat stream", "".join(part.choices[0].delta.content or "" for part in stream)
    text = litellm.text_completion(model=f"text-completion-openai/{MODEL}", prompt=CODE, **told)
    yield "completion", text.choices[0].text
    texts = litellm.text_completion(model=f"text-completion-openai/{MODEL}", prompt=CODE, stream=True, **told)
    yield "completion stream", "".join(part.choices[0].text or "" for part in texts)


def asked_llm(place: Place) -> Iterator[tuple[str, str]]:
    """Simon Willison's llm, as a command with a file that names the models."""
    with tempfile.TemporaryDirectory() as folder:
        models = [
            {"model_id": name, "model_name": MODEL, "api_base": place.url, "api_key_name": "specmesh"} | more
            for name, more in (("chat", {}), ("text", {"completion": True}))
        ]
        Path(folder, "extra-openai-models.yaml").write_text(json.dumps(models))  # JSON is YAML
        Path(folder, "keys.json").write_text(json.dumps({"specmesh": place.key}))

        def run(*words: str) -> str:
            command = [str(Path(sys.executable).with_name("llm")), *words, "-o", "max_tokens", "16"]
            return output(command, {"LLM_USER_PATH": folder})

        yield "chat", run("-m", "chat", "--no-stream", "-s", "Be brief.", QUESTION)
        yield "chat stream", run("-m", "chat", QUESTION)
        yield "chat continued", run("-c", "And three?")
        yield "completion", run("-m", "text", "--no-stream", CODE)
        yield "completion stream", run("-m", "text", CODE)


def asked_instructor(place: Place) -> Iterator[tuple[str, str]]:
    """instructor, in its JSON_SCHEMA mode."""
    from typing import Literal

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
    told: Any = {"model": MODEL, "messages": [{"role": "user", "content": QUESTION}], "max_tokens": 64}
    answer = client.chat.completions.create(response_model=Answer, max_retries=1, **told)
    yield "chat", answer.model_dump_json()
    *_, last = client.chat.completions.create_partial(response_model=Answer, **told)
    yield "chat stream", Answer(**last.model_dump()).model_dump_json()


def asked_pydantic_ai(place: Place) -> Iterator[tuple[str, str]]:
    """pydantic-ai, asked for text."""
    import asyncio

    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    async def ask() -> list[tuple[str, str]]:
        model = OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=place.url, api_key=place.key))
        agent = Agent(model, system_prompt="Be brief.", model_settings={"max_tokens": 16})
        first = await agent.run(QUESTION)
        async with agent.run_stream(QUESTION) as stream:
            streamed = "".join([part async for part in stream.stream_text(delta=True)])
        second = await agent.run("And three?", message_history=first.all_messages())
        return [("chat", first.output), ("chat stream", streamed), ("chat continued", second.output)]

    yield from asyncio.run(ask())


def asked_agents(place: Place) -> Iterator[tuple[str, str]]:
    """openai-agents, by chat completions."""
    import asyncio

    import agents
    import openai

    async def ask() -> list[tuple[str, str]]:
        client = openai.AsyncOpenAI(base_url=place.url, api_key=place.key)
        model = agents.OpenAIChatCompletionsModel(model=MODEL, openai_client=client)
        settings = agents.ModelSettings(max_tokens=16)
        agent = agents.Agent(name="A", instructions="Be brief.", model=model, model_settings=settings)
        first = await agents.Runner.run(agent, QUESTION)
        stream = agents.Runner.run_streamed(agent, QUESTION)
        parts = [event.data async for event in stream.stream_events() if event.type == "raw_response_event"]
        streamed = "".join(part.delta for part in parts if part.type == "response.output_text.delta")
        more = [*first.to_input_list(), {"role": "user", "content": "And three?"}]
        second = await agents.Runner.run(agent, more)
        return [("chat", first.final_output), ("chat stream", streamed), ("chat continued", second.final_output)]

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
            command = [str(Path(sys.executable).with_name("aider")), "--model", f"openai/{MODEL}", *words, "add.py"]
            command += ["--no-git", "--yes-always", "--no-pretty", "--no-show-model-warnings", "--map-tokens", "0"]
            command += ["--model-settings-file", "settings.yml", "--no-detect-urls", "--message", QUESTION]
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
        asked = {"client": Recorder.client, "method": self.command, "path": self.path, "headers": headers}
        asked |= {"key": "Authorization" in self.headers, "body": raw and json.loads(raw, object_hook=shortened)}
        if asked not in self.kept:
            self.kept.append(asked)
        connection = HTTPConnection(urlsplit(self.place.url).netloc)
        connection.request(self.command, self.path, raw, {name: self.headers[name] for name in self.headers})
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
        done = subprocess.run([str(python), "-m", "pip", "install", "--quiet", PACKAGES[name]], check=False)
        if done.returncode != 0:
            return None
        (folder / "installed").touch()
    return python


def pair(folder: Path, keys: bool) -> Any:
    """A running pair, as `live.daemons` has it, and where its two APIs are."""
    sys.path.insert(0, str(Path(__file__).parent))
    from live import daemons
    from llama_shim import CHATML

    template, file = folder / "template.jinja", folder / "keys"
    template.write_text(CHATML)
    file.touch(0o600)
    file.write_text(KEY)
    places, options = [], []
    for name in ("verifier", "drafter"):
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        places.append(Place(f"{name}, {'a key' if keys else 'no key'}", f"http://127.0.0.1:{port}/v1", KEY))
        asks = ["--api-key-file", str(file)] if keys else []
        options.append(
            ["--model", "bundled", "--threads", "1", "--ctx", str(CTX), "--http", f"127.0.0.1:{port}", *asks]
        )
    options[0] += ["--chat-template", str(template), "--max-sessions", "2"]
    return places, daemons(folder, *options)


def main() -> None:
    """Install the clients, run them, print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--venvs", type=Path, required=True, help="a folder for the clients' environments")
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
    print(*(f"skipped, pip cannot install it: {name}" for name, python in pythons.items() if not python), sep="\n")
    if options.record:
        options.record.write_text(json.dumps(Recorder.kept, indent=1, ensure_ascii=False) + "\n")
    raise SystemExit(1 if bad or not rows else 0)


def asked_by(name: str, python: Path, places: list[Place]) -> list[list[str]]:
    """The rows of a client: what it did at these places."""
    command = [str(python), __file__, "--client", name, json.dumps([asdict(place) for place in places])]
    told = {key: value for key, value in os.environ.items() if not key.startswith(("OPENAI_", "SPECMESH_", "PYTHON"))}
    done = subprocess.run(command, env=told | OFFLINE, capture_output=True, text=True, timeout=900, check=False)
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('["')]
    return rows or [[name, "", "", f"nothing was said: {' '.join(done.stderr.split())[-300:]}"]]


if __name__ == "__main__":
    if sys.argv[1] == "--client":
        as_client(sys.argv[2], [Place(**place) for place in json.loads(sys.argv[3])])
    else:
        main()
