"""The local API over a fake daemon, called as an ASGI application; llama-server's resources: ids of a text, text of ids
and of a chat, what is served, and what is not."""

import asyncio
import gzip
import json
import tracemalloc
import zlib
from dataclasses import asdict, replace
from typing import Any

import pytest
from asgi_calls import EVENTS, Answer, FakeDaemon, ask, call, get, post
from harness import PATIENCE, snapshots
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from specmesh import errors
from specmesh.api.app import create_app
from specmesh.api.backend import Cancel, ClientOrder, ModelInfo, Peer, Submit
from specmesh.api.json_text import FEW_VALUES
from specmesh.api.kept_responses import KeptResponses
from specmesh.api.request_body import MAX_HTTP_BODY
from specmesh.core.requests import Failed
from specmesh.core.text.chat import Tokenizer
from specmesh.core.vocabulary.vocabulary import Vocabulary
from specmesh.engines.sim import SimSettings, SimVerifier


def test_health_while_loading_and_after():
    loading = get(FakeDaemon(reason=errors.Busy("loading its model (43%)")), "/health")
    assert loading.status == 503
    assert loading.json() == {
        "status": "unavailable",
        "role": "verifier",
        "reason": "loading its model (43%)",
    }
    ready = get(FakeDaemon(), "/health")
    assert (ready.status, ready.json()) == (200, {"status": "ok", "role": "verifier"})


def test_stats_and_models_are_the_backends():
    daemon = FakeDaemon()
    assert get(daemon, "/stats").json() == asdict(asyncio.run(daemon.stats()))
    assert [model["id"] for model in get(daemon, "/v1/models").json()["data"]] == list(
        daemon.models
    )
    daemon.models = ()
    for reason in (None, errors.DaemonUnreachable("no verifier answers")):
        daemon.reason = reason
        for path in ("/v1/models", "/v1/models/fake-model"):
            answer = get(daemon, path)
            assert (answer.status, answer.headers["retry-after"]) == (503, "1")
            assert str(reason or "no model is known yet") in answer.json()["error"]["message"]


@pytest.mark.parametrize("path", ["/v1/models/fake-model", "/models/fake-model"])
@pytest.mark.parametrize("known", [True, False])
def test_the_context_of_a_model(path: str, known: bool):
    """By the names that clients read; null while a drafter does not know it yet."""

    class Unknown(FakeDaemon):
        def served(self, name: str) -> ModelInfo:
            raise errors.Starting("the vocabulary is still being fetched")

    told = get(FakeDaemon() if known else Unknown(), path).json()
    length, size = (4000, 256) if known else (None, None)
    assert (told["context_length"], told["max_model_len"]) == (length, length)
    assert told["meta"] == {"n_ctx": length, "n_vocab": size}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/completions", {"prompt": "hi"}),
        ("/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
        ("/responses", {"input": "hi"}),
    ],
)
def test_a_base_url_without_its_version(path: str, body: object):
    """As llama-server's; `/models` and `/embeddings` too."""
    kinds = [ask(FakeDaemon(*EVENTS), base + path, body).json()["object"] for base in ("/v1", "")]
    assert kinds[0] == kinds[1]
    assert get(FakeDaemon(), "/models").json() == get(FakeDaemon(), "/v1/models").json()
    assert ask(FakeDaemon(), "/embeddings", {"input": "hi"}).status == 501


def test_a_kept_response_without_the_version():
    kept = KeptResponses(1)
    made = ask(FakeDaemon(*EVENTS), "/responses", {"input": "hi"}, kept=kept).json()
    path = f"/responses/{made['id']}"
    assert asyncio.run(call(FakeDaemon(), "GET", path, kept=kept)).json() == made
    assert asyncio.run(call(FakeDaemon(), "DELETE", path, kept=kept)).json()["deleted"]


TOTALS = {
    "generated_tokens": "generation_tokens",
    "prompt_tokens": "prompt_tokens",
    "rounds_with_drafts": "spec_decode_num_drafts",
    "drafted": "spec_decode_num_draft_tokens",
    "accepted": "spec_decode_num_accepted_tokens",
}
DRAFTERS = {"draft_tokens": "drafter_drafted_tokens"}
DRAFTERS |= {name: f"drafter_{name}_tokens" for name in ("accepted", "committed")}
"""Totals of /stats, and what they are called in /metrics."""


@pytest.mark.parametrize(
    ("snapshot", "names", "peers"),
    [(snapshots.verifier(), TOTALS, "drafters"), (snapshots.drafter(), DRAFTERS, "verifiers")],
)
def test_metrics_agree_with_stats(snapshot: Any, names: dict[str, str], peers: str):
    numbers = {name: number for number, name in enumerate(names, 7)}
    daemon, openmetrics = FakeDaemon(), "application/openmetrics-text; version=1.0.0"
    daemon.snapshot = replace(snapshot, totals=replace(snapshot.totals, **numbers))
    answer = asyncio.run(
        call(daemon, "GET", "/metrics", headers=[(b"accept", openmetrics.encode())])
    )
    assert answer.headers["content-type"].startswith(openmetrics)
    families = text_string_to_metric_families(answer.body.decode())
    told = {sample.name: sample.value for family in families for sample in family.samples}
    assert {name: told[f"specmesh_{metric}_total"] for name, metric in names.items()} == numbers
    assert numbers.items() <= get(daemon, "/stats").json()["totals"].items()
    assert (told["specmesh_engine_healthy"], told[f"specmesh_num_{peers}"]) == (
        1,
        peers == "drafters",
    )
    assert told.get("specmesh_draft_seconds_count") == getattr(
        snapshot.totals, "draft_tokens", None
    )


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        ("application/openmetrics-text;version=1.0.0", "application/openmetrics-text"),
        ("application/openmetrics-text;q=0, text/plain", "text/plain"),
        ("application/openmetrics-text;q=0.1, text/plain;q=0.9", "text/plain"),
        ("text/plain;q=0.4, application/openmetrics-text;version=1.0.0;q=0.5", "application/op"),
        ("*/*", "text/plain"),
        ("text/plain;q=x", "text/plain"),
    ],
)
def test_metrics_come_in_the_format_that_is_preferred(accept, kind):
    asked = call(FakeDaemon(), "GET", "/metrics", headers=[(b"accept", accept.encode())])
    answer = asyncio.run(asked)
    assert answer.headers["content-type"].startswith(kind)


REFUSALS = [
    (errors.NoSuchText(), 404, "text_not_found"),
    (errors.NoSuchModel.of("gpt-4"), 404, "model_not_found"),
    (errors.WentAway("stopping"), 503, "server_went_away"),
    (errors.RequestError("bad"), 400, None),
    (errors.PromptTooLong.of(9, 5), 400, "context_length_exceeded"),
    (errors.Busy("full"), 503, "server_busy"),
    (errors.Starting("loading"), 503, "server_starting"),
    (errors.DaemonUnreachable("no verifier"), 502, "verifier_unreachable"),
    (errors.EngineError("broke"), 500, "engine_failed"),
    (errors.ConfigError("odd"), 500, None),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("error", "status", "code"), REFUSALS, ids=lambda value: type(value).__name__
)
def test_refusal_is_a_status_and_openais_error(
    error: errors.SpecmeshError, status: int, code: str | None, stream: bool
):
    answer = post(FakeDaemon(Failed(error)), stream=stream)
    told = answer.json()["error"]
    assert answer.status == status
    assert (told["message"], told["param"]) == (str(error), getattr(error, "param", None))
    assert (told["type"], told["code"]) == (
        "invalid_request_error" if status < 500 else "server_error",
        code,
    )
    assert told["specmesh"] == {"error": type(error).__name__, "exit_code": error.exit_code}
    assert (answer.headers.get("retry-after") == "1") == (status == 503)


@pytest.mark.parametrize("stream", [False, True])
def test_not_ready_is_refused_before_anything_is_submitted(stream: bool):
    daemon = FakeDaemon(*EVENTS, reason=errors.Busy("loading"))
    assert post(daemon, stream=stream).status == 503
    assert daemon.orders == []


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        *((raw, "not JSON") for raw in (b"", b"{", b"\xff", b"nul")),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"prompt": ' + b"[" * 5_000 + b"]" * 5_000 + b"}", "nested too deeply"),
        (b'{"prompt": "x", "\\ud800": 1}', "half a surrogate pair"),
        (b'{"prompt": "x\\udfff"}', "half a surrogate pair"),
        (b'{"prompt": "x\xed\xa0\x80"}', "not JSON"),
        ('{"prompt": "x\\udfff"}'.encode("utf-16"), "not JSON"),
    ],
)
@pytest.mark.fault("E6.73")
def test_body_that_is_no_json(raw: bytes, said: str):
    answer = asyncio.run(call(FakeDaemon(), "POST", "/v1/completions", [raw]))
    assert answer.status == 400
    assert said in answer.json()["error"]["message"]


@pytest.mark.parametrize("number", [b"NaN", b"Infinity", b"-Infinity", b"1, NaN"])
@pytest.mark.parametrize("size", [0, FEW_VALUES])
def test_numbers_that_json_lacks_are_refused(number: bytes, size: int):
    """Python reads them, and they would be in answers that no client reads."""
    raw = b'{"prompt": "x", "u": [%s%s]}' % (b"1, " * size, number)
    answer = asyncio.run(call(FakeDaemon(*EVENTS), "POST", "/v1/completions", [raw]))
    assert answer.json()["error"]["message"] == "the request body is not JSON"


def test_a_number_beyond_all_doubles_is_not_repeated():
    raw = b'{"input": "x", "metadata": {"a": 1e400}}'
    answer = asyncio.run(call(FakeDaemon(*EVENTS), "POST", "/v1/responses", [raw]))
    assert "a number that no double holds" in answer.json()["error"]["message"]


def test_items_are_answered_at_every_depth():
    for depth in range(200, 1000, 25):
        item = b'{"type": "of_tomorrow", "a": ' + b"[" * depth + b"]" * depth + b"}"
        raw = b'{"input": [%s, {"role": "user", "content": "x"}]}' % item
        answer = asyncio.run(call(FakeDaemon(*EVENTS), "POST", "/v1/responses", [raw]))
        assert answer.status == 200 or "nested too deeply" in answer.json()["error"]["message"]


def test_every_depth_has_an_answer():
    """JSON is read a little deeper than it is written; that is the client's trouble, too."""
    for depth in range(800, 1000):
        schema = b'{"a":' * depth + b"1" + b"}" * depth
        asked = {
            "completions": b'"prompt": "x", "json_schema": ',
            "responses": b'"input": "x", "metadata": ',
        }
        for name, said in asked.items():
            answer = asyncio.run(
                call(FakeDaemon(*EVENTS), "POST", f"/v1/{name}", [b"{" + said + schema + b"}"])
            )
            assert answer.status == 200 or "nested too deeply" in answer.json()["error"]["message"]


@pytest.mark.fault("E6.73")
def test_body_in_parts_and_beyond_the_limit():
    whole = json.dumps({"prompt": "hi"}).encode()
    parts = [whole[:3], b"", whole[3:]]
    assert asyncio.run(call(FakeDaemon(*EVENTS), "POST", "/v1/completions", parts)).status == 200
    endless = [bytes(MAX_HTTP_BODY), b"x", b"never read"]
    answer = asyncio.run(call(FakeDaemon(), "POST", "/v1/completions", endless))
    assert answer.status == 413
    assert "exceeds" in answer.json()["error"]["message"]


BODY = json.dumps({"prompt": "hi"}).encode()
ZLIB, GZIP = zlib.compress(BODY), gzip.compress(BODY)


def encoded(parts: list[bytes], *encodings: str) -> Answer:
    """What is answered to a body with these Content-Encodings."""
    headers = [(b"content-encoding", one.encode()) for one in encodings]
    return asyncio.run(call(FakeDaemon(*EVENTS), "POST", "/v1/completions", parts, headers=headers))


@pytest.mark.parametrize(
    ("encoding", "parts"),
    [
        ("gzip", [GZIP]),
        ("GZip", [GZIP]),
        ("x-gzip", [GZIP]),
        ("deflate", [ZLIB]),
        ("gzip", [bytes([one]) for one in GZIP]),
        ("gzip", [GZIP[:10], b"", GZIP[10:]]),
        ("identity", [BODY]),
        ("", [BODY]),
    ],
)
def test_a_compressed_body(encoding: str, parts: list[bytes]):
    assert encoded(parts, encoding).status == 200


@pytest.mark.parametrize(
    "parts",
    [
        [b""],
        [BODY],
        [GZIP[:-1]],
        [GZIP[:5]],
        [GZIP[:-8] + bytes(8)],
        [GZIP + b"x"],
        [GZIP, b"x"],
        [GZIP + GZIP],
        [GZIP, *([bytes(MAX_HTTP_BODY)] * 9)],
        [GZIP[:20] + b"\xff" + GZIP[21:]],
    ],
    ids=lambda parts: f"{len(parts)} of {len(parts[0])}",
)
@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_a_damaged_one(parts: list[bytes], encoding: str):
    answer = encoded(parts, encoding)
    assert answer.status == 400
    assert encoding in answer.json()["error"]["message"]


@pytest.mark.parametrize(("size", "status"), [(MAX_HTTP_BODY, 200), (MAX_HTTP_BODY + 1, 413)])
def test_a_compressed_body_is_as_long_as_what_it_holds(size: int, status: int):
    assert encoded([gzip.compress(BODY.ljust(size))], "gzip").status == status


def test_a_bomb_is_not_inflated():
    """Of 64 MiB no more than a body may have."""
    bomb = gzip.compress(bytes(2**26))
    tracemalloc.start()
    try:
        status = encoded([bomb], "gzip").status
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert status == 413
    assert most < 5 * MAX_HTTP_BODY


def test_a_body_that_holds_nothing_ends():
    head = zlib.compressobj(wbits=31).flush(zlib.Z_FULL_FLUSH)
    empty = b"\x00\x00\x00\xff\xff" * 100_000  # blocks of no bytes
    assert encoded([head, *([empty] * 9)], "gzip").status == 413


@pytest.mark.parametrize(
    "encodings", [("br",), ("zstd",), ("compress",), ("gzip", "gzip"), ("gzip, br",)]
)
def test_other_encodings_are_refused_by_name(encodings: tuple[str, ...]):
    answer = encoded([GZIP], *encodings)
    assert answer.status == 415
    assert ", ".join(encodings) in answer.json()["error"]["message"]
    assert answer.headers["accept-encoding"] == "gzip, deflate"


@pytest.mark.parametrize(("stream", "at"), [(True, "part"), (True, "wait"), (False, "once")])
def test_client_that_leaves_cancels(stream: bool, at: str):
    daemon = FakeDaemon(*(EVENTS[:2] if at != "wait" else ()))

    async def leave() -> Answer:
        answer = Answer()
        if at == "once":
            answer.gone.set()
        elif at == "part":
            answer.on_part = answer.gone.set
        raw = json.dumps({"prompt": "hi", "stream": stream}).encode()
        task = asyncio.ensure_future(call(daemon, "POST", "/v1/completions", [raw], answer))
        if at == "wait":
            while not daemon.orders:
                await asyncio.sleep(0)
            assert not daemon.cancelled.is_set()
            answer.gone.set()
        await task
        await asyncio.wait_for(daemon.cancelled.wait(), PATIENCE)
        return answer

    answer = asyncio.run(leave())
    submit, cancel = daemon.orders
    assert isinstance(submit, Submit)
    assert cancel == Cancel(submit.client)
    assert answer.status == (200 if at == "part" else 0)


NEAR, FAR = Peer("near:1", "tcp://192.0.2.1"), Peer("far:2", "tcp://192.0.2.2")


@pytest.mark.parametrize("peers", [(NEAR, FAR), (FAR,), ()])
def test_each_peer_has_a_time(peers: tuple[Peer, ...]):
    """A PING without an answer is lost once its time is up; where there are no peers, that is said."""

    class Pinged(FakeDaemon):
        def submit(self, order: ClientOrder) -> None:
            order.sent(peers)
            if FAR in peers:
                order.answered(FAR, 0.1)

    app = create_app(Pinged(), KeptResponses(), ping_timeout=0.05)
    answer = asyncio.run(call(Pinged(), "POST", "/ping", app=app))
    if peers:
        told = [
            {"peer": one.name, "address": one.address, "time_ms": 100.0 if one is FAR else None}
            for one in peers
        ]
        assert answer.json() == {"peers": told}
    else:
        assert (answer.status, "no drafter is attached" in answer.json()["error"]["message"]) == (
            502,
            True,
        )


CHAT = {"messages": [{"role": "user", "content": "Hi"}]}


class Target(SimVerifier):
    """It begins texts with a token of its own."""

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        return [1] * special + super().encode(text)


class Verifier(FakeDaemon):
    tokenizer: Tokenizer = Target(SimSettings(n_vocab=300))
    vocabulary: Vocabulary = tokenizer.vocabulary


class Drafter(FakeDaemon):
    @property
    def tokenizer(self) -> Tokenizer:
        raise errors.NotOffered("ask the verifier")


@pytest.mark.parametrize(
    ("body", "tokens"),
    [
        ({"content": "hi", "add_special": True}, [1, 104, 105]),
        ({"content": ["hi", 299, "é"], "add_special": True}, [1, 104, 105, 299, 195, 169]),
        (
            {"content": "é", "with_pieces": True},
            [{"id": 195, "piece": [195]}, {"id": 169, "piece": [169]}],
        ),
        (
            {"content": ["h", 299], "with_pieces": True},
            [{"id": 104, "piece": "h"}, {"id": 299, "piece": "<299>"}],
        ),
        ({}, []),
    ],
)
def test_tokenize(body: object, tokens: list[object]):
    assert ask(Verifier(), "/tokenize", body).json() == {"tokens": tokens}


@pytest.mark.parametrize(
    ("asked", "tokens"),
    [
        ({}, [1, 104, 105]),
        ({"add_special_tokens": False}, [104, 105]),
        ({"add_special_tokens": False, "return_token_strs": True}, [104, 105]),
    ],
)
def test_tokenize_as_vllm_does(asked: dict[str, object], tokens: list[int]):
    written = ["h", "i"] if "return_token_strs" in asked else None
    assert ask(Verifier(), "/tokenize", {"prompt": "hi"} | asked).json() == {
        "count": len(tokens),
        "max_model_len": 4000,
        "tokens": tokens,
        "token_strs": written,
    }


def test_tokenizer_info():
    """What lm-eval's remote tokenizer begins with; an empty text would be no token."""
    daemon = Verifier()
    daemon.tokenizer = Target(SimSettings(n_vocab=300))
    daemon.tokenizer.texts = {
        "chat_template": "{{ messages }}",
        "bos_token": "",
        "eos_token": "</s>",
    }
    assert get(daemon, "/tokenizer_info").json() == {
        "bos_token": None,
        "eos_token": "</s>",
        "pad_token": None,
        "chat_template": "{{ messages }}",
        "model_max_length": 4000,
    }


@pytest.mark.parametrize(
    ("tokens", "text"), [([104, 105, 299], "hi<299>"), ([195, 169, 195], "é\ufffd"), (None, "")]
)
@pytest.mark.parametrize("daemon", [Verifier, Drafter])
def test_detokenize(daemon: type[FakeDaemon], tokens: object, text: str):
    """At a drafter too, which has the verifier's vocabulary."""
    made = daemon()
    made.vocabulary = Verifier.vocabulary
    assert ask(made, "/detokenize", {"tokens": tokens}).json() == {"content": text, "prompt": text}


def test_apply_template():
    """What the same chat would be answered after."""
    assert ask(Verifier(), "/apply-template", CHAT).json() == {"prompt": "user: Hi\nassistant: "}
    begun = {"messages": [*CHAT["messages"], {"role": "assistant", "content": "Well"}]}
    assert ask(Verifier(), "/apply-template", begun).json() == {
        "prompt": "user: Hi\nassistant: Well"
    }


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/tokenize", {"content": ["a", -1]}, "content"),
        ("/tokenize", {"content": [300], "with_pieces": True}, "content"),
        ("/tokenize", {"content": "a", "parse_special": False}, "parse_special"),
        ("/tokenize", {"prompt": ["a"]}, "prompt"),
        ("/tokenize", {"prompt": "a", "content": "a"}, "prompt"),
        ("/tokenize", {"prompt": "a", "add_special_tokens": 1}, "add_special_tokens"),
        ("/detokenize", {"tokens": [300]}, "tokens"),
        ("/apply-template", {"messages": []}, "messages"),
    ],
)
def test_refusals_name_the_field(path: str, body: object, field: str):
    answer = ask(Verifier(), path, body)
    assert (answer.status, answer.json()["error"]["param"]) == (400, field)


def test_what_is_not_offered():
    assert get(Drafter(), "/tokenizer_info").status == 501
    for daemon, path in (
        (Drafter(), "/tokenize"),
        (Drafter(), "/apply-template"),
        (Verifier(), "/v1/embeddings"),
    ):
        answer = ask(daemon, path, CHAT)
        assert (answer.status, answer.json()["error"]["code"]) == (501, "not_offered")


def test_props():
    """llama-server's fields; what is not known is null."""
    told: Any = get(Verifier(), "/props").json()
    assert (told["model_path"], told["total_slots"], told["chat_template"]) == (
        "fake-model",
        None,
        None,
    )
    assert told["default_generation_settings"] == {"n_ctx": 4000}
    assert told["build_info"].startswith("specmesh-")


@pytest.mark.parametrize(
    ("template", "ignored"),
    [
        ("{{ enable_thinking }}{{ add_generation_prompt }}", "reasoning_effort, effort"),
        ("{{ reasoning_effort }}", "effort, enable_thinking, add_generation_prompt"),
        ("", None),  # not known here: the verifier's
    ],
)
def test_variables_that_the_template_does_not_name(template: str, ignored: str | None):
    """Ignored, and said so, like fields that nobody reads."""
    variables = {"effort": 1, "enable_thinking": False}
    body = CHAT | {
        "reasoning_effort": "low",
        "chat_template_kwargs": variables,
        "add_generation_prompt": False,
    }
    answer = ask(Templated(template), "/v1/chat/completions", body)
    assert answer.status == 200
    assert answer.headers.get("x-specmesh-ignored") == ignored


class Templated(FakeDaemon):
    def __init__(self, template: str) -> None:
        super().__init__(*EVENTS)
        self._texts = {"chat_template": template} if template else {}

    def served(self, name: str) -> ModelInfo:
        return replace(super().served(name), texts=self._texts)
