"""A drafter's session that is asked for nothing guesses what it is told, and says what it would have said."""

from drafter_sessions import PROMPT, crc, predict, session, told

from specmesh.core import events as ev
from specmesh.core.draft_session import LONGEST_GAP, SHADOW


def shadow(made, *guesses, now=0.0):
    """Carry out the plans for known ids, with these guesses, as far as there are any; (what was fed, effects)."""
    fed, effects = [], []
    for guess in guesses:
        while (plan := made.plan(0.0)) is not None:
            fed.append(plan.ids)
            assert not plan.guess
            effects += made.handle(ev.Predicted(len(plan.ids), None, now), now)
        plan = made.plan_shadow()
        if plan is None:
            break
        assert plan.guess
        fed.append(plan.ids)
        effects += made.handle(ev.Predicted(len(plan.ids), guess, now), now)
    return fed, effects


def test_known_ids_are_shadowed():
    """Asked for nothing, the last ids of the truth are guessed one by one, those before taken in at once; one frame
    tells all guesses, and no id is guessed twice."""
    made = session(draft_n=0)
    text = tuple(range(SHADOW + 2))
    made.handle(told(*text, after=PROMPT, draft_n=0), 0.0)
    fed, effects = shadow(made, *range(4, 4 + SHADOW), 99)
    assert fed == [(*PROMPT, text[0]), *[(token,) for token in text[1 : 1 + SHADOW]]]
    assert effects == [ev.SendShadow(5, crc(*PROMPT, *text[:2]), tuple(range(4, 4 + SHADOW)))]
    assert made.drafted == 0
    assert made.plan(0.0) is None
    assert made.plan_shadow() is None


def test_a_long_truth_goes_in_by_chunks_up_to_its_shadows():
    """However small its chunks are, none of them takes in an id that is to be guessed."""
    made, text = session(draft_n=0, n_batch=2), tuple(range(14))
    made.handle(told(*text, after=PROMPT, draft_n=0), 0.0)
    fed, effects = shadow(made, *[1] * SHADOW)
    assert [len(ids) for ids in fed[:-SHADOW]] == [2, 2, 2, 2]
    assert effects == [ev.SendShadow(9, crc(*PROMPT, *text[:6]), (1,) * SHADOW)]


def test_shadows_wait_for_each_other():
    """Truth that comes one id at a time is shadowed when there are enough for a frame; the ids between two frames, more
    and more up to LONGEST_GAP, are not. Asked for drafts, it begins anew."""
    made, known, sent = session(draft_n=0, n_ctx=1000, n_batch=64), PROMPT, []

    def follow(ids):
        nonlocal known
        for token in range(ids):
            made.handle(told(token % 16, after=known, draft_n=0), 0.0)
            known = (*known, token % 16)
            sent.extend(shadow(made, *[1] * SHADOW)[1])

    follow(SHADOW + 2 * SHADOW + 2 * (LONGEST_GAP + SHADOW))
    starts = [3, 3 + 2 * SHADOW, 3 + 3 * SHADOW + LONGEST_GAP, 3 + 4 * SHADOW + 2 * LONGEST_GAP]
    assert [(effect.base, len(effect.ids)) for effect in sent] == [(start, SHADOW) for start in starts]
    for draft_n, shadows in ((1, 0), (2, 1)):
        made.handle(told(1, after=known, draft_n=draft_n), 0.0)
        known, before = (*known, 1), len(sent)
        follow(2 * SHADOW)
        assert len(sent) == before + shadows


def test_a_model_that_guesses_nothing_is_asked_as_seldom():
    """There is no frame, and the gaps between its shadows grow all the same."""
    made, known, guesses = session(draft_n=0, n_ctx=1000, n_batch=64), PROMPT, 0
    for token in range(400):
        made.handle(told(token % 16, after=known, draft_n=0), 0.0)
        known = (*known, token % 16)
        fed, effects = shadow(made, *[None] * SHADOW)
        assert effects == []
        guesses += sum(len(ids) == 1 for ids in fed)
    assert guesses < 400 / 3


def test_the_prompt_and_what_was_drafted_are_not_shadowed():
    """A prompt says nothing of how well drafts would do; drafts that were asked for are judged themselves."""
    made = session(draft_n=0)
    made.handle(told(*range(14), after=PROMPT, draft_n=0, sync=True), 0.0)
    assert shadow(made, 1)[1] == []
    made.handle(told(1, 2, 3, after=(*PROMPT, *range(14)), draft_n=2), 0.0)
    made.handle(told(4, after=(*PROMPT, *range(14), 1, 2, 3), draft_n=0), 0.0)
    assert shadow(made, 1)[1] == []


def test_a_gap_between_shadows_ends_the_frame():
    """Where the model has no guess, or is overtaken by the truth, what was guessed before goes out with its place."""
    made, text = session(draft_n=0), tuple(range(SHADOW))
    made.handle(told(*text, after=PROMPT, draft_n=0), 0.0)
    assert shadow(made, 1, 2, None)[1] == [ev.SendShadow(3, crc(*PROMPT), (1, 2))]
    assert shadow(made, 7)[1] == []
    made.handle(told(*text, 1, after=(*PROMPT, *text), draft_n=0), 0.0)
    known = (*PROMPT, *text)
    assert shadow(made, *[5] * SHADOW)[1] == [
        ev.SendShadow(6, crc(*known[:6]), (7,)),
        ev.SendShadow(len(known) + 1, crc(*known, text[0]), (5,) * SHADOW),
    ]


def test_drafting_ends_shadows():
    """Once drafts are asked for again nothing known is guessed."""
    made = session(draft_n=0)
    made.handle(told(*range(SHADOW), after=PROMPT, draft_n=0), 0.0)
    assert shadow(made, 1, 2)[1] == []
    made.handle(told(1, after=(*PROMPT, *range(SHADOW)), draft_n=2), 0.0)
    assert made.plan_shadow() is None
    assert predict(made, 3)[1] == [ev.SendDraft(4 + SHADOW, crc(*PROMPT, *range(SHADOW), 1), (3,))]


def test_a_model_that_was_emptied_begins_its_shadows_anew():
    """What was guessed before a model forgot everything is not told with the place of what comes after."""
    made, known = session(draft_n=0), (*PROMPT, *range(SHADOW))
    made.handle(told(*range(SHADOW), after=PROMPT, draft_n=0), 0.0)
    shadow(made, 1, 2)
    made.relocated(0)
    assert shadow(made, *[3] * SHADOW)[1] == [ev.SendShadow(3, crc(*known[:3]), (3,) * SHADOW)]
