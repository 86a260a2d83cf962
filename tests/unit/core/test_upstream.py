"""A drafter's upstream: the effects of each event, without a socket or a clock."""

from dataclasses import replace

import pytest

from specmesh.core import events as ev
from specmesh.core.drafter import upstream_events as uev
from specmesh.core.drafter.placement import (
    Placement,
    PlacementEnded,
    PlacementLost,
    PlacementOpened,
    PlacementRefused,
)
from specmesh.core.drafter.upstream import MAX_BACKLOG, Upstream
from specmesh.core.requests import Finished, Reply, Request, Started, Tokens
from specmesh.core.sampling.sampler import SamplingParams
from specmesh.core.session_params import SessionParams
from specmesh.core.statistics.daemon import DrafterStats
from specmesh.errors import Busy, DaemonUnreachable
from specmesh.wire import messages as m
from specmesh.wire.codec import write_body

PARAMS = SessionParams(SamplingParams(), 20)
REQUEST = Request(None, (1, 2, 3), PARAMS)
WELCOME = m.Welcome(
    verifier="v",
    model="m",
    model_hash="f",
    vocab_fingerprint="",
    n_vocab=256,
    n_ctx=4096,
    end_ids=[0],
)
CLIENT = "a client"
PLACEMENT = Placement(number=5, request=REQUEST, client=CLIENT)
SESSION = 7
KEY = ev.SessionKey(0, 0)
CLOSED = ev.DraftingEnded(0, 0.0)
OPENED = uev.SessionOpened(SESSION, 1, 3, PARAMS)


def there():
    """Return an upstream whose verifier is there."""
    upstream = Upstream("here", 0, DrafterStats(0.0), write_body)
    upstream.handle(WELCOME, 0.0)
    return upstream


def asked():
    """Return an upstream that was asked for a session."""
    upstream = there()
    upstream.handle(uev.AskFor(PLACEMENT), 1.0)
    return upstream


def begun():
    """Return an upstream whose session has two ids of text."""
    upstream = asked()
    upstream.handle(OPENED, 1.0)
    upstream.handle(uev.FromDraftCore(KEY, ev.Learned((1, 2, 3), sync=True)), 1.0)
    upstream.handle(uev.FromDraftCore(KEY, ev.Learned((4, 5), accepted=1)), 1.0)
    return upstream


def ended(upstream, done):
    """Return the effects of an end, once the core has closed the session."""
    assert upstream.handle(done, 2.0) == [ev.CloseSession(KEY)]
    return upstream.handle(uev.FromDraftCore(KEY, CLOSED), 2.0)


def done(reason, length=5):
    return m.Done(SESSION, reason, length, {})


def names(effects):
    """Return the kinds of effects, and the names of lines for the log."""
    return [one.name if isinstance(one, ev.Noted) else type(one) for one in effects]


# --- its verifier


def test_a_verifier_is_found_once():
    upstream = Upstream("here", 0, DrafterStats(0.0), write_body)
    assert upstream.handle(WELCOME, 0.0) == [
        ev.Noted("verifier_found", {"verifier": "v", "model": "m"}),
        uev.VerifierFound(WELCOME),
    ]
    assert upstream.handle(WELCOME, 1.0) == []


def test_a_verifier_is_told_once_that_it_does_not_suit():
    compared = uev.VocabularyCompared(None, "of another family", "", ready=False)
    upstream = there()
    assert upstream.handle(compared, 1.0) == [uev.ReasonChanged()]
    assert upstream.handle(compared, 1.0) == []


def test_the_core_is_told_once_what_it_can_draft_for():
    compared = uev.VocabularyCompared(None, "", "", ready=True)
    upstream = there()
    assert upstream.handle(compared, 1.0) == [ev.UpstreamChanged(0, 0.0, speaks=True)]
    assert upstream.handle(compared, 1.0) == []


PROGRESS = m.Progress(session=SESSION, total=9, cached=0, processed=1, time_ms=0.0)
NACK = uev.SessionFrame(m.Nack(SESSION, 0, 0), 20, idle=True)
LOGPROBS = uev.LogprobsCame(m.Logprobs(session=SESSION, base=0, chosen=[]), 20)
ENDED = uev.FromDraftCore(KEY, CLOSED)
MEASURED = uev.UpstreamMeasured(0.1)
BARRED = uev.UpstreamBarred(None, "")
WITHDRAW = uev.Withdraw(5)
TAKE_OVER = uev.TakeOver(5)
PAUSE = uev.PausePlacement(5, paused=True)
FRAMES = [m.Ping(1), m.Pong(1), PROGRESS, done("length"), NACK, LOGPROBS]
OTHERS = [ENDED, MEASURED, BARRED, WITHDRAW, TAKE_OVER, PAUSE]


@pytest.mark.parametrize("event", FRAMES + OTHERS)
def test_without_a_session_nothing_follows(event):
    assert there().handle(event, 1.0) == []


def test_the_effects_of_an_event_stay_as_they_are():
    upstream = there()
    effects = upstream.handle(MEASURED, 1.0)
    upstream.handle(uev.AskFor(PLACEMENT), 1.0)
    assert effects == []


# --- requests


def test_a_request_is_an_open():
    [order] = there().handle(uev.AskFor(PLACEMENT), 1.0)
    assert isinstance(order, m.Open)
    assert order.ref == 1
    assert order.ids == [1, 2, 3]


def test_a_text_that_goes_elsewhere_is_logged():
    effects = there().handle(uev.AskFor(replace(PLACEMENT, returns=True)), 1.0)
    assert names(effects) == ["session_goes_elsewhere", m.Open]


def test_a_refusal_returns_the_request():
    error = Busy("full")
    effects = asked().handle(uev.ErrorCame(1, error), 1.0)
    assert effects == [PlacementRefused(5, 0, error)]


def test_a_request_that_is_withdrawn_is_over():
    assert asked().handle(uev.Withdraw(5), 1.0) == [m.Close(0, 1), PlacementEnded(5)]


def test_a_verifier_that_goes_away_returns_what_waits_for_it():
    *_, lost = asked().handle(uev.VerifierLost("silent"), 1.0)
    assert isinstance(lost, PlacementLost)
    assert lost.placement == PLACEMENT
    assert isinstance(lost.error, DaemonUnreachable)
    assert not lost.tried


# --- sessions


def test_a_session_begins_in_the_core_and_for_the_router():
    effects = asked().handle(OPENED, 1.0)
    assert names(effects) == [ev.OpenSession, "session_opened", PlacementOpened]
    assert effects[-1] == PlacementOpened(5, 0, REQUEST, WELCOME)


def test_the_first_ids_start_the_text():
    upstream = asked()
    upstream.handle(OPENED, 1.0)
    prompt = uev.FromDraftCore(KEY, ev.Learned((1, 2, 3), sync=True))
    started = Started(SESSION, 3, (1, 2, 3), PARAMS)
    assert upstream.handle(prompt, 1.0) == [Reply(CLIENT, started)]
    text = uev.FromDraftCore(KEY, ev.Learned((4,)))
    assert upstream.handle(text, 1.0) == [Reply(CLIENT, Tokens((4,), 0))]


def test_a_frame_goes_to_the_core():
    frame = m.Truth(SESSION, 5, 0, (6,), 4)
    effects = begun().handle(uev.SessionFrame(frame, 30, idle=True), 1.0)
    assert effects == [ev.FrameReceived(KEY, frame)]


def test_frames_that_the_core_does_not_take_are_lost():
    frame = m.Truth(SESSION, 5, 0, (6,), 4)
    upstream = begun()
    upstream.handle(uev.SessionFrame(frame, MAX_BACKLOG, idle=True), 1.0)
    late = uev.SessionFrame(frame, 1, idle=False)
    assert upstream.handle(late, 1.0) == [uev.FrameRejected("backlog")]
    assert upstream.handle(late._replace(idle=True), 1.0) == [ev.FrameReceived(KEY, frame)]


def test_the_end_follows_all_ids():
    close, note, reply, over = ended(begun(), done("length"))
    assert close == m.Close(SESSION)
    assert note.name == "session_finished"
    assert over == PlacementEnded(5)
    assert reply.client == CLIENT
    assert isinstance(reply.event, Finished)


SHUTDOWN = done("shutdown")
CUT_OFF = done("length", 9)


@pytest.mark.parametrize(("end", "tried"), [(SHUTDOWN, True), (CUT_OFF, False)])
def test_a_text_that_is_cut_off_goes_on_after_its_ids(end, tried):
    note, lost = ended(begun(), end)
    assert note.name == "session_interrupted"
    assert lost.tried == tried
    request = lost.placement.request
    assert request.prompt_ids == (1, 2, 3)
    assert request.generated == (4, 5)
    assert request.known == 2
    assert lost.placement.started


def test_a_text_that_another_client_resumes_ends_here():
    reply, over, close = begun().handle(uev.TakeOver(5), 1.0)
    assert reply.client == CLIENT
    assert over == PlacementEnded(5)
    assert close == ev.CloseSession(KEY)


def test_a_session_that_is_paused_sends_it():
    effects = begun().handle(uev.PausePlacement(5, paused=True), 1.0)
    assert effects == [m.Pause(SESSION, paused=True)]


def test_only_requests_of_this_number_are_meant():
    upstream = begun()
    pause = uev.PausePlacement(6, paused=True)
    for order in (uev.Withdraw(6), uev.TakeOver(6), pause):
        assert upstream.handle(order, 1.0) == []
