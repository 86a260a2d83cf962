"""The source of each token in answers, and how far a prompt is read in streams."""

import json

import pytest
from asgi_calls import DONE, EVENTS, FakeDaemon, ask, post, streamed_or_whole
from hypothesis import given
from hypothesis import strategies as st

from specmesh.core.requests import Finished, PromptRead, Started, Tokens
from specmesh.core.token_sources import TARGET, names_of

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
    first = drafted(65, 66, 67, accepted=2)
    daemon = FakeDaemon(STARTS, first, drafted(68, accepted=0), DONE)
    asked = body | {"stream": True, "sources": True, "rounds": True}
    answer = ask(daemon, path, asked)
    sources = [extra["source"] for extra in extras_of(answer)]
    assert sources == [[["remote", 2], [TARGET, 1]], [[TARGET, 1]]]


@both
def test_a_whole_answer_has_the_runs_of_all_of_it(path, body):
    first = drafted(65, 66, accepted=1)
    daemon = FakeDaemon(STARTS, first, drafted(67, accepted=0), DONE)
    answer = ask(daemon, path, body | {"sources": True})
    [extra] = extras_of(answer)
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
    first = drafted(65, 66, accepted=2)
    daemon = FakeDaemon(STARTS, first, drafted(68, accepted=0), DONE)
    answer = post(daemon, stream=True, sources=True, rounds=True, stop="BC")
    shown, held = extras_of(answer)
    assert shown["token_ids"] == [65]
    assert shown["source"] == [["remote", 1]]
    assert shown["accepted"] == 1
    assert held["token_ids"] == [66, 68]
    assert held["source"] == [["remote", 1], [TARGET, 1]]
    assert held["accepted"] == 1


@streamed_or_whole
def test_tokens_of_a_stop_string_have_none(stream):
    daemon = FakeDaemon(STARTS, drafted(65, 66, 67, accepted=3), STOPS)
    answer = post(daemon, stream=stream, sources=True, stop="BC")
    [extra] = extras_of(answer)
    assert extra["token_ids"] == [65]
    assert extra["source"] == [["remote", 1]]


IDS = st.lists(st.integers(65, 90), min_size=1, max_size=5)
ROUND = st.tuples(IDS, st.integers(0, 5))
ROUNDS = st.lists(ROUND, max_size=6)


@given(ROUNDS, st.sampled_from([None, "A", "BC", "ABAB"]), st.booleans())
def test_runs_count_the_tokens_and_the_accepted_drafts_of_their_chunk(rounds, stop, joined):
    told = []
    for ids, count in rounds:
        accepted = min(count, len(ids))
        told.append(drafted(*ids, accepted=accepted))
    daemon = FakeDaemon(STARTS, *told, STOPS)
    answer = post(daemon, stream=True, sources=True, rounds=not joined, stop=stop)
    for extra in extras_of(answer):
        runs = extra["source"]
        length = len(extra["token_ids"])
        assert sum(count for _, count in runs) == length
        assert names_of(runs, length).count("remote") == extra["accepted"]


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
    asked = body | {"stream": True, "return_progress": True}
    answer = ask(daemon, path, asked)
    [chunk] = [body for body in answer.bodies() if "prompt_progress" in body]
    assert chunk["prompt_progress"] == SHOWN
    [choice] = chunk["choices"]
    assert choice["finish_reason"] is None
    assert choice.get("text", "") == ""
    assert choice.get("delta", {}) == {}


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
        event, data = block.splitlines()
        name = event.removeprefix("event: ")
        content = json.loads(data.removeprefix("data: "))
        found.append((name, content))
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
    answer = ask(FakeDaemon(STARTS, READ, *EVENTS[1:]), path, asked)
    for kind, data in named_events(answer):
        if "prompt_progress" in data:
            shown.append((kind, data["type"], data["prompt_progress"]))
    assert shown == [(name, name, SHOWN)]
