"""The API as the `openai` client uses it, over TCP, at a verifier and at a drafter."""

import http.client
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import openai
import pytest
from harness.ports import free_port
from processes import Daemon, Mesh, command, sim_text, until

KEY = "sk-a-key-of-these-tests"
CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
RENDERED = "system: Be brief.\nuser: Hi\nassistant: "


CLIENTS: list[openai.OpenAI] = []


@dataclass(frozen=True)
class Served:
    """A daemon with a TCP port."""

    daemon: Daemon
    url: str
    key: str

    def client(self, key: str | None = None) -> openai.OpenAI:
        key = self.key if key is None else key
        CLIENTS.append(openai.OpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0))
        return CLIENTS[-1]


def plainly(url: str, data: bytes | None = None, **headers: str) -> tuple[int, bytes]:
    """The answer to a request without any client library's habits."""
    parts = urlsplit(url)
    with closing(http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=20)) as connection:
        connection.request("GET" if data is None else "POST", parts.path, data, headers)
        answer = connection.getresponse()
        return answer.status, answer.read()


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    """Connections do not outlive their test."""
    yield
    while CLIENTS:
        CLIENTS.pop().close()


@pytest.fixture(scope="module")
def served(shared: Mesh) -> Iterator[dict[str, Served]]:
    """A verifier with a key, and a drafter without."""
    mesh = Mesh(shared.folder)
    keys = shared.folder / "api-keys"
    keys.write_text(f"# of the tests\n{KEY}\n")
    keys.chmod(0o600)
    ports = free_port(), free_port()
    verifier = mesh.verifier(
        "step_ms=3,n_ctx=2000", "--http", f"127.0.0.1:{ports[0]}", "--api-key-file", keys, name="with-key"
    )
    drafter = mesh.drafter("alpha=0.8", "--http", f"localhost:{ports[1]}", name="without-key")
    yield {
        "verifier": Served(verifier, f"http://127.0.0.1:{ports[0]}", KEY),
        "drafter": Served(drafter, f"http://localhost:{ports[1]}", "none"),
    }
    mesh.stop()


@pytest.fixture(params=["verifier", "drafter"])
def server(request: pytest.FixtureRequest, served: dict[str, Served]) -> Served:
    return served[request.param]


def test_completion(server: Served):
    """Text, usage and the drafts that stood."""
    answer = server.client().completions.create(model="any", prompt="once", max_tokens=40, temperature=0)
    assert answer.choices[0].text == sim_text("once", 40)
    assert answer.choices[0].finish_reason == "length"
    usage = answer.usage
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (4, 40, 44)
    assert usage.completion_tokens_details is not None
    report = answer.model_extra["specmesh"]["report"]  # type: ignore[index]
    assert usage.completion_tokens_details.accepted_prediction_tokens == report["accepted"]
    assert usage.completion_tokens_details.rejected_prediction_tokens == report["drafted"] - report["accepted"]


def test_request_ids(server: Served):
    """The answer's id is in its headers; of it, beside the session's, the daemon's log has the beginning only."""
    answer = server.client().completions.with_raw_response.create(model="any", prompt="once", max_tokens=2)
    name = answer.parse().id
    assert answer.headers["x-request-id"] == name
    assert name[:-20] in [event.get("request") for event in server.daemon.events("session_opened")]
    assert name not in server.daemon.text()


def test_chat(server: Served):
    """Messages go through the target's template, wherever they were asked."""
    answer = server.client().chat.completions.create(model="any", messages=CHAT, max_tokens=30, temperature=0)
    message = answer.choices[0].message
    assert (message.role, message.content) == ("assistant", sim_text(RENDERED, 30))
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(RENDERED)


def test_the_next_turn_finds_the_one_before(server: Served):
    """`usage` says how much of a chat was in memory: most of it at its second turn, nothing without `cache_prompt`."""
    client = server.client()
    chat = [{"role": "system", "content": f"Say it at the {server.daemon.log.name} in a few words."}]
    for question, found in (("One?", False), ("Two?", True)):
        chat.append({"role": "user", "content": question})
        answer = client.chat.completions.create(model="any", messages=chat, max_tokens=9, temperature=0)
        usage = answer.usage
        assert usage is not None
        assert usage.prompt_tokens_details is not None
        text = answer.choices[0].message.content or ""
        rendered = "".join(f"{one['role']}: {one['content']}\n" for one in chat) + "assistant: "
        assert text == sim_text(rendered, 9)
        assert (usage.prompt_tokens_details.cached_tokens > len(rendered) // 2) == found
        asked, chat = chat, [*chat, {"role": "assistant", "content": text}]
    cold = client.chat.completions.create(
        model="any", messages=asked, max_tokens=9, temperature=0, extra_body={"cache_prompt": False}
    )
    assert cold.usage is not None
    assert cold.usage.prompt_tokens_details is not None
    assert cold.usage.prompt_tokens_details.cached_tokens == 0
    assert cold.choices[0].message.content == text


def test_streams(server: Served):
    """Chunks make the same text; the usage comes last where it was asked for."""
    client = server.client()
    text = ""
    for part in client.completions.create(model="any", prompt="once", max_tokens=40, temperature=0, stream=True):
        text += part.choices[0].text
    assert text == sim_text("once", 40)
    *chunks, last = client.chat.completions.create(
        model="any",
        messages=CHAT,
        max_completion_tokens=30,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == sim_text(RENDERED, 30)
    assert chunks[-1].choices[0].finish_reason == "length"
    assert not last.choices
    assert last.usage is not None
    assert last.usage.completion_tokens == 30


@pytest.mark.parametrize("stream", [False, True])
def test_stop(server: Served, stream: bool):
    """The text ends before the stop string, the session with it."""
    whole = sim_text("once", 200)
    stop = whole[60:63]
    asked = {"model": "any", "prompt": "once", "max_tokens": 200, "temperature": 0, "stop": ["never\0", stop]}
    if stream:
        chunks = list(server.client().completions.create(**asked, stream=True))  # type: ignore[call-overload]
        text, reason = "".join(chunk.choices[0].text for chunk in chunks), chunks[-1].choices[0].finish_reason
    else:
        answer = server.client().completions.create(**asked)  # type: ignore[call-overload]
        text, reason = answer.choices[0].text, answer.choices[0].finish_reason
        assert answer.usage.completion_tokens == whole.index(stop)
    assert (text, reason) == (whole[: whole.index(stop)], "stop")


def test_several_answers(server: Served):
    """n texts, each of a seed of its own; streamed, chunks say whose they are. The usage is that of all."""
    asked = {"model": "any", "prompt": "once", "max_tokens": 20, "seed": 7, "n": 3}
    client = server.client()
    answer = client.completions.create(**asked, temperature=100)  # type: ignore[call-overload]
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    alone = [
        client.completions.create(model="any", prompt="once", max_tokens=20, temperature=100, seed=seed)
        for seed in (7, 8, 9)
    ]
    texts = [one.choices[0].text for one in alone]
    assert [choice.text for choice in answer.choices] == texts
    assert len(set(texts)) == 3
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (4, 60)
    streamed = ["", "", ""]
    *chunks, last = client.completions.create(
        **asked, temperature=0, stream=True, stream_options={"include_usage": True}, extra_body={"echo": True}
    )  # type: ignore[call-overload]
    for chunk in chunks:
        streamed[chunk.choices[0].index] += chunk.choices[0].text
    assert streamed == 3 * ["once" + sim_text("once", 20)]
    assert (last.usage.prompt_tokens, last.usage.completion_tokens) == (4, 60)


def test_cancel(server: Served):
    """A client that leaves a stream ends its session."""
    with server.client().completions.create(model="any", prompt="once", max_tokens=1500, stream=True) as stream:
        next(iter(stream))
        until(lambda: server.daemon.live() == 1, "the session is live")
    until(lambda: server.daemon.live() == 0, "the session has gone")


def test_cancel_before_the_answer(server: Served):
    """So does one that gives up waiting for the whole answer."""
    client = server.client().with_options(timeout=0.5)
    with pytest.raises(openai.APITimeoutError):
        client.completions.create(model="any", prompt="once", max_tokens=1500, temperature=0)
    until(lambda: server.daemon.live() == 0, "the session has gone")


@pytest.fixture(scope="module")
def slow(shared: Mesh) -> Iterator[Served]:
    """A verifier that takes two seconds for a chunk of a prompt."""
    mesh, port = Mesh(shared.folder), free_port()
    model = f"steps_ms={'/'.join(['1'] * 40)}/2000,n_ctx=4000"
    yield Served(mesh.verifier(model, "--http", f"127.0.0.1:{port}", name="slow"), f"http://127.0.0.1:{port}", "none")
    mesh.stop()


def test_cancel_in_a_long_prompt(slow: Served):
    """A client that gives up while its prompt is read ends its session, before a token has come."""
    with pytest.raises(openai.APITimeoutError):
        slow.client().with_options(timeout=0.5).completions.create(model="any", prompt="x" * 3500, max_tokens=5)
    until(lambda: slow.daemon.live() == 0, "the session has gone", 5.0)


@pytest.mark.fault(
    "E6.73",
    "HTTP without the key, with a bad one; a body too large; no JSON; a page of another origin",
    "401; 413; 400; refused",
)
def test_bad_key(served: dict[str, Served]):
    """Without the key, 401 in OpenAI's form; /health answers anybody."""
    verifier = served["verifier"]
    for key in ("sk-wrong", "none"):
        with pytest.raises(openai.AuthenticationError) as refused:
            verifier.client(key).models.list()
        assert refused.value.code == "invalid_api_key"
    assert plainly(f"{verifier.url}/health")[0] == 200
    assert plainly(f"{verifier.url}/stats")[0] == 401
    assert verifier.daemon.client.get("/stats")["role"] == "verifier"  # the socket needs none


@pytest.mark.fault("E6.73")
def test_a_web_page_is_refused(served: dict[str, Served]):
    """Without a key, requests that a page of somebody else's makes are refused."""
    for headers in ({"Origin": "https://evil.example"}, {"Host": "evil.example"}):
        assert plainly(f"{served['drafter'].url}/v1/models", **headers)[0] == 403


def test_many_at_once(server: Served):
    """Several clients, each gets its own text."""
    texts: dict[int, str] = {}

    def ask(number: int) -> None:
        answer = server.client().completions.create(model="any", prompt=f"{number}", max_tokens=50, temperature=0)
        texts[number] = answer.choices[0].text

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert texts == {number: sim_text(f"{number}", 50) for number in range(6)}


def test_chat_command(server: Served):
    """`specmesh chat` with what is piped in, through the template and without."""
    where = ("--socket", server.daemon.socket, "--temperature", 0, "--max-tokens", 20)
    done = command("chat", "--system", "Be brief.", *where, stdin="Hi")
    assert (done.code, done.out) == (0, sim_text(RENDERED, 20) + "\n")
    raw = command("chat", "--raw", *where, stdin="once")
    assert (raw.code, raw.out) == (0, sim_text("once", 20) + "\n")


def test_generate_stop(server: Served):
    """`specmesh generate --stop`."""
    whole = sim_text("once", 100)
    done = command(
        "generate", "once", "--max-tokens", 100, "--stop", whole[50:53], "--json", "--socket", server.daemon.socket
    )
    assert (done.json["text"], done.json["finish_reason"]) == (whole[: whole.index(whole[50:53])], "stop")


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (("--http", "0.0.0.0:1"), "--api-key-file"),
        (("--http", "nonsense"), "HOST:PORT"),
        (("--http", "127.0.0.1:{port}"), "is the port taken"),
        (("--http", "127.0.0.1:0", "--api-key-file", "/nonexistent/keys"), "cannot be read"),
    ],
)
def test_bad_ports(served: dict[str, Served], tmp_path: Path, args: tuple[str, ...], told: str):
    """A port that cannot be is told in a line, exit code 78."""
    taken = served["verifier"].url.rpartition(":")[2]
    words = [word.format(port=taken) for word in args]
    model = ("--engine", "sim", "--model", "step_ms=1")
    bind = ("--bind", f"tcp://127.0.0.1:{free_port()}")
    done = command("verifier", *model, *bind, "--socket", tmp_path / "s", *words)
    assert done.code == 78
    assert told in done.err
    assert len(done.err.strip().splitlines()) == 1


def test_the_answer_is_json_for_everybody(server: Served):
    """A request with curl's habits: no content type, a number for a text."""
    status, answer = plainly(f"{server.url}/v1/completions", b'{"prompt": 1}', Authorization=f"Bearer {server.key}")
    assert (status, json.loads(answer)["error"]["param"]) == (400, "prompt")


def test_more_than_there_are_sessions(mesh: Mesh):
    """Forty clients at either daemon wait for their turn without asking again; so do more than a verifier takes of one
    drafter at once."""
    ports = free_port(), free_port()
    verifier = mesh.verifier("step_ms=1,n_ctx=9000", "--http", f"127.0.0.1:{ports[0]}")
    drafter = mesh.drafter("", "--http", f"127.0.0.1:{ports[1]}")
    for daemon, port, count in ((verifier, ports[0], 40), (drafter, ports[1], 40), (drafter, ports[1], 200)):
        client = Served(daemon, f"http://127.0.0.1:{port}", "none").client()

        def ask(number: int, client: openai.OpenAI = client) -> bool:
            done = client.completions.create(model="any", prompt=f"Number {number}", max_tokens=30, temperature=0)
            return done.choices[0].text == sim_text(f"Number {number}", 30)

        with ThreadPoolExecutor(count) as clients:
            assert all(clients.map(ask, range(count)))
