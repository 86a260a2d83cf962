"""The HTTP API over a fake daemon, called as an ASGI application, and llama-server's resources."""

import asyncio
import gzip
import json
import tracemalloc
import zlib
from dataclasses import replace

import pytest
from asgi_calls import EVENTS, FakeDaemon, ask, call, get, post, streamed_or_whole
from harness import snapshots
from harness.tables import cases, each, rows
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from specmesh import errors
from specmesh.api.app import create_app
from specmesh.api.backend import Peer
from specmesh.api.json_text import FEW_VALUES
from specmesh.api.kept_responses import KeptResponses
from specmesh.api.request_body import MAX_HTTP_BODY, MOST_MEMBERS
from specmesh.core.requests import Failed
from specmesh.core.text.chat import Tokenizer
from specmesh.core.vocabulary.vocabulary import Vocabulary
from specmesh.engines.sim import SimSettings, SimVerifier

LOADING = "loading its model (43%)"


def test_health():
    ready = get(FakeDaemon(), "/health")
    assert ready.status == 200
    assert ready.json() == {"status": "ok", "role": "verifier"}


def test_health_while_loading():
    loading = get(FakeDaemon(reason=errors.Busy(LOADING)), "/health")
    assert loading.status == 503
    assert loading.json() == {"status": "unavailable", "role": "verifier", "reason": LOADING}


def test_models_are_the_backends():
    daemon = FakeDaemon()
    models = get(daemon, "/v1/models").json()["data"]
    assert tuple(model["id"] for model in models) == daemon.models


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/fake-model"])
@pytest.mark.parametrize("reason", [None, errors.DaemonUnreachable("no verifier answers")])
def test_no_models_yet(path, reason):
    daemon = FakeDaemon(reason=reason)
    daemon.models = ()
    answer = get(daemon, path)
    assert (answer.status, answer.headers["retry-after"]) == (503, "1")
    assert str(reason or "no model is known yet") in answer.error["message"]


class Unknown(FakeDaemon):
    """A drafter that has no vocabulary yet."""

    def served(self, name):
        raise errors.Starting("the vocabulary is still being fetched")


@pytest.mark.parametrize("path", ["/v1/models/fake-model", "/models/fake-model"])
@pytest.mark.parametrize(
    ("daemon", "length", "size"), [(FakeDaemon, 4000, 256), (Unknown, None, None)]
)
def test_the_context_of_a_model(path, daemon, length, size):
    """It has the names that clients read; it is null while a drafter does not know it."""
    model = get(daemon(), path).json()
    assert (model["context_length"], model["max_model_len"]) == (length, length)
    assert model["meta"] == {"n_ctx": length, "n_vocab": size}


@cases(
    "path, body",
    """
    ["/completions", {"prompt": "hi"}]
    ["/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}]
    ["/responses", {"input": "hi"}]
    ["/embeddings", {"input": "hi"}]
    """,
)
def test_a_base_url_without_its_version(path, body):
    """It is llama-server's."""
    versioned = ask(FakeDaemon(*EVENTS), f"/v1{path}", body)
    plain = ask(FakeDaemon(*EVENTS), path, body)
    assert versioned.status == plain.status
    assert versioned.json().get("object") == plain.json().get("object")


def test_models_without_the_version():
    assert get(FakeDaemon(), "/models").json() == get(FakeDaemon(), "/v1/models").json()


def test_a_kept_response_without_the_version():
    daemon = FakeDaemon(*EVENTS)
    daemon.kept = KeptResponses(1)
    made = ask(daemon, "/responses", {"input": "hi"}).json()
    path = f"/responses/{made['id']}"
    assert get(daemon, path).json() == made
    assert ask(daemon, path, {}, "DELETE").json()["deleted"]


[TOTALS, DRAFTERS] = rows("""
{"generated_tokens": "generation_tokens", "prompt_tokens": "prompt_tokens",
 "rounds_with_drafts": "spec_decode_num_drafts", "drafted": "spec_decode_num_draft_tokens",
 "accepted": "spec_decode_num_accepted_tokens"}
{"draft_tokens": "drafter_drafted_tokens", "accepted": "drafter_accepted_tokens",
 "committed": "drafter_committed_tokens"}
""")
"""Totals of /stats with their names in /metrics."""

OPENMETRICS = "application/openmetrics-text; version=1.0.0"


def scrape(daemon, accept):
    headers = [(b"accept", accept.encode())]
    return asyncio.run(call(daemon, "GET", "/metrics", headers=headers))


def samples_of(daemon):
    samples = {}
    text = scrape(daemon, OPENMETRICS).body.decode()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            samples[sample.name] = sample.value
    return samples


@pytest.mark.parametrize(
    ("snapshot", "names"), [(snapshots.verifier(), TOTALS), (snapshots.drafter(), DRAFTERS)]
)
def test_metrics_agree_with_stats(snapshot, names):
    numbers = dict(zip(names, range(7, 20), strict=False))
    daemon = FakeDaemon()
    daemon.snapshot = replace(snapshot, totals=replace(snapshot.totals, **numbers))
    samples = samples_of(daemon)
    for name, metric in names.items():
        assert samples[f"specmesh_{metric}_total"] == numbers[name]
    assert numbers.items() <= get(daemon, "/stats").json()["totals"].items()


@pytest.mark.parametrize(
    ("snapshot", "peers", "count"),
    [(snapshots.verifier(), "drafters", 1), (snapshots.drafter(), "verifiers", 0)],
)
def test_gauges(snapshot, peers, count):
    daemon = FakeDaemon()
    daemon.snapshot = snapshot
    samples = samples_of(daemon)
    assert samples["specmesh_engine_healthy"] == 1
    assert samples[f"specmesh_num_{peers}"] == count
    drafted = getattr(snapshot.totals, "draft_tokens", None)
    assert samples.get("specmesh_draft_seconds_count") == drafted


@cases(
    "accept, kind",
    """
    ["application/openmetrics-text; version=1.0.0", "application/openmetrics-text; version=1.0.0"]
    ["application/openmetrics-text;version=1.0.0", "application/openmetrics-text"]
    ["application/openmetrics-text;q=0, text/plain", "text/plain"]
    ["application/openmetrics-text;q=0.1, text/plain;q=0.9", "text/plain"]
    ["text/plain;q=0.4, application/openmetrics-text;version=1.0.0;q=0.5", "application/op"]
    ["*/*", "text/plain"]
    ["text/plain;q=x", "text/plain"]
    """,
)
def test_metrics_come_in_the_format_that_is_preferred(accept, kind):
    assert scrape(FakeDaemon(), accept).headers["content-type"].startswith(kind)


REFUSALS = [
    [400, errors.RequestError("bad"), errors.PromptTooLong.of(9, 5), errors.NotPassedOn("x")],
    [404, errors.NoSuchText(), errors.NoSuchModel.of("gpt-4")],
    [500, errors.EngineError("broke"), errors.ConfigError("odd")],
    [502, errors.DaemonUnreachable("no verifier")],
    [503, errors.WentAway("stopping"), errors.Busy("full"), errors.Starting("loading")],
]


@streamed_or_whole
@pytest.mark.parametrize(("status", "error"), each(REFUSALS))
def test_refusal_is_a_status_and_openais_error(error, status, stream):
    """The codes are those that golden/exit-codes.json records."""
    answer = post(FakeDaemon(Failed(error)), stream=stream)
    found = answer.error
    assert answer.status == status
    assert found["message"] == str(error)
    assert found["param"] == getattr(error, "param", None)
    assert found["code"] == error.code
    assert found["type"] == ("invalid_request_error" if status < 500 else "server_error")
    assert found["specmesh"] == {"error": type(error).__name__, "exit_code": error.exit_code}
    assert (answer.headers.get("retry-after") == "1") == (status == 503)


@streamed_or_whole
def test_not_ready_is_refused_before_anything_is_submitted(stream):
    daemon = FakeDaemon(*EVENTS, reason=errors.Busy("loading"))
    assert post(daemon, stream=stream).status == 503
    assert daemon.orders == []


def send(*parts, encodings=(), path="/v1/completions"):
    """Send a body, with these Content-Encodings."""
    headers = [(b"content-encoding", name.encode()) for name in encodings]
    sent = call(FakeDaemon(*EVENTS), "POST", path, list(parts), headers=headers)
    return asyncio.run(sent)


DEEP = b"[" * 5_000 + b"]" * 5_000
UTF_16 = '{"prompt": "x"}'.encode("utf-16")
NO_JSON = [
    ["not JSON", b"", b"{", b"\xff", b"nul", b'{"prompt": "x\xed\xa0\x80"}', UTF_16],
    ["nested too deeply", b"[" * 100_000, b'{"prompt": %s}' % DEEP],
    ["half a surrogate pair", b'{"prompt": "x", "\\ud800": 1}', b'{"prompt": "x\\udfff"}'],
]


@pytest.mark.parametrize(("why", "raw"), each(NO_JSON))
@pytest.mark.fault("E6.73")
def test_body_that_is_no_json(raw, why):
    answer = send(raw)
    assert answer.status == 400
    assert why in answer.error["message"]


HALVES = [
    [
        "/v1/completions",
        ["prompt", {"prompt": "HALF"}],
        ["prompt[1]", {"prompt": ["x", "HALF"]}],
        ["stop[0]", {"prompt": "x", "stop": ["HALF"]}],
        ["grammar", {"prompt": "x", "grammar": "HALF"}],
        ["json_schema.title", {"prompt": "x", "json_schema": {"title": "HALF"}}],
        ["prediction.content", {"prompt": "x", "prediction": {"content": "HALF"}}],
        ["logit_bias", {"prompt": "x", "logit_bias": {"HALF": 1}}],
        ["user", {"prompt": "x", "user": "HALF"}],
        ["a.*.b", {"prompt": "x", "a": {"no word": {"b": "HALF"}}}],
    ],
    [
        "/v1/chat/completions",
        ["messages[0].content", {"messages": [{"role": "user", "content": "HALF"}]}],
        ["messages[0].content[1].text", {"messages": [{"content": [{}, {"text": "HALF"}]}]}],
        ["tools[0].function.name", {"tools": [{"function": {"name": "HALF"}}]}],
        ["chat_template_kwargs.a[2]", {"chat_template_kwargs": {"a": [1, [], "HALF"]}}],
    ],
    ["/v1/responses", ["instructions", {"instructions": "HALF"}], ["input", {"input": "HALF"}]],
]


@pytest.mark.parametrize(("path", "named"), each(HALVES))
@pytest.mark.parametrize("half", ["\\ud800", "a\\udfffb", "\\ud83d\\ude00\\ude00"])
def test_a_text_with_half_a_pair_is_refused_by_its_field(path, named, half):
    field, body = named
    answer = send(json.dumps(body).replace("HALF", half).encode(), path=path)
    assert answer.error["param"] == field
    assert answer.error["message"].startswith(f"{field} has half a surrogate pair")


def test_anthropics_errors_name_the_field_too():
    answer = send(b'{"system": "\\ud800"}', path="/v1/messages")
    assert answer.error["message"].startswith("system has half a surrogate pair")


def test_half_a_pair_in_a_value_that_another_replaces_has_no_field():
    answer = send(b'{"prompt": "\\ud800", "prompt": "x"}')
    assert answer.error["message"].startswith("the body has half a surrogate pair")


@pytest.mark.parametrize("number", [b"NaN", b"Infinity", b"-Infinity", b"1, NaN"])
@pytest.mark.parametrize("size", [0, FEW_VALUES])
def test_numbers_that_json_lacks_are_refused(number, size):
    """Python reads them, and they would be in answers that no client reads."""
    answer = send(b'{"prompt": "x", "u": [%s%s]}' % (b"1, " * size, number))
    assert answer.error["message"] == "the request body is not JSON"


def test_a_number_beyond_all_doubles_is_not_repeated():
    answer = send(b'{"input": "x", "metadata": {"a": 1e400}}', path="/v1/responses")
    assert "a number that no double holds" in answer.error["message"]


@cases(
    "path, body",
    """
    ["/v1/completions", {"prompt": "x", "json_schema": "DEEP"}]
    ["/v1/responses", {"input": "x", "metadata": "DEEP"}]
    ["/v1/responses",
     {"input": [{"type": "of_tomorrow", "a": "DEEP"}, {"role": "user", "content": "x"}]}]
    """,
)
def test_every_depth_has_an_answer(path, body):
    """JSON is read a little deeper than it is written."""
    for depth in (*range(200, 800, 25), *range(800, 1000)):
        deep = '{"a":' * depth + "1" + "}" * depth
        raw = json.dumps(body).replace('"DEEP"', deep)
        answer = send(raw.encode(), path=path)
        assert answer.status == 200 or "nested too deeply" in answer.error["message"]


BODY = b'{"prompt": "hi"}'
ZLIB = zlib.compress(BODY)
GZIP = gzip.compress(BODY, mtime=0)
EMPTY = gzip.compress(b"", mtime=0)
MEMBERS = gzip.compress(BODY[:5], mtime=0) + EMPTY + gzip.compress(BODY[5:], mtime=0)


def test_a_body_in_parts():
    assert send(BODY[:3], b"", BODY[3:]).status == 200


@pytest.mark.fault("E6.73")
def test_a_body_beyond_the_limit():
    answer = send(bytes(MAX_HTTP_BODY), b"x", b"never read")
    assert answer.status == 413
    assert "exceeds" in answer.error["message"]


COMPRESSED = [["gzip", GZIP], ["GZip", GZIP], ["x-gzip", GZIP], ["deflate", ZLIB]]
COMPRESSED += [["gzip", MEMBERS], ["x-gzip", MEMBERS + EMPTY * (MOST_MEMBERS - 3)]]
PLAIN = [["identity", BODY], ["", BODY]]


@pytest.mark.parametrize(("encoding", "raw"), COMPRESSED + PLAIN)
def test_a_compressed_body(encoding, raw):
    assert send(raw, encodings=[encoding]).status == 200


def test_a_compressed_body_in_parts():
    parts = [b""]
    for byte in MEMBERS:
        parts += [bytes([byte]), b""]
    assert send(*parts, encodings=["gzip"]).status == 200


WRONG_CHECKSUM = GZIP[:-8] + bytes(8)
WRONG_BYTE = GZIP[:20] + b"\xff" + GZIP[21:]
DAMAGED = [b"", BODY, GZIP[:-1], GZIP[:5], WRONG_CHECKSUM, WRONG_BYTE, MEMBERS[:-1]]
TOO_MUCH = [b"x", bytes(1), ZLIB, EMPTY * MOST_MEMBERS, bytes(MAX_HTTP_BODY) * 9]


@pytest.mark.parametrize("raw", DAMAGED + [GZIP + more for more in TOO_MUCH], ids=len)
@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_a_damaged_one(raw, encoding):
    check_damaged(send(raw, encodings=[encoding]), encoding)


@pytest.mark.parametrize("more", TOO_MUCH, ids=len)
def test_more_than_one_in_another_part(more):
    check_damaged(send(GZIP, more, encodings=["gzip"]), "gzip")


def check_damaged(answer, encoding):
    assert answer.status == 400
    assert encoding in answer.error["message"]


@pytest.mark.parametrize(("size", "status"), [(MAX_HTTP_BODY, 200), (MAX_HTTP_BODY + 1, 413)])
def test_a_compressed_body_is_as_long_as_what_it_holds(size, status):
    assert send(gzip.compress(BODY.ljust(size)), encodings=["gzip"]).status == status


def test_members_are_together_as_long_as_what_they_hold():
    half = MAX_HTTP_BODY // 2
    whole = gzip.compress(BODY.ljust(half)) + gzip.compress(b" " * half)
    assert send(whole, encodings=["gzip"]).status == 200
    assert send(whole + gzip.compress(b" "), encodings=["gzip"]).status == 413


def test_deflate_has_one_member():
    assert send(MEMBERS, encodings=["deflate"]).status == 400


def test_a_bomb_is_not_inflated():
    """Of 64 MiB no more is inflated than a body may have."""
    bomb = gzip.compress(bytes(2**26))
    tracemalloc.start()
    try:
        status = send(bomb, encodings=["gzip"]).status
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert status == 413
    assert most < 5 * MAX_HTTP_BODY


def test_a_body_that_holds_nothing_ends():
    head = zlib.compressobj(wbits=31).flush(zlib.Z_FULL_FLUSH)
    empty = b"\x00\x00\x00\xff\xff" * 100_000  # blocks of no bytes
    assert send(head, *[empty] * 9, encodings=["gzip"]).status == 413


@pytest.mark.parametrize("names", ["br", "zstd", "compress", "gzip, gzip", "gzip, br"])
def test_other_encodings_are_refused_by_name(names):
    answer = send(GZIP, encodings=[names])
    assert answer.status == 415
    assert names in answer.error["message"]
    assert answer.headers["accept-encoding"] == "gzip, deflate"


def test_encodings_in_two_headers():
    assert send(GZIP, encodings=["gzip", "gzip"]).status == 415


NEAR = Peer("near:1", "tcp://192.0.2.1")
FAR = Peer("far:2", "tcp://192.0.2.2")
TIMES = rows("""
{"peer": "near:1", "address": "tcp://192.0.2.1", "time_ms": null}
{"peer": "far:2", "address": "tcp://192.0.2.2", "time_ms": 100.0}
""")


class Pinged(FakeDaemon):
    """A daemon whose peers are `peers`; only FAR answers."""

    peers: tuple[Peer, ...] = ()

    def submit(self, order):
        order.sent(self.peers)
        if FAR in self.peers:
            order.answered(FAR, 0.1)


def ping(*peers):
    daemon = Pinged()
    daemon.peers = peers
    app = create_app(daemon, KeptResponses(), ping_timeout=0.05)
    return asyncio.run(call(daemon, "POST", "/ping", app=app))


def test_each_peer_has_a_time():
    """A PING without an answer is lost once its time is up."""
    assert ping(NEAR, FAR).json() == {"peers": TIMES}
    assert ping(FAR).json() == {"peers": TIMES[1:]}


def test_no_peer_to_ping():
    answer = ping()
    assert answer.status == 502
    assert "no drafter is attached" in answer.error["message"]


CHAT = {"messages": [{"role": "user", "content": "Hi"}]}


class Target(SimVerifier):
    """A target that begins texts with a token of its own."""

    def encode(self, text, *, special=True):
        ids = super().encode(text)
        return [1, *ids] if special else ids


class Verifier(FakeDaemon):
    tokenizer: Tokenizer = Target(SimSettings(n_vocab=300))
    vocabulary: Vocabulary = tokenizer.vocabulary


class Drafter(FakeDaemon):
    vocabulary: Vocabulary = Verifier.vocabulary

    @property
    def tokenizer(self):
        raise errors.NotOffered("ask the verifier")


@cases(
    "body, tokens",
    """
    [{"content": "hi", "add_special": true}, [1, 104, 105]]
    [{"content": ["hi", 299, "é"], "add_special": true}, [1, 104, 105, 299, 195, 169]]
    [{"content": "é", "with_pieces": true},
     [{"id": 195, "piece": [195]}, {"id": 169, "piece": [169]}]]
    [{"content": ["h", 299], "with_pieces": true},
     [{"id": 104, "piece": "h"}, {"id": 299, "piece": "<299>"}]]
    [{}, []]
    """,
)
def test_tokenize(body, tokens):
    assert ask(Verifier(), "/tokenize", body).json() == {"tokens": tokens}


@cases(
    "asked, tokens, written",
    """
    [{}, [1, 104, 105], null]
    [{"add_special_tokens": false}, [104, 105], null]
    [{"add_special_tokens": false, "return_token_strs": true}, [104, 105], ["h", "i"]]
    """,
)
def test_tokenize_as_vllm_does(asked, tokens, written):
    answer = ask(Verifier(), "/tokenize", {"prompt": "hi"} | asked).json()
    limits = {"count": len(tokens), "max_model_len": 4000}
    assert answer == {"tokens": tokens, "token_strs": written} | limits


TEXTS, TOKENIZER = rows("""
{"chat_template": "{{ messages }}", "bos_token": "", "eos_token": "</s>"}
{"chat_template": "{{ messages }}", "bos_token": null, "eos_token": "</s>", "pad_token": null,
 "model_max_length": 4000}
""")


def test_tokenizer_info():
    """lm-eval's remote tokenizer begins with it; an empty text would be no token."""
    daemon = Verifier()
    daemon.tokenizer = Target(SimSettings(n_vocab=300))
    daemon.tokenizer.texts = TEXTS
    assert get(daemon, "/tokenizer_info").json() == TOKENIZER


@cases("tokens, text", r'[[104, 105, 299], "hi<299>"] [[195, 169, 195], "é\ufffd"] [null, ""]')
@pytest.mark.parametrize("daemon", [Verifier, Drafter])
def test_detokenize(daemon, tokens, text):
    """A drafter does it too: it has the verifier's vocabulary."""
    answer = ask(daemon(), "/detokenize", {"tokens": tokens})
    assert answer.json() == {"content": text, "prompt": text}


@cases(
    "more, text",
    r"""
    [[], "\nassistant: "]
    [[{"role": "assistant", "content": "Well"}], "\nassistant: Well"]
    """,
)
def test_apply_template(more, text):
    """It returns the prompt that the same chat would have."""
    chat = {"messages": CHAT["messages"] + more}
    assert ask(Verifier(), "/apply-template", chat).json() == {"prompt": "user: Hi" + text}


@cases(
    "path, body, field",
    """
    ["/tokenize", {"content": ["a", -1]}, "content"]
    ["/tokenize", {"content": [300], "with_pieces": true}, "content"]
    ["/tokenize", {"content": "a", "parse_special": false}, "parse_special"]
    ["/tokenize", {"prompt": ["a"]}, "prompt"]
    ["/tokenize", {"prompt": "a", "content": "a"}, "prompt"]
    ["/tokenize", {"prompt": "a", "add_special_tokens": 1}, "add_special_tokens"]
    ["/detokenize", {"tokens": [300]}, "tokens"]
    ["/apply-template", {"messages": []}, "messages"]
    """,
)
def test_refusals_name_the_field(path, body, field):
    answer = ask(Verifier(), path, body)
    assert (answer.status, answer.error["param"]) == (400, field)


@pytest.mark.parametrize(
    ("daemon", "path"),
    [(Drafter, "/tokenize"), (Drafter, "/apply-template"), (Verifier, "/v1/embeddings")],
)
def test_what_is_not_offered(daemon, path):
    answer = ask(daemon(), path, CHAT)
    assert (answer.status, answer.error["code"]) == (501, "not_offered")


def test_a_drafter_has_no_tokenizer_info():
    assert get(Drafter(), "/tokenizer_info").status == 501


def test_props():
    """They have llama-server's fields; an unknown one is null."""
    props = get(Verifier(), "/props").json()
    assert props["model_path"] == "fake-model"
    assert (props["total_slots"], props["chat_template"]) == (None, None)
    assert props["default_generation_settings"] == {"n_ctx": 4000}
    assert props["build_info"].startswith("specmesh-")


[VARIABLES] = rows("""
{"chat_template_kwargs": {"effort": 1, "enable_thinking": false}, "add_generation_prompt": false,
 "reasoning_effort": "low"}
""")


@cases(
    "texts, ignored",
    """
    [{"chat_template": "{{ enable_thinking }}{{ add_generation_prompt }}"},
     "reasoning_effort, effort"]
    [{"chat_template": "{{ reasoning_effort }}"},
     "effort, enable_thinking, add_generation_prompt"]
    [{}, null]
    """,
)
def test_variables_that_the_template_does_not_name(texts, ignored):
    """They are ignored, and named as fields that nobody reads.

    A drafter does not know the template, which is the verifier's.
    """
    daemon = FakeDaemon(*EVENTS)
    daemon.texts = texts
    answer = ask(daemon, "/v1/chat/completions", CHAT | VARIABLES)
    assert answer.status == 200
    assert answer.headers.get("x-specmesh-ignored") == ignored
