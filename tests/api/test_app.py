"""The local API over a fake daemon, called as an ASGI application."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from specmesh.api.app import MAX_HTTP_BODY, create_app
from specmesh.core.chat import ChatMessage
from specmesh.core.constraint import Grammar, GrammarKind
from specmesh.core.penalties import FORBIDDEN, Penalties
from specmesh.core.sampling import SamplingParams
from specmesh.core.verifier_session import SessionParams
from specmesh.core.vocabulary import Vocabulary
from specmesh.errors import (
    Busy,
    ConfigError,
    DaemonUnreachable,
    EngineError,
    NoSuchModel,
    NoSuchText,
    PromptTooLong,
    RequestError,
    SpecmeshError,
    WentAway,
)
from specmesh.requests import (
    Cancel,
    ClientEvent,
    ClientOrder,
    Failed,
    Finished,
    LocalClient,
    Peer,
    Probe,
    Served,
    Started,
    Submit,
    Tokens,
)

LETTERS = Vocabulary(tuple(bytes([n]) for n in range(256)), frozenset({255}))
DONE = Finished("length", (104, 105), {"rounds": 2, "drafted": 5, "accepted": 3, "cached_tokens": 1})
EVENTS = (Started(7, 2), Tokens((65, 66), 1, (65, 90)), Tokens((67,), 0, ()), DONE)


class FakeDaemon:
    """A backend that answers every request with the same events, and notes its orders."""

    role, models = "verifier", ("fake-model", "other-model")

    def __init__(self, *events: ClientEvent, reason: SpecmeshError | None = None) -> None:
        self.events, self.reason = events, reason
        self.orders: list[ClientOrder] = []
        self.peers: tuple[Peer, ...] = ()
        self.cancelled = asyncio.Event()

    def not_ready(self) -> SpecmeshError | None:
        return self.reason

    def served(self, name: str) -> Served:
        if name not in ("", *self.models):
            raise NoSuchModel(name)
        return Served(name or "fake-model", LETTERS, f"target of {name}" if name else "")

    def stats(self) -> dict[str, object]:
        return {"role": self.role, "schema_version": 1}

    def submit(self, order: ClientOrder) -> None:
        self.orders.append(order)
        if isinstance(order, Probe):
            order.sent(self.peers)
            for peer in self.peers:
                order.answer(peer)(0.004)
            return
        if isinstance(order, Cancel):
            self.cancelled.set()
            return
        assert isinstance(order.client, LocalClient)
        for event in self.events:
            order.client.hear(event)


class Answer:
    """What came back, and a way to leave early."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.parts: list[bytes] = []
        self.gone = asyncio.Event()
        self.on_part: Callable[[], None] = lambda: None

    @property
    def body(self) -> bytes:
        return b"".join(self.parts)

    def json(self) -> dict[str, object]:
        value: dict[str, object] = json.loads(self.body)
        return value

    def events(self) -> list[str]:
        """The data of server-sent events."""
        *events, rest = self.body.decode().split("\n\n")
        assert rest == ""
        assert all(event.startswith("data: ") for event in events)
        return [event[6:] for event in events]

    async def send(self, message: dict[str, object]) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]  # type: ignore[assignment]
            self.headers = {k.decode(): v.decode() for k, v in message["headers"]}  # type: ignore[attr-defined]
        elif message["body"]:
            self.parts.append(message["body"])  # type: ignore[arg-type]
            self.on_part()


async def call(
    daemon: FakeDaemon,
    method: str,
    path: str,
    parts: list[bytes] | None = None,
    answer: Answer | None = None,
    accept: bytes = b"*/*",
) -> Answer:
    """One request through the application."""
    answer = answer or Answer()
    left = list(parts or [b""])

    async def receive() -> dict[str, object]:
        if left:
            return {"type": "http.request", "body": left.pop(0), "more_body": bool(left)}
        await answer.gone.wait()
        return {"type": "http.disconnect"}

    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(b"content-type", b"application/json"), (b"accept", accept)],
        "client": None,
        "server": None,
    }
    app: Callable[..., Awaitable[None]] = create_app(daemon)
    await asyncio.wait_for(app(scope, receive, answer.send), 20)
    return answer


def get(daemon: FakeDaemon, path: str) -> Answer:
    return asyncio.run(_made(daemon, "GET", path, None))


def post(daemon: FakeDaemon, **body: object) -> Answer:
    return asyncio.run(_made(daemon, "POST", "/v1/completions", [json.dumps({"prompt": "hi"} | body).encode()]))


async def _made(daemon: FakeDaemon, method: str, path: str, parts: list[bytes] | None) -> Answer:
    return await call(daemon, method, path, parts)


def test_health_while_loading_and_after():
    """/health: 503 with the reason while loading or without a verifier, 200 once ready."""
    loading = get(FakeDaemon(reason=Busy("loading its model (43%)")), "/health")
    assert loading.status == 503
    assert loading.json() == {"status": "unavailable", "role": "verifier", "reason": "loading its model (43%)"}
    ready = get(FakeDaemon(), "/health")
    assert (ready.status, ready.json()) == (200, {"status": "ok", "role": "verifier"})


def test_stats_and_models_are_the_backends():
    """/stats is the snapshot; /v1/models names the models, and nothing while none is known."""
    daemon = FakeDaemon()
    assert get(daemon, "/stats").json() == daemon.stats()
    assert [model["id"] for model in get(daemon, "/v1/models").json()["data"]] == list(daemon.models)  # type: ignore[attr-defined]
    daemon.models = ()
    assert get(daemon, "/v1/models").json() == {"object": "list", "data": []}


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        (b"*/*", "text/plain; version=0.0.4; charset=utf-8"),
        (
            b"application/openmetrics-text; version=1.0.0,text/plain;q=0.5",
            "application/openmetrics-text; version=1.0.0",
        ),
    ],
)
def test_metrics_come_in_the_format_asked_for(accept: bytes, content_type: str):
    """/metrics: Prometheus' text, or OpenMetrics where the client accepts it."""
    answer = asyncio.run(call(FakeDaemon(reason=Busy("loading")), "GET", "/metrics", accept=accept))
    assert answer.status == 200
    assert answer.headers["content-type"].startswith(content_type)
    assert "specmesh_engine_healthy 0.0" in answer.body.decode().splitlines()
    assert answer.body.endswith(b"# EOF\n") == content_type.startswith("application")


def test_completion():
    """A completion carries text, reason, usage, ids and the report."""
    answer = post(FakeDaemon(*EVENTS))
    body = answer.json()
    assert answer.status == 200
    assert body["choices"] == [{"index": 0, "text": "ABC", "logprobs": None, "finish_reason": "length"}]
    details = {"accepted_prediction_tokens": 3, "rejected_prediction_tokens": 2}
    cached = {"cached_tokens": 1}
    usage = {"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5, "completion_tokens_details": details}
    usage["prompt_tokens_details"] = cached
    assert body["usage"] == usage
    assert body["model"] == "fake-model"
    told = body["specmesh"]
    assert told["token_ids"] == [65, 66, 67]  # type: ignore[index]
    assert told["prompt_token_ids"] == [104, 105]  # type: ignore[index]
    assert told["report"] == DONE.report  # type: ignore[index]


def test_stream_joins_what_came_together():
    """Streamed without rounds: ids that came together are one chunk, drafts are left out, [DONE] ends it."""
    *events, done = post(FakeDaemon(*EVENTS), stream=True).events()
    chunks = [json.loads(event) for event in events]
    assert done == "[DONE]"
    assert [chunk["choices"][0]["text"] for chunk in chunks] == ["", "ABC", ""]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, None, "length"]
    assert chunks[0]["specmesh"] == {"session": 7, "prompt_tokens": 2}
    assert chunks[1]["specmesh"] == {"token_ids": [65, 66, 67], "accepted": 1}
    assert chunks[2]["usage"]["completion_tokens"] == 3


def test_stream_with_rounds():
    """Streamed with rounds: one chunk per round, with its drafts, their text and the pieces."""
    *events, _ = post(FakeDaemon(*EVENTS), stream=True, rounds=True).events()
    first, second = (json.loads(event)["specmesh"] for event in events[1:3])
    assert (first["drafts"], first["drafted_text"], first["accepted"]) == ([65, 90], "AZ", 1)
    assert (first["pieces"], first["accepted_text"]) == (["A", "B"], "A")
    assert (second["drafts"], second["drafted_text"], second["accepted"]) == ([], "", 0)
    assert (second["pieces"], second["accepted_text"]) == (["C"], "")


def test_accepted_text_is_part_of_the_text():
    """Where a character is split between an accepted draft and the verifier's token, it is the verifier's, whole."""
    euro = tuple("€".encode())
    events = (Started(1, 2), Tokens((65, *euro), 3, (65, *euro[:2], 9)), DONE)
    _, told, *_ = post(FakeDaemon(*events), stream=True, rounds=True).events()
    chunk = json.loads(told)
    assert (chunk["choices"][0]["text"], chunk["specmesh"]["accepted_text"]) == ("A€", "A")


@pytest.mark.parametrize("stream", [False, True])
def test_characters_split_over_rounds_arrive_whole(stream: bool):
    """A character of several bytes is never sent in parts; half a one at the end is U+FFFD."""
    euro = tuple("€".encode())
    events = (Started(1, 2), *(Tokens((byte,), 0, ()) for byte in (*euro, euro[0])), DONE)
    answer = post(FakeDaemon(*events), stream=stream, rounds=True)
    if stream:
        texts = [json.loads(event)["choices"][0]["text"] for event in answer.events()[:-1]]
        assert [text for text in texts if text] == ["€", "\ufffd"]
    else:
        assert answer.json()["choices"][0]["text"] == "€\ufffd"  # type: ignore[index]


SAMPLING = SamplingParams(0.5, 3, 0.9, 7, penalties=Penalties(1.5), logit_bias=((4, -1.0),))
PARAMS = SessionParams(SAMPLING, 40, 4, ("D",))
NAME = "cmpl-" + 32 * "a"


def test_resumable_stream_says_what_form_the_text_has():
    """Who asked by a name alone could not go on with it else."""
    params = replace(PARAMS, grammar=Grammar(GrammarKind.GBNF, 'root ::= "a"'))
    answer = post(FakeDaemon(Started(7, 2, (104, 105), params), DONE), stream=True, resumable=True)
    assert json.loads(answer.events()[0])["specmesh"]["request"]["grammar"] == 'root ::= "a"'


def test_resumable_stream_says_what_is_needed_to_go_on():
    """The prompt's ids and the fields that decide how the text goes on; and its id cannot be guessed."""
    answers = [post(FakeDaemon(Started(7, 2, (104, 105), PARAMS), DONE), stream=True, resumable=True) for _ in range(2)]
    first, again = (json.loads(answer.events()[0]) for answer in answers)
    assert first["specmesh"] == {
        "session": 7,
        "prompt_tokens": 2,
        "prompt_token_ids": [104, 105],
        "request": {
            "max_tokens": 40,
            "temperature": 0.5,
            "top_k": 3,
            "top_p": 0.9,
            "seed": 7,
            "min_p": 0.0,
            "typical_p": 1.0,
            "repeat_penalty": 1.5,
            "repeat_last_n": 64,
            "frequency_penalty": 0.0,
            "presence_penalty": 0.0,
            "logit_bias": [[4, -1.0]],
            "stop": ["D"],
            "strategy": "deterministic",
            "threshold": 0.3,
            "cache_prompt": True,
        },
    }
    assert len(first["id"]) == len(NAME)
    assert first["id"] != again["id"]
    plain = json.loads(post(FakeDaemon(Started(7, 2, (104, 105), PARAMS), DONE), stream=True).events()[0])
    assert plain["specmesh"] == {"session": 7, "prompt_tokens": 2}


@pytest.mark.parametrize(("asked", "biases"), [({}, ()), ({"ignore_eos": True}, ((255, FORBIDDEN),))])
def test_an_end_that_is_ignored(asked: dict[str, object], biases: tuple[object, ...]):
    """The end ids are forbidden where that was asked for; so whoever goes on with the text is told."""
    daemon = FakeDaemon(*EVENTS)
    post(daemon, **asked)
    [order] = daemon.orders
    assert isinstance(order, Submit)
    assert order.request.params.sampling.logit_bias == biases


@pytest.mark.parametrize("stream", [False, True])
def test_resumed_text_goes_on_where_it_was(stream: bool):
    """What was kept back is made again of the ids that are known: half a character, half a stop string; usage counts
    all but the ids of the stop string, and the id stays."""
    euro = tuple("€".encode())
    daemon = FakeDaemon(Started(1, 1, (9,), PARAMS), Tokens((euro[2], 67, 68, 69), 0, None), DONE)
    resume = {"id": NAME, "model": "fake-model", "prompt_token_ids": [9], "token_ids": [65, *euro[:2]]}
    answer = post(daemon, stream=stream, resume=resume, stop=["D"])
    bodies = [json.loads(event) for event in answer.events()[:-1]] if stream else [answer.json()]
    assert "".join(body["choices"][0]["text"] for body in bodies) == "€C"
    assert {body["id"] for body in bodies} == {NAME}
    assert bodies[-1]["usage"]["completion_tokens"] == 5
    [order] = daemon.orders
    assert isinstance(order, Submit)
    assert (order.request.id, order.request.generated, order.request.known) == (NAME, (65, *euro[:2]), 3)


def test_text_asked_for_by_name_ends_with_its_own_stop_string():
    """Which whoever asks need not know."""
    daemon = FakeDaemon(Started(1, 1, (9,), PARAMS), Tokens((65, 66, 67, 68), 0, None), DONE)
    answer = post(daemon, resume={"id": NAME})
    assert answer.json()["choices"][0]["text"] == "ABC"  # type: ignore[index]


def test_text_of_another_model_is_not_gone_on_with():
    """Its ids would mean something else."""
    daemon = FakeDaemon(*EVENTS)
    answer = post(daemon, resume={"id": NAME, "model": "other", "prompt_token_ids": [9], "token_ids": []})
    assert (answer.status, daemon.orders) == (404, [])


def test_the_model_that_is_named():
    """The request is for what serves it, and the answer says which; without a name the one that served before goes on
    with a text; a model that nobody has is not answered by another."""
    daemon = FakeDaemon(*EVENTS)
    assert post(daemon, model="other-model").json()["model"] == "other-model"
    resume = {"id": NAME, "model": "other-model", "prompt_token_ids": [9], "token_ids": []}
    assert post(daemon, resume=resume).json()["model"] == "other-model"
    assert post(daemon).json()["model"] == "fake-model"
    asked = [order.request.target for order in daemon.orders if isinstance(order, Submit)]
    assert asked == ["target of other-model"] * 2 + [""]
    refused = post(daemon, model="gpt-4")
    assert (refused.status, len(daemon.orders)) == (404, 3)
    assert "/v1/models" in refused.json()["error"]["message"]  # type: ignore[index]
    assert post(daemon, model="other-model", resume=resume | {"model": "fake-model"}).status == 400


REFUSALS = [
    (NoSuchText(), 404, "invalid_request_error"),
    (NoSuchModel("gpt-4"), 404, "invalid_request_error"),
    (WentAway("stopping"), 502, "server_error"),
    (RequestError("bad"), 400, "invalid_request_error"),
    (PromptTooLong(9, 5), 400, "invalid_request_error"),
    (Busy("full"), 503, "server_error"),
    (DaemonUnreachable("no verifier"), 502, "server_error"),
    (EngineError("broke"), 500, "server_error"),
    (ConfigError("odd"), 500, "server_error"),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("error", "status", "kind"), REFUSALS, ids=lambda value: type(value).__name__)
def test_refusal_is_a_status_and_openais_error(error: SpecmeshError, status: int, kind: str, stream: bool):
    """A refusal has the status of its class and OpenAI's error object, streamed or not, with the class as its code."""
    answer = post(FakeDaemon(Failed(error)), stream=stream)
    told = answer.json()["error"]
    assert answer.status == status
    assert told["message"] == str(error)  # type: ignore[index]
    assert (told["type"], told["code"]) == (kind, type(error).__name__)  # type: ignore[index]
    assert told["param"] == {PromptTooLong: "prompt", NoSuchText: "resume", NoSuchModel: "model"}.get(type(error))  # type: ignore[index]
    assert (answer.headers.get("retry-after") == "1") == (status == 503)


@pytest.mark.parametrize("stream", [False, True])
def test_not_ready_is_refused_before_anything_is_submitted(stream: bool):
    """A daemon that is not ready answers with its reason, and its loop hears nothing."""
    daemon = FakeDaemon(*EVENTS, reason=Busy("loading"))
    assert post(daemon, stream=stream).status == 503
    assert daemon.orders == []


def test_error_in_mid_stream_is_an_event():
    """A session that breaks after text was sent ends the stream with an error event and no [DONE]."""
    *_, last = post(FakeDaemon(*EVENTS[:2], Failed(EngineError("broke"))), stream=True).events()
    assert json.loads(last)["error"]["message"] == "broke"


def test_error_in_mid_completion_is_a_status():
    """The same without a stream is a status."""
    assert post(FakeDaemon(*EVENTS[:2], Failed(EngineError("broke")))).status == 500


@pytest.mark.parametrize("raw", [b"", b"{", b"\xff", b"nul", b"[" * 100_000, b'{"prompt": "x", "\\ud800": 1}'])
def test_body_that_is_no_json(raw: bytes):
    """What is no JSON is 400."""
    answer = asyncio.run(_made(FakeDaemon(), "POST", "/v1/completions", [raw]))
    assert answer.status == 400
    assert "not JSON" in answer.json()["error"]["message"]  # type: ignore[index]


def test_body_in_parts_and_beyond_the_limit():
    """A body may come in parts; beyond the limit it is refused before the rest is read."""
    whole = json.dumps({"prompt": "hi"}).encode()
    parts = [whole[:3], b"", whole[3:]]
    assert asyncio.run(_made(FakeDaemon(*EVENTS), "POST", "/v1/completions", parts)).status == 200
    endless = [bytes(MAX_HTTP_BODY), b"x", b"never read"]
    answer = asyncio.run(_made(FakeDaemon(), "POST", "/v1/completions", endless))
    assert answer.status == 413
    assert "exceeds" in answer.json()["error"]["message"]  # type: ignore[index]


def test_client_that_leaves_a_stream_cancels():
    """A client that disconnects in mid-stream cancels its session."""

    async def leave() -> FakeDaemon:
        daemon, answer = FakeDaemon(*EVENTS[:2]), Answer()
        answer.on_part = answer.gone.set
        raw = json.dumps({"prompt": "hi", "stream": True}).encode()
        await call(daemon, "POST", "/v1/completions", [raw], answer)
        await asyncio.wait_for(daemon.cancelled.wait(), 20)
        return daemon

    submit, cancel = asyncio.run(leave()).orders
    assert isinstance(cancel, Cancel)
    assert cancel.client is submit.client


def test_client_that_leaves_before_its_stream_begins_cancels():
    """A client that disconnects while its request waits for a session takes it out of the queue."""

    async def leave() -> FakeDaemon:
        daemon, answer = FakeDaemon(), Answer()
        task = asyncio.ensure_future(
            call(daemon, "POST", "/v1/completions", [b'{"prompt": "hi", "stream": true}'], answer)
        )
        while not daemon.orders:
            await asyncio.sleep(0)
        assert not daemon.cancelled.is_set()
        answer.gone.set()
        await asyncio.wait_for(daemon.cancelled.wait(), 20)
        await task
        assert answer.status == 499
        return daemon

    submit, cancel = asyncio.run(leave()).orders
    assert isinstance(submit, Submit)
    assert cancel == Cancel(submit.client)


def test_a_server_that_ends_before_a_stream_begins():
    """A handler that is cancelled while its request waits for a session leaves nothing behind, and is no defect."""

    async def end() -> FakeDaemon:
        daemon, answer = FakeDaemon(), Answer()
        task = asyncio.ensure_future(
            call(daemon, "POST", "/v1/completions", [b'{"prompt": "hi", "stream": true}'], answer)
        )
        while not daemon.orders:
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert daemon.cancelled.is_set()
        assert answer.status == 0
        return daemon

    assert len(asyncio.run(end()).orders) == 2


def test_client_that_leaves_a_completion_cancels():
    """A client that disconnects while its whole text is being made cancels its session."""

    async def leave() -> FakeDaemon:
        daemon, answer = FakeDaemon(*EVENTS[:2]), Answer()
        answer.gone.set()
        await call(daemon, "POST", "/v1/completions", [b'{"prompt": "hi"}'], answer)
        await asyncio.wait_for(daemon.cancelled.wait(), 20)
        return daemon

    assert len(asyncio.run(leave()).orders) == 2


def test_finished_session_is_not_cancelled():
    """A session that ended is not cancelled afterwards."""
    for stream in (False, True):
        daemon = FakeDaemon(*EVENTS)
        post(daemon, stream=stream)
        assert len(daemon.orders) == 1


def chat(daemon: FakeDaemon, **body: object) -> Answer:
    raw = json.dumps({"messages": [{"role": "user", "content": "hi"}]} | body).encode()
    return asyncio.run(_made(daemon, "POST", "/v1/chat/completions", [raw]))


def test_chat():
    """A chat's answer is the assistant's message; the daemon gets the messages."""
    daemon = FakeDaemon(*EVENTS)
    body = chat(daemon).json()
    assert body["object"] == "chat.completion"
    assert str(body["id"]).startswith("chatcmpl-")
    message = {"role": "assistant", "content": "ABC", "refusal": None}
    assert body["choices"] == [{"index": 0, "message": message, "logprobs": None, "finish_reason": "length"}]
    [order] = daemon.orders
    assert isinstance(order, Submit)
    assert order.request.messages == (ChatMessage("user", "hi"),)


def test_streamed_chat():
    """Chunks: who speaks, the text, the reason; with include_usage the usage in a chunk of its own."""
    *events, done = chat(FakeDaemon(*EVENTS), stream=True, stream_options={"include_usage": True}).events()
    *chunks, usage = (json.loads(event) for event in events)
    assert done == "[DONE]"
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas == [{"role": "assistant", "content": ""}, {"content": "ABC"}, {}]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, None, "length"]
    assert (usage["choices"], usage["usage"]["completion_tokens"]) == ([], 3)
    assert "usage" not in chunks[-1]


@pytest.mark.parametrize("stream", [False, True])
def test_nothing_of_a_stop_string_is_shown(stream: bool):
    """The text ends before it; what only looked like its beginning comes later."""
    events = (Started(1, 2), Tokens((65, 66), 0, None), Tokens((65, 66, 67), 0, None), Finished("stop", (1,), {}))
    answer = post(FakeDaemon(*events), stream=stream, stop=["ABC"])
    if stream:
        text = "".join(json.loads(event)["choices"][0]["text"] for event in answer.events()[:-1])
    else:
        text = answer.json()["choices"][0]["text"]  # type: ignore[index]
    assert text == "AB"


@pytest.mark.parametrize(
    ("path", "status"), [("/v1/nothing", 404), ("/v1/models/other", 404), ("/v1/completions", 405)]
)
def test_what_is_not_there_is_openais_error(path: str, status: int):
    """Unknown resources and methods."""
    answer = get(FakeDaemon(), path)
    assert answer.status == status
    assert answer.json()["error"]["type"] == "invalid_request_error"  # type: ignore[index]


def test_one_model():
    """/v1/models/NAME."""
    assert get(FakeDaemon(), "/v1/models/fake-model").json()["id"] == "fake-model"


def ping(daemon: FakeDaemon, **body: object) -> Answer:
    return asyncio.run(_made(daemon, "POST", "/ping", [json.dumps(body).encode()]))


def test_ping():
    """/ping sends as many probes as asked for, and streams an event per answer."""
    daemon = FakeDaemon()
    daemon.peers = (Peer("mac:1", "tcp://192.0.2.7"), Peer("mac:2", "tcp://192.0.2.8"))
    *events, done = ping(daemon, count=2, interval_s=0.01).events()
    assert done == "[DONE]"
    assert [json.loads(event) for event in events] == [
        {"number": number, "peer": peer.name, "address": peer.address, "time_ms": 4.0}
        for number in (1, 2)
        for peer in daemon.peers
    ]
    assert [type(order) for order in daemon.orders] == [Probe, Probe]


def test_ping_refused():
    """A bad body is 400, a daemon without a peer 502, one that loads 503."""
    assert ping(FakeDaemon(), count=0).status == 400
    assert ping(FakeDaemon(reason=Busy("loading"))).status == 503
    alone = ping(FakeDaemon())
    assert alone.status == 502
    assert "no drafter is attached" in alone.json()["error"]["message"]  # type: ignore[index]
