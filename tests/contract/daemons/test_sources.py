"""Sources of tokens and progress of prompts through the two loops.

They are the same at either end, agree with the report, and come after either died.
"""

import threading
from dataclasses import replace

import pytest
from harness import PATIENCE
from harness.loops import PROMPT, Flaky, truth, welcomed
from named_texts import TEXT, Told, back, kept, named, slow

from specmesh.core.requests import Failed, Finished, PromptRead, Request, Started, Tokens
from specmesh.core.sampling.sampler import SamplingParams
from specmesh.core.session_params import SessionParams
from specmesh.core.token_sources import TARGET, names_of
from specmesh.wire import messages as m

NAME = "cmpl-" + 32 * "c"
COUNT = 60
LONG = PROMPT * 50


def wanted(count=COUNT, **changes):
    params = SessionParams(SamplingParams(), count, draft_n=4, sources=True)
    params = replace(params, **changes)
    return Request(None, PROMPT, params, id=NAME, reconnect_timeout=PATIENCE)


def heard(client):
    """Return the source of each token, and the end of the text."""
    names = []
    while not isinstance(event := client.next(), Finished):
        assert not isinstance(event, Failed), event
        if isinstance(event, Tokens):
            assert sum(count for _, count in event.sources) == len(event.ids)
            names += names_of(event.sources, len(event.ids))
    return names, event


@pytest.mark.parametrize("logprobs", [None, 2])
def test_the_sources_are_those_of_the_report(bench, logprobs):
    for side in bench.pair(slow()):
        client = side.ask(wanted(logprobs=logprobs))
        names, end = heard(client)
        assert client.ids == truth(COUNT)
        assert set(names) == {"remote", TARGET}
        assert names.count("remote") == end.report["by_source"]["remote"]["accepted"]


def test_without_drafts_all_are_the_targets(bench):
    for side in bench.pair():
        names, _ = heard(side.ask(wanted(draft_n=0)))
        assert names == COUNT * [TARGET]


def test_nobody_gets_them_unasked(bench):
    for side in bench.pair(slow()):
        client = side.ask(wanted(sources=False))
        while not isinstance(event := client.next(), Finished):
            if isinstance(event, Tokens):
                assert event.sources == ()


def test_a_text_that_goes_on_elsewhere_has_those_of_all_of_it(bench):
    """A session keeps them: a client of the verifier's own gets all, and so does a drafter."""
    verifier = bench.verifier(slow())
    first = bench.dealer()
    order = named(1, NAME, max_tokens=COUNT)
    first.say(replace(order, options=order.options | {"sources": True}))
    assert first.expect(m.Opened).options["sources"] is True
    first.expect(m.Logprobs)
    first.say(m.Bye())
    kept(verifier)
    second = bench.dealer()
    second.say(replace(order, ref=2, adopt=True))
    names = []
    while not isinstance(frame := second.expect(m.Logprobs, m.Done), m.Done):
        assert frame.base == len(PROMPT) + len(names)
        assert frame.chosen == []
        names += frame.sources
    assert names == COUNT * [TARGET]
    by_name = replace(wanted(), prompt_ids=None, named_only=True)
    names, _ = heard(verifier.ask(by_name))
    assert names == COUNT * [TARGET]


def sources_of(session, *names):
    """Send the sources of the last ids of a scripted session."""
    base = len(session.known) - len(names)
    frame = m.Logprobs(session=session.session, base=base, chosen=[], sources=list(names))
    session.router.say(frame)


def test_ids_that_lack_theirs_are_sent_again(bench):
    """If a verifier dies between TRUTH and LOGPROBS, the next one sends these ids again."""
    router, drafter = welcomed(bench)
    client = drafter.ask(wanted(len(TEXT)))
    first = Told(router)
    assert first.order.options["sources"] is True
    sources_of(first.more(4), "remote", "remote", "grammar", TARGET)
    first.more(2)
    back(router)
    again = Told(router)
    assert tuple(again.order.ids) == (*PROMPT, *TEXT[:4])
    rest = len(TEXT) - 4
    sources_of(again.more(rest), *(rest * [TARGET]))
    again.done()
    names, _ = heard(client)
    assert tuple(client.ids) == TEXT
    assert names == ["remote", "remote", "grammar", *((rest + 1) * [TARGET])]


def test_those_that_never_come_are_the_targets(bench):
    router, drafter = welcomed(bench)
    client = drafter.ask(wanted(len(TEXT)))
    session = Told(router)
    sources_of(session.more(2), "remote")
    session.rest()
    names, _ = heard(client)
    assert tuple(client.ids) == TEXT
    assert names == [TARGET, "remote", *((len(TEXT) - 2) * [TARGET])]


def test_a_verifier_that_knows_no_sources(bench):
    """Its ids wait for none, and the client learns at the start that there are none."""
    router, drafter = welcomed(bench)
    client = drafter.ask(wanted(len(TEXT)))
    order = router.expect(m.Open)
    del order.options["sources"]
    session = Told(router, order)
    session.more(3)
    started = client.next()
    assert isinstance(started, Started)
    assert started.params is not None
    assert not started.params.sources
    assert client.next() == Tokens(TEXT[:3], 0)


# --- progress


def reports_of(client):
    """Return the reports about a prompt, which come before the text."""
    reports = []
    text_has_begun = False
    while not isinstance(event := client.next(), Finished):
        assert not isinstance(event, Failed), event
        text_has_begun = text_has_begun or isinstance(event, Tokens)
        if isinstance(event, PromptRead):
            assert not text_has_begun
            reports.append(event)
    return reports


def reading(prompt=LONG, **changes):
    params = wanted(4, sources=False, progress=True, cache_prompt=False).params
    return Request(None, prompt, replace(params, **changes))


def test_a_long_prompt_is_reported_at_either_end(bench):
    for side in bench.pair(Flaky(row_ms=1)):
        reports = reports_of(side.ask(reading()))
        assert reports
        read = [report.processed for report in reports]
        assert read == sorted(read)
        assert read[-1] < len(LONG)
        assert {(report.total, report.cached) for report in reports} == {(len(LONG), 0)}


class Held(Flaky):
    """A target each of whose steps goes on until steps may end."""

    def __init__(self):
        super().__init__()
        self.may_end = threading.Event()

    def decode(self, spans):
        assert self.may_end.wait(PATIENCE)
        return super().decode(spans)


def test_reports_come_while_the_first_step_goes_on(bench):
    engine = Held()
    for side in bench.pair(engine):
        client = side.ask(reading())
        assert isinstance(client.next(), Started)
        first = client.next()
        again = client.next()
        assert again._replace(seconds=0) == PromptRead(len(LONG), 0, 0, 0)
        assert again.seconds > first.seconds
        engine.may_end.set()
        reports_of(client)
        engine.may_end.clear()


def test_no_report_comes_unasked(bench):
    for side in bench.pair(Flaky(row_ms=1)):
        assert reports_of(side.ask(reading(progress=False))) == []


def test_reports_of_another_session_are_dropped(bench):
    router, drafter = welcomed(bench)
    client = drafter.ask(reading(PROMPT))
    session = Told(router)
    report = m.Progress(session=session.session, total=9, cached=1, processed=5, time_ms=500)
    router.say(replace(report, session=99), report)
    session.done("stop")
    session.router.say(report)
    assert reports_of(client) == [PromptRead(9, 1, 5, 0.5)]


def test_a_report_that_nobody_asked_for_is_dropped(bench):
    router, drafter = welcomed(bench)
    client = drafter.ask(reading(PROMPT, progress=False))
    session = Told(router)
    router.say(m.Progress(session=session.session, total=9, cached=1, processed=5, time_ms=500))
    session.done("stop")
    assert reports_of(client) == []
