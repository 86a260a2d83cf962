"""The source of each token in answers, and how far a prompt is read in streams."""

import json

import pytest
from asgi_calls import DONE, EVENTS, FakeDaemon, ask, post, streamed_or_whole
from hypothesis import given
from hypothesis import strategies as st

from specmesh.core.requests import Finished, PromptRead, Started, Tokens
from specmesh.core.token_sources import TARGET

USER = {"role": "user", "content": "hi"}
CHAT = ("/v1/chat/completions", {"messages": [USER]})
COMPLETION = ("/v1/completions", {"prompt": "hi"})
STARTS = Started(1, 2)
READ = PromptRead(6000, 100, 3000, 1.25)
SHOWN = {"total": 6000, "cache": 100, "processed": 3000, "time_ms": 1250}
STOPS = Finished("stop", (104, 105), {"by_source": {"remote": {"drafted": 9, "accepted": 5}}})

both = pytest.mark.parametrize(("path", "body"), [COMPLETION, CHAT], ids=["text", "chat"])


def drafted(*ids, accepted):
    """Return ids of which the first so many are a drafter's."""
    runs = [("remote", accepted), (TARGET, len(ids) - accepted)]
    return Tokens(ids, accepted, sources=tuple(run for run in runs if run[1]))


def extras_of(answer):
    """Return our fields of the chunks with tokens, or of the whole answer."""
    if answer.headers["content-type"].startswith("text/event-stream"):
        bodies = answer.bodies()
    else:
        bodies = [answer.json()]
    return [body["specmesh"] for body in bodies if body["specmesh"].get("token_ids")]


@both
def test_a_stream_has_the_runs_of_each_chunk(path, body):
    daemon = FakeDaemon(STARTS, drafted(65, 66, 67, accepted=2), drafted(68, accepted=0), DONE)
    answer = ask(daemon, path, body | {"stream": True, "sources": True, "rounds": True})
    sources = [extra["source"] for extra in extras_of(answer)]
    assert sources == [[["remote", 2], [TARGET, 1]], [[TARGET, 1]]]


@both
def test_a_whole_answer_has_the_runs_of_all_of_it(path, body):
    daemon = FakeDaemon(STARTS, drafted(65, 66, accepted=1), drafted(67, accepted=0), DONE)
    [extra] = extras_of(ask(daemon, path, body | {"sources": True}))
    assert extra["source"] == [["remote", 1], [TARGET, 2]]


@streamed_or_whole
def test_each_choice_has_its_own(stream):
    daemon = FakeDaemon(STARTS, drafted(65, accepted=1), DONE)
    answer = post(daemon, stream=stream, sources=True, n=2)
    if stream:
        extras = extras_of(answer)
    else:
        extras = answer.json()["specmesh"]["choices"]
    assert [extra["source"] for extra in extras] == 2 * [[["remote", 1]]]


@both
@streamed_or_whole
def test_nobody_gets_them_unasked(path, body, stream):
    answer = ask(FakeDaemon(*EVENTS), path, body | {"stream": stream})
    assert b'"source"' not in answer.body


def test_the_daemon_is_asked_only_if_they_are_wanted():
    daemon = FakeDaemon(*EVENTS)
    post(daemon)
    post(daemon, sources=True)
    assert [order.request.params.sources for order in daemon.orders] == [False, True]


@pytest.mark.parametrize("value", [1, "yes", [], {}])
def test_another_value_is_refused_by_name(value):
    assert post(FakeDaemon(*EVENTS), sources=value).error["param"] == "sources"


def test_tokens_whose_text_is_held_back_come_with_their_sources():
    """A letter that may begin a stop string comes with the next chunk, and so does its source."""
    daemon = FakeDaemon(STARTS, drafted(65, 66, accepted=2), drafted(68, accepted=0), DONE)
    answer = post(daemon, stream=True, sources=True, rounds=True, stop="BC")
    first, second = extras_of(answer)
    assert (first["token_ids"], first["source"], first["accepted"]) == ([65], [["remote", 1]], 1)
    assert second["token_ids"] == [66, 68]
    assert (second["source"], second["accepted"]) == ([["remote", 1], [TARGET, 1]], 1)


@streamed_or_whole
def test_tokens_of_a_stop_string_have_none(stream):
    daemon = FakeDaemon(STARTS, drafted(65, 66, 67, accepted=3), STOPS)
    [extra] = extras_of(post(daemon, stream=stream, sources=True, stop="BC"))
    assert extra["token_ids"] == [65]
    assert extra["source"] == [["remote", 1]]


ROUNDS = st.lists(
    st.tuples(st.lists(st.integers(65, 90), min_size=1, max_size=5), st.integers(0, 5)), max_size=6
)


@given(ROUNDS, st.sampled_from([None, "A", "BC", "ABAB"]), st.booleans())
def test_runs_count_the_tokens_and_the_accepted_drafts_of_their_chunk(rounds, stop, joined):
    told = [drafted(*ids, accepted=min(count, len(ids))) for ids, count in rounds]
    body = {"stream": True, "sources": True, "rounds": not joined, "stop": stop}
    for extra in extras_of(post(FakeDaemon(STARTS, *told, STOPS), **body)):
        counts = dict.fromkeys(("remote", TARGET), 0)
        for name, count in extra["source"]:
            counts[name] += count
        assert sum(counts.values()) == len(extra["token_ids"])
        assert counts["remote"] == extra["accepted"]


def test_a_daemon_that_knows_none_names_the_target():
    """A verifier that took a text over may be older than its drafter."""
    daemon = FakeDaemon(STARTS, Tokens((65, 66), 1), DONE)
    [extra] = extras_of(post(daemon, stream=True, sources=True))
    assert extra["source"] == [[TARGET, 2]]


# --- progress


def progress_of(answer):
    return [body["prompt_progress"] for body in answer.bodies() if "prompt_progress" in body]


@both
def test_a_stream_has_a_chunk_without_text(path, body):
    daemon = FakeDaemon(STARTS, READ, *EVENTS[1:])
    answer = ask(daemon, path, body | {"stream": True, "return_progress": True})
    [chunk] = [body for body in answer.bodies() if "prompt_progress" in body]
    assert chunk["prompt_progress"] == SHOWN
    [choice] = chunk["choices"]
    assert choice["finish_reason"] is None
    assert choice.get("text", "") == choice.get("delta", {}).get("content", "") == ""


def test_each_report_is_a_chunk():
    later = READ._replace(processed=4000)
    daemon = FakeDaemon(STARTS, READ, later, *EVENTS[1:])
    shown = progress_of(post(daemon, stream=True, return_progress=True))
    assert [one["processed"] for one in shown] == [3000, 4000]


@both
def test_a_whole_answer_asks_for_none(path, body):
    daemon = FakeDaemon(*EVENTS)
    ask(daemon, path, body | {"return_progress": True})
    assert not daemon.orders[0].request.params.progress


@pytest.mark.parametrize("value", [1, "yes", [], {}])
def test_another_value_of_return_progress_is_refused_by_name(value):
    assert post(FakeDaemon(*EVENTS), return_progress=value).error["param"] == "return_progress"


def named_events(answer):
    """Return the type and the data of each server-sent event."""
    found = []
    for block in answer.body.decode().strip().split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.splitlines())
        found.append((lines["event"], json.loads(lines["data"])))
    return found


@pytest.mark.parametrize(
    ("path", "body", "name"),
    [
        ("/v1/responses", {"input": "hi"}, "response.in_progress"),
        ("/v1/messages", {"messages": [USER], "max_tokens": 9}, "ping"),
    ],
)
def test_other_dialects_have_it_in_an_event_that_clients_know(path, body, name):
    asked = body | {"stream": True, "return_progress": True}
    shown = []
    for kind, data in named_events(ask(FakeDaemon(STARTS, READ, *EVENTS[1:]), path, asked)):
        if "prompt_progress" in data:
            shown.append((kind, data["type"], data["prompt_progress"]))
    assert shown == [(name, name, SHOWN)]
