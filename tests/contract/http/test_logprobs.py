"""Log-probabilities in answers: whose they are, and in whose form."""

import pytest
from asgi_calls import DONE, FakeDaemon, ask, post

from specmesh.api.requests import Submit
from specmesh.core.requests import Scored, Started, Tokens
from specmesh.core.sampling.logprobs import Logprob
from specmesh.core.sampling.sampler import SamplingParams
from specmesh.core.session_params import SessionParams
from specmesh.core.vocabulary.vocabulary import Vocabulary

EURO = tuple("€".encode())
NAME = "cmpl-" + 32 * "a"


def likely(chosen: float, *top: tuple[int, float]) -> Logprob:
    return Logprob(chosen, tuple(token for token, _ in top), tuple(value for _, value in top))


def told(*rounds: tuple[tuple[int, ...], tuple[Logprob | None, ...]]) -> FakeDaemon:
    """A daemon whose text these rounds make, with their log-probabilities; it was begun with some."""
    params = SessionParams(SamplingParams(), 9, logprobs=1)
    return FakeDaemon(Started(1, 2, (104, 105), params), *(Tokens(ids, 0, tops) for ids, tops in rounds), DONE)


def test_a_completion_has_four_lists():
    """Tokens, theirs, the likeliest with the one that was said, and where each begins; specmesh's with ids."""
    daemon = told(((65, 66), (likely(-0.5, (65, -0.5)), likely(-3.0, (90, -0.1)))))
    answer = post(daemon, logprobs=1).json()
    assert answer["choices"][0]["logprobs"] == {
        "tokens": ["A", "B"],
        "token_logprobs": [-0.5, -3.0],
        "top_logprobs": [{"A": -0.5}, {"Z": -0.1, "B": -3.0}],
        "text_offset": [0, 1],
    }
    [first, _] = answer["specmesh"]["logprobs"]
    entry = {"id": 65, "token": "A", "logprob": -0.5, "bytes": [65]}
    assert first == entry | {"top_logprobs": [entry]}


def test_a_chat_has_one_object_each():
    """With the bytes of the token; content alone, as nothing is refused."""
    asked = {"messages": [{"role": "user", "content": "hi"}], "logprobs": True, "top_logprobs": 1}
    daemon = told(((65,), (likely(-3.0, (90, -0.1)),)))
    answer = ask(daemon, "/v1/chat/completions", asked).json()
    top = {"id": 90, "token": "Z", "logprob": -0.1, "bytes": [90]}
    entry = {"id": 65, "token": "A", "logprob": -3.0, "bytes": [65], "top_logprobs": [top]}
    assert answer["choices"][0]["logprobs"] == {"content": [entry], "refusal": None}
    assert "logprobs" not in answer["specmesh"]


def test_parts_of_a_character_are_told_as_bytes():
    """Each token has its own; the text comes with the last of them."""
    answer = post(told(((65, *EURO, 66), tuple(likely(-1.0) for _ in range(5)))), logprobs=0).json()
    [choice] = answer["choices"]
    assert (choice["text"], choice["logprobs"]["text_offset"]) == ("A€B", [0, 1, 1, 1, 2])
    assert choice["logprobs"]["tokens"] == ["A", "bytes:\\xe2", "bytes:\\x82", "bytes:\\xac", "B"]
    assert answer["specmesh"]["logprobs"][1]["bytes"] == [0xE2]


@pytest.mark.parametrize("stream", [False, True])
def test_an_echoed_prompt(stream: bool):
    """It stands before the text in all four lists, without a logarithm for its first id; a stop string is no matter."""
    params = SessionParams(SamplingParams(), 9, logprobs=1)
    prompt = Started(1, 3, (104, *EURO[:2]), params)
    rounds = Tokens((65,), 0, (likely(-0.5, (65, -0.5)),)), Tokens((66,), 0, (likely(-3.0, (90, -0.1)),))
    daemon = FakeDaemon(prompt, Scored((likely(-1.0, (104, -1.0)), likely(-2.0))), *rounds, DONE)
    answer = post(daemon, logprobs=1, echo=True, stop="h", stream=stream)
    choices = [body["choices"][0] for body in answer.bodies()]
    assert "".join(choice["text"] for choice in choices) == "h\ufffdAB"
    lists = [one for choice in choices if (one := choice["logprobs"]) is not None]
    told = {name: [value for one in lists for value in one[name]] for name in lists[0]}
    assert told["tokens"] == ["h", "bytes:\\xe2", "bytes:\\x82", "A", "B"]
    assert told["token_logprobs"] == [None, -1.0, -2.0, -0.5, -3.0]
    assert told["top_logprobs"][:2] == [None, {"h": -1.0, "bytes:\\xe2": -1.0}]
    assert told["text_offset"] == [0, 1, 1, 2, 3]
    [order] = [order for order in daemon.orders if isinstance(order, Submit)]
    assert (order.request.params.scored, order.request.params.cache_prompt) == (True, False)


@pytest.mark.parametrize("stream", [False, True])
def test_an_echoed_prompt_alone(stream: bool):
    """Without log-probabilities; or where none came of it: there is only one id, or its verifier knows of no echo."""
    answer = post(FakeDaemon(Started(1, 2, (104, 105)), Tokens((65,), 0), DONE), echo=True, stream=stream)
    bodies = answer.bodies()
    assert "".join(body["choices"][0]["text"] for body in bodies) == "hiA"
    lone = post(FakeDaemon(Started(1, 1, (104,)), DONE), echo=True, logprobs=1).json()["choices"][0]
    assert (lone["text"], lone["logprobs"]["token_logprobs"]) == ("h", [None])


def test_who_asks_by_name_has_what_the_text_has():
    """Ids from before it was last gone on with have null."""
    logprobs = post(told(((65, 66), (None, likely(-1.0)))), resume={"id": NAME}).json()["choices"][0]["logprobs"]
    assert (logprobs["token_logprobs"], logprobs["top_logprobs"]) == ([None, -1.0], [None, {"B": -1.0}])


@pytest.mark.parametrize("stream", [False, True])
def test_ids_text_and_logprobs_end_together(stream: bool):
    """At a stop string that begins in an id and ends in another: what is told is as little as has the text."""
    rounds = (Tokens((token,), 0, (likely(-float(token)),)) for token in (0, 2, 1, 3))
    daemon = FakeDaemon(Started(1, 2), *rounds, DONE)
    daemon.vocabulary = Vocabulary((b"ab", b"c#", b"#", b"#d"), frozenset())
    answer = post(daemon, logprobs=0, stop=["##"], stream=stream, rounds=True)
    bodies = answer.bodies()
    assert [text for body in bodies if (text := body["choices"][0]["text"])] == (["ab", "#c"] if stream else ["ab#c"])
    lists = [one for body in bodies if (one := body["choices"][0]["logprobs"]) is not None]
    assert [value for one in lists for value in one["token_logprobs"]] == [0.0, -2.0, -1.0]
    assert [begin for one in lists for begin in one["text_offset"]] == [0, 2, 3]
    assert [token for body in bodies for token in body["specmesh"].get("token_ids", [])] == [0, 2, 1]
