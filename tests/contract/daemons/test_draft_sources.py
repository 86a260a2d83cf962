"""`draft_sources` at the two loops: who may draft for a request, and the same text from all."""

from dataclasses import replace

import pytest
from harness import PATIENCE
from harness.loops import PROMPT, truth, welcomed
from named_texts import TEXT, Told, named, slow

from specmesh.core.draft_sources import DRAFT_SOURCES
from specmesh.core.prefix import crc_of
from specmesh.core.requests import Request
from specmesh.core.sampling.sampler import SamplingParams
from specmesh.core.session_params import SessionParams
from specmesh.wire import messages as m

NAME = "cmpl-" + 32 * "e"
COUNT = 100


def asking(*sources, **changes):
    """A request that predicts its text rightly, so that prediction and drafter have drafts."""
    params = replace(SessionParams(SamplingParams(), COUNT, draft_sources=sources), **changes)
    prediction = bytes(truth(COUNT)).decode()
    return Request(None, PROMPT, params, id=NAME, reconnect_timeout=PATIENCE, prediction=prediction)


def drafted(side, request):
    """Return the names of the sources whose drafts were verified for a whole text."""
    return {*side.ask(request).whole(COUNT).report["by_source"]}


@pytest.mark.parametrize("source", ["prediction", "remote"])
def test_only_the_sources_that_were_asked_for_draft(bench, source):
    for side in bench.pair(slow()):
        assert drafted(side, asking(source, draft_n=4)) == {source}


def test_sources_that_have_nothing_are_no_error(bench):
    for side in bench.pair(slow()):
        assert drafted(side, asking("mtp", "local", "grammar")) == set()


def test_nobody_drafts_for_an_empty_list(bench):
    for side in bench.pair(slow()):
        end = side.ask(asking()).whole(COUNT)
        assert end.report["drafted"] == 0
        assert end.report["rounds"] == COUNT
        assert end.report["no_drafts"] == "client asked for none"


def test_all_may_draft_that_are_named(bench):
    for side in bench.pair(slow()):
        assert "prediction" in drafted(side, asking(*DRAFT_SOURCES))


def test_a_drafter_that_may_not_draft_passes_the_text_on(bench):
    """Its TRUTH wants no drafts, and drafts that come all the same are dropped."""
    verifier = bench.verifier(slow())
    peer = bench.dealer()
    order = named(1, NAME, max_tokens=COUNT)
    peer.say(replace(order, options=order.options | {"draft_n": None, "draft_sources": ["suffix"]}))
    opened = peer.expect(m.Opened)
    assert opened.options["draft_sources"] == ["suffix"]
    wanted = []
    while not isinstance(frame := peer.expect(m.Sync, m.Truth, m.Done), m.Done):
        wanted.append(frame.draft_n)
        ids = truth(COUNT)[len(peer.truth) - len(PROMPT) :][:4]
        if ids:
            crc = crc_of(peer.truth)
            peer.say(m.Draft(opened.session, len(peer.truth), crc, tuple(ids)))
    assert set(wanted) == {0}
    assert peer.truth == [*PROMPT, *truth(COUNT)]
    assert "remote" not in frame.report["by_source"]
    assert not verifier.stats()["sessions"]["rows"]


def test_other_sessions_keep_the_drafter(bench):
    """A session that wants none of it is not its to draft for, and the next one is."""
    verifier = bench.verifier(slow())
    peer = bench.dealer()
    verifier.ask(asking("prediction")).whole(COUNT)
    client = verifier.ask(replace(asking("remote", draft_n=4), prediction=""))
    assert peer.expect(m.Opened).options["draft_sources"] == ["remote"]
    client.whole(COUNT)


def test_it_is_an_option_of_open(bench):
    router, drafter = welcomed(bench)
    drafter.ask(asking("remote", "suffix"))
    assert router.expect(m.Open).options["draft_sources"] == ["remote", "suffix"]


def test_a_verifier_that_knows_none_ignores_it(bench):
    """It drops the option, as any that it does not know: all its sources draft."""
    router, drafter = welcomed(bench)
    request = asking("suffix")
    client = drafter.ask(replace(request, params=replace(request.params, max_tokens=len(TEXT))))
    order = router.expect(m.Open)
    options = dict(order.options)
    del options["draft_sources"]
    Told(router, replace(order, options=options)).rest()
    client.whole(len(TEXT))


@pytest.mark.parametrize("given", ["suffix", ["page"], [1], {}])
def test_an_open_with_others_is_refused_by_name(bench, given):
    bench.verifier()
    peer = bench.dealer()
    order = named(1, NAME)
    peer.say(replace(order, options=order.options | {"draft_sources": given}))
    assert peer.expect(m.Error).param == "draft_sources"
