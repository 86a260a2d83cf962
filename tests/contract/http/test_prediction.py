"""A client's prediction in a body, and what the usage says of its drafts."""

import pytest
from asgi_calls import EVENTS, FakeDaemon, ask, streamed_or_whole
from harness.tables import cases

from specmesh.core.requests import Finished

USER = {"role": "user", "content": "hi"}
CHAT = ("/v1/chat/completions", {"messages": [USER]})
COMPLETION = ("/v1/completions", {"prompt": "hi"})
BY_SOURCE = {
    "prediction": {"drafted": 20, "accepted": 15},
    "remote": {"drafted": 9, "accepted": 5},
}
STOPS = Finished("stop", (104, 105), {"drafted": 29, "accepted": 20, "by_source": BY_SOURCE})
PARTS = [{"type": "text", "text": "def f(): "}, {"type": "text", "text": "pass\n"}]
OTHERS = [
    ("/v1/responses", {"input": "hi"}),
    ("/v1/messages", {"messages": [USER], "max_tokens": 9}),
]

both = pytest.mark.parametrize(("path", "body"), [COMPLETION, CHAT], ids=["text", "chat"])


def asked(path, body, **fields):
    """Return the requests that the daemon gets for a body."""
    daemon = FakeDaemon(*EVENTS)
    answer = ask(daemon, path, body | fields)
    assert answer.status == 200, answer.body
    return [order.request for order in daemon.orders]


def predicting(content, kind="content"):
    return {"type": kind, "content": content}


@both
@pytest.mark.parametrize("content", ["def f(): pass\n", PARTS], ids=["text", "parts"])
def test_the_daemon_gets_the_text(path, body, content):
    [request] = asked(path, body, prediction=predicting(content))
    assert request.prediction == "def f(): pass\n"


@both
@cases(
    "value",
    """
    null
    {"type": "content", "content": ""}
    {"type": "content", "content": []}
    """,
)
def test_no_prediction(path, body, value):
    [request] = asked(path, body, prediction=value)
    assert request.prediction == ""


@both
@cases(
    "value, field",
    """
    ["def f()", "prediction"]
    [5, "prediction"]
    [true, "prediction"]
    [[], "prediction"]
    [[{"type": "text", "text": "x"}], "prediction"]
    [{}, "prediction.type"]
    [{"content": "x"}, "prediction.type"]
    [{"type": "text", "content": "x"}, "prediction.type"]
    [{"type": 5, "content": "x"}, "prediction.type"]
    [{"type": ["content"], "content": "x"}, "prediction.type"]
    [{"type": "content"}, "prediction.content"]
    [{"type": "content", "content": null}, "prediction.content"]
    [{"type": "content", "content": 5}, "prediction.content"]
    [{"type": "content", "content": {"type": "text", "text": "x"}}, "prediction.content"]
    [{"type": "content", "content": ["x"]}, "prediction.content[0]"]
    [{"type": "content", "content": [{"type": "text"}]}, "prediction.content[0]"]
    [{"type": "content", "content": [{"type": "text", "text": "x"}, {"type": "image_url"}]},
     "prediction.content[1]"]
    """,
)
def test_another_value_is_refused_by_name(path, body, value, field):
    answer = ask(FakeDaemon(*EVENTS), path, body | {"prediction": value})
    assert answer.status == 400
    assert answer.error["param"] == field


@both
def test_each_choice_has_it(path, body):
    requests = asked(path, body, prediction=predicting("x"), n=3)
    assert [request.prediction for request in requests] == ["x"] * 3


def test_each_prompt_has_it():
    requests = asked("/v1/completions", {"prompt": ["a", "b"]}, prediction=predicting("x"))
    assert [request.prediction for request in requests] == ["x"] * 2


@both
def test_a_resumed_text_has_it(path, body):
    name = "chatcmpl-" if "messages" in body else "cmpl-"
    resume = {"id": name + 32 * "0", "prompt_token_ids": [1], "token_ids": [2]}
    [request] = asked(path, body, prediction=predicting("x"), resume=resume)
    assert request.prediction == "x"


@cases(
    "fields",
    """
    {"tools": [{"type": "function", "function": {"name": "f"}}]}
    {"response_format": {"type": "json_object"}}
    {"stop": "x", "logprobs": true, "top_logprobs": 2}
    {"strategy": "probabilistic"}
    """,
)
def test_other_fields_go_with_it(fields):
    [request] = asked(*CHAT, prediction=predicting("x"), **fields)
    assert request.prediction == "x"


def test_it_counts_for_the_size_of_a_request():
    [small] = asked(*COMPLETION)
    [large] = asked(*COMPLETION, prediction=predicting("x" * 5000))
    assert large.size >= small.size + 5000


@pytest.mark.parametrize(("path", "body"), OTHERS)
def test_other_dialects_refuse_it(path, body):
    answer = ask(FakeDaemon(*EVENTS), path, body | {"prediction": predicting("x")})
    assert answer.status == 400
    assert b"prediction" in answer.body


# --- the usage


def usage_of(daemon, path, body, *, stream):
    """Return the usage of an answer."""
    asked = body | {"stream": stream, "stream_options": {"include_usage": True}}
    answer = ask(daemon, path, asked)
    if not stream:
        return answer.json()["usage"]
    return answer.bodies()[-1]["usage"]


@both
@streamed_or_whole
def test_the_usage_counts_its_drafts_only(path, body, stream):
    daemon = FakeDaemon(*EVENTS[:-1], STOPS)
    usage = usage_of(daemon, path, body, stream=stream)
    assert usage["completion_tokens_details"] == {
        "accepted_prediction_tokens": 15,
        "rejected_prediction_tokens": 5,
    }


@both
@streamed_or_whole
def test_the_usage_counts_those_of_all_choices(path, body, stream):
    daemon = FakeDaemon(*EVENTS[:-1], STOPS)
    usage = usage_of(daemon, path, body | {"n": 2}, stream=stream)
    assert usage["completion_tokens_details"] == {
        "accepted_prediction_tokens": 30,
        "rejected_prediction_tokens": 10,
    }


@both
@streamed_or_whole
def test_without_a_prediction_there_are_none(path, body, stream):
    usage = usage_of(FakeDaemon(*EVENTS), path, body, stream=stream)
    assert usage["completion_tokens_details"] == {
        "accepted_prediction_tokens": 0,
        "rejected_prediction_tokens": 0,
    }


@both
def test_the_report_has_the_drafts_of_all_sources(path, body):
    answer = ask(FakeDaemon(*EVENTS[:-1], STOPS), path, body)
    report = answer.json()["specmesh"]["report"]
    assert report["drafted"] == 29
    assert report["by_source"] == BY_SOURCE
