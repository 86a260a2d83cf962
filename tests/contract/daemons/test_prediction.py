"""A client's prediction at the two loops: the same text, in fewer steps, at either end."""

from dataclasses import replace

import pytest
from harness import PATIENCE
from harness.loops import PROMPT, Flaky, truth, welcomed
from named_texts import TEXT, Told, back, slow

from specmesh.core.draft_sources import PREDICTION
from specmesh.core.requests import Finished, Request
from specmesh.core.sampling.constraint import Grammar, GrammarKind
from specmesh.core.sampling.sampler import SamplingParams
from specmesh.core.session_params import SessionParams
from specmesh.errors import PromptTooLong, RequestError
from specmesh.wire import messages as m

NAME = "cmpl-" + 32 * "d"
COUNT = 100
N_CTX = 8192


def text_of(ids):
    return bytes(ids).decode()


RIGHT = text_of(truth(COUNT))


def predicting(prediction=RIGHT, count=COUNT, **changes):
    params = replace(SessionParams(SamplingParams(), count), **changes)
    return Request(None, PROMPT, params, id=NAME, reconnect_timeout=PATIENCE, prediction=prediction)


def drafts_of(end):
    return end.report["by_source"].get(PREDICTION, {"drafted": 0, "accepted": 0})


@pytest.mark.parametrize("prompted", [False, True], ids=["ids", "words"])
def test_a_right_one_is_accepted(bench, prompted):
    for side in bench.pair(slow()):
        request = predicting()
        if prompted:
            request = replace(request, prompt=text_of(PROMPT), prompt_ids=None)
        end = side.ask(request).whole(COUNT)
        assert drafts_of(end)["accepted"] > COUNT / 2
        assert end.report["rounds"] < COUNT / 2


@pytest.mark.parametrize(
    "prediction",
    ["Quite another text.", RIGHT[::-1], RIGHT * 5, "x" * 4000, RIGHT[:30] + "zz" + RIGHT[40:]],
    ids=["wrong", "backwards", "repeated", "one letter", "edited"],
)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_any_leaves_the_text_as_it_is(bench, prediction, temperature):
    sampling = SamplingParams(temperature=temperature)
    for side in bench.pair():
        expected = side.ask(predicting("", sampling=sampling))
        expected.end()
        client = side.ask(predicting(prediction, sampling=sampling))
        assert isinstance(client.end(), Finished)
        assert client.ids == expected.ids


def test_one_with_a_grammar(bench):
    grammar = Grammar(GrammarKind.GBNF, 'root ::= "one two three four five six seven"', "")
    for side in bench.pair():
        client = side.ask(predicting("one two three four five six seven", grammar=grammar))
        assert isinstance(client.end(), Finished)
        assert text_of(client.ids) == "one two three four five six seven"


def test_one_with_a_stop_string(bench):
    stop = RIGHT[50:54]
    for side in bench.pair():
        client = side.ask(predicting(stop=(stop,)))
        assert client.end().reason == "stop"
        assert client.ids == truth(RIGHT.index(stop) + len(stop))


def test_without_drafts_there_are_none_of_it(bench):
    for side in bench.pair():
        end = side.ask(predicting(draft_n=0)).whole(COUNT)
        assert end.report["by_source"] == {}


def test_one_of_the_contexts_length_is_taken(bench):
    for side in bench.pair():
        side.ask(predicting("x" * N_CTX, 5)).whole(5)


@pytest.mark.parametrize("words", [False, True])
def test_one_longer_than_the_context_is_refused_by_name(bench, words):
    for side in bench.pair():
        request = predicting("x" * (N_CTX + 1))
        if words:
            request = replace(request, prompt="a", prompt_ids=None)
        error = side.ask(request).error()
        assert isinstance(error, RequestError)
        assert error.param == "prediction.content"
        assert str(N_CTX) in str(error)


def test_one_that_is_far_too_long_is_refused_before_it_is_encoded(bench):
    class Counting(Flaky):
        def least_ids(self, text):
            return len(text)

        def encode(self, text, *, special=True):
            assert len(text) <= N_CTX
            return super().encode(text, special=special)

    for side in bench.pair(Counting()):
        error = side.ask(predicting("x" * 10 * N_CTX)).error()
        assert error.param == "prediction.content"


def test_a_prompt_that_is_too_long_goes_first(bench):
    for side in bench.pair():
        request = replace(predicting("x" * 10_000), prompt="a" * 9000, prompt_ids=None)
        assert isinstance(side.ask(request).error(), PromptTooLong)


def test_a_long_one_passes_a_drafter(bench):
    """Its OPEN is longer than a frame."""
    engine = Flaky(n_ctx=2_000_000)
    for side in bench.pair(engine):
        end = side.ask(predicting(RIGHT + "x" * 1_000_000, draft_n=8)).whole(COUNT)
        assert drafts_of(end)["accepted"] > COUNT / 2


# --- over the wire


def test_it_is_a_field_of_open(bench):
    router, drafter = welcomed(bench)
    drafter.ask(predicting("some text"))
    order = router.expect(m.Open)
    assert order.prediction == "some text"
    assert "prediction" not in order.options


def test_a_verifier_that_knows_none_ignores_it(bench):
    """It drops the field, as any that it does not know."""
    router, drafter = welcomed(bench)
    client = drafter.ask(predicting("some text", len(TEXT)))
    order = router.expect(m.Open)
    Told(router, replace(order, prediction="")).rest()
    assert client.whole(len(TEXT)).report.get("by_source") is None


def test_a_drafter_that_knows_none_gets_its_texts(bench):
    """Its OPEN lacks the field."""
    bench.verifier()
    peer = bench.dealer()
    order = m.Open(ref=1, prompt="", options={"max_tokens": 20}, ids=list(PROMPT))
    peer.say(order)
    opened = peer.expect(m.Opened)
    assert "prediction" not in opened.options
    peer.expect(m.Done)
    assert peer.truth == [*PROMPT, *truth(20)]


def test_the_next_verifier_gets_it_too(bench):
    router, drafter = welcomed(bench)
    client = drafter.ask(predicting("some text", len(TEXT)))
    Told(router).more(4)
    back(router)
    again = Told(router)
    assert tuple(again.order.ids) == (*PROMPT, *TEXT[:4])
    assert again.order.prediction == "some text"
    again.rest()
    client.whole(len(TEXT))


def test_a_resumed_text_goes_on_with_it(bench):
    known = 40
    for side in bench.pair(slow()):
        request = replace(predicting(), generated=tuple(truth(known)), known=known)
        client = side.ask(request)
        end = client.end()
        assert client.ids == truth(COUNT)[known:]
        assert drafts_of(end)["accepted"] > (COUNT - known) / 2
