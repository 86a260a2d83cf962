"""A prediction: its index, its alignment with the text, its acceptance, and the source."""

import random
from itertools import product

import pytest
from harness.sessions import generate, ids_of
from harness.sessions import session as session_of
from hypothesis import given
from hypothesis import strategies as st

from fuzz.oracle import row
from specmesh.core.draft_length import MAX_COPIED
from specmesh.core.draft_length.controller import DraftLengthController
from specmesh.core.draft_length.match_acceptance import PREDICTION_PRIOR, MatchAcceptance
from specmesh.core.draft_length.speculation import Speculations
from specmesh.core.draft_length.step_costs import StepCosts
from specmesh.core.draft_sources import PREDICTION
from specmesh.core.prefix import Prefix
from specmesh.core.requests import Tokens
from specmesh.core.rounds import Round, SourceDrafts
from specmesh.core.sampling.proposal import Proposal
from specmesh.core.sampling.sampler import SamplingParams
from specmesh.core.sampling.strategy import Strategy
from specmesh.core.session_params import SessionParams, TargetLimits
from specmesh.core.statistics.counters import RoundCounts, SessionTimes
from specmesh.core.verifier.predicted_text import LONGEST_MATCH, NEAR, PredictedText
from specmesh.core.verifier.sources.base import SourceContext
from specmesh.core.verifier.sources.prediction import (
    LONGEST_CHANGE,
    MOST_FOLLOWED,
    Alignment,
    PredictionSource,
)
from specmesh.wire import messages as m

PROMPT = (3, 1, 4, 1, 5)
END = 0
MOST = 24


def ids(text):
    """Return a text as ids, one for each letter."""
    return [ord(letter) for letter in text]


def letters(numbers):
    return "".join(map(chr, numbers))


# --- the index


def found(prediction, text, near):
    """Return the rest of a prediction behind the place that is found, and the ids in a row."""
    tail = ids(text)[-LONGEST_MATCH:]
    place = PredictedText(ids(prediction)).find(tail, near)
    if place is None:
        return None
    return prediction[place.at :], place.agreed


@pytest.mark.parametrize(
    ("prediction", "text", "near", "expected"),
    [
        ("one two three", "one two ", 0, ("three", 8)),
        ("one two three", "1 two ", 0, ("three", 5)),
        ("one two three", "zzzz", 0, None),
        ("abcd1abcd2abcd3", "abcd", 6, ("2abcd3", 4)),
        ("abcd1abcd2abcd3", "abcd", 0, ("1abcd2abcd3", 4)),
        ("xabcd1 abcd2 abcd3", "xabcd", 13, ("1 abcd2 abcd3", 5)),
        ("abcd1 abcd2 xabcd3", "xabcd", 4, ("3", 5)),
        ("abcd1....abcd2", "abcd", 6, ("2", 4)),
        ("abcd1.......................abcd2", "abcd", 5, ("1.......................abcd2", 4)),
    ],
    ids=[
        "the end of the text",
        "fewer ids in a row",
        "nowhere",
        "the nearest ahead",
        "from the beginning",
        "more ids in a row are better than near ones",
        "ahead, too",
        "ahead rather than behind",
        "behind rather than far ahead",
    ],
)
def test_a_place_is_found_by_the_last_ids_of_the_text(prediction, text, near, expected):
    assert found(prediction, text, near) == expected


def test_a_single_id_names_a_place_just_ahead():
    assert found("name(x)", "other(", 0) == ("x)", 1)


def test_a_single_id_names_no_place_far_ahead():
    assert found("." * NEAR + "(x)", "(", 0) is None


def test_a_single_id_names_no_place_behind():
    assert found("(x)....", "(", 3) is None


def test_a_prediction_of_equal_ids():
    """All its places look alike: the nearest is taken."""
    assert found("a" * 10_000, "a" * 20, 5000) == ("a" * 5000, LONGEST_MATCH)


@pytest.mark.parametrize("prediction", ["", "a", "abc"])
def test_a_prediction_that_is_too_short_for_an_index(prediction):
    assert found(prediction, "zzzz", 0) is None


@given(st.lists(st.integers(0, 2**31 - 1), max_size=60), st.data())
def test_each_place_with_enough_ids_before_it_is_found(numbers, data):
    at = data.draw(st.integers(0, len(numbers)))
    tail = numbers[max(at - LONGEST_MATCH, 0) : at]
    place = PredictedText(numbers).find(tail, at)
    if len(tail) >= 4:
        assert place is not None
        assert place.agreed == len(tail)
        assert numbers[place.at - len(tail) : place.at] == tail


# --- the alignment


def aligned(prediction, text="", *, step=1):
    """Return the alignment of a text that came in steps of so many ids."""
    alignment = Alignment(PredictedText(ids(prediction)))
    came = ids(text)
    for begin in range(0, len(came), step):
        alignment.follow(came[begin : begin + step])
    return alignment


def expected_after(prediction, text, *, step=1, limit=MOST):
    drafts, _ = aligned(prediction, text, step=step).after((), limit)
    return letters(drafts)


RENAMED = "def add(x): pass\nadd(1)\nprint(add(2))\n"
TEXT = "def plus(x): pass\nplus(1)\nprint(plus(2))\n"


@pytest.mark.parametrize("step", [1, 2, 5, 100])
@pytest.mark.parametrize(
    ("prediction", "text", "expected"),
    [
        ("one two three", "", "one two three"),
        ("one two three", "one ", "two three"),
        ("one two three", "one two three", ""),
        ("one two three", "one two three four", ""),
        ("one two three four", "one 2 th", "ree four"),
        ("one two three four", "one three", " four"),
        ("one three four five", "one two three f", "our five"),
        ("```\ncode = 1\n```", "code = 1", "\n```"),
        ("code = 1\nmore = 2", "Here it is:\n```\ncode = 1\n", "more = 2"),
        ("code = 1\nmore = 2", "Quite another text.", ""),
        ("first(); second(); third();", "second(); th", "ird();"),
        ("first(); second(); third();", "second(); third(); first", "(); second(); third();"),
    ],
    ids=[
        "from the beginning",
        "as far as it agrees",
        "to its end",
        "beyond its end",
        "another word",
        "a word less",
        "a word more",
        "a fence that the text lacks",
        "a fence that the prediction lacks",
        "another text",
        "a part left out",
        "parts in another order",
    ],
)
def test_the_ids_that_come_next(prediction, text, expected, step):
    assert expected_after(prediction, text, step=step) == expected


def test_no_more_than_the_limit():
    assert expected_after("one two three", "one ", limit=3) == "two"


def test_the_text_is_lost_as_soon_as_it_differs():
    assert expected_after("one two three", "one z") == ""


@pytest.mark.parametrize("step", [1, 3, 7])
def test_a_name_that_was_replaced_is_expected_to_be_replaced(step):
    came = TEXT[: TEXT.index("\nplus")]
    assert expected_after(RENAMED, came, step=step) == TEXT[len(came) :]


@pytest.mark.parametrize("step", [1, 3, 7])
@pytest.mark.parametrize("came", ["pl", "plus", "plus("])
def test_the_text_may_be_within_a_replaced_name(came, step):
    begin = TEXT[: TEXT.index("\nplus") + 1] + came
    assert expected_after(RENAMED, begin, step=step) == TEXT[len(begin) :]


@pytest.mark.parametrize("step", [1, 3, 7])
def test_a_name_that_is_replaced_no_more_is_expected_as_it_is(step):
    came = TEXT[: TEXT.index("\nplus")] + "\nadd(1)\n"
    assert expected_after(RENAMED, came, step=step) == "print(add(2))\n"


def test_what_is_longer_than_a_name_is_not_replaced_again():
    long = "z" * (LONGEST_CHANGE + 1)
    prediction = "one add(x)\ntwo add(y)\n"
    assert expected_after(prediction, f"one {long}(x)\n", limit=7) == "two add"


def test_what_was_left_out_is_not_left_out_again():
    prediction = "a = b + 1; c = b + 2;"
    assert expected_after(prediction, "a = 1; c ") == "= b + 2;"


class Unread(list):
    """Ids that are read in slices only."""

    def __iter__(self):
        raise AssertionError("they are read one by one")


def test_many_ids_at_once_are_not_compared_one_by_one():
    """So the text may go on for long before drafts are wanted again."""
    prediction = ids("".join(map(chr, range(200, 600))))
    alignment = Alignment(PredictedText(prediction))
    alignment.follow(Unread([1, *prediction[: MOST_FOLLOWED + 1]]))
    drafts, _ = alignment.after((), MOST)
    assert list(drafts) == prediction[MOST_FOLLOWED + 1 :][:MOST]


def test_the_ids_of_the_longest_step_agree_one_by_one():
    prediction = ids("add(1)" + "".join(map(chr, range(200, 600))))
    alignment = Alignment(PredictedText(prediction))
    alignment.follow(ids("plus(1)"))
    agreed = alignment.after((), 1)[1]
    alignment.follow(prediction[6 : 6 + MAX_COPIED + 1])
    assert alignment.after((), 1)[1] == agreed + MAX_COPIED + 1


def test_nothing_is_learned_from_many_ids_at_once():
    prediction = f"add(1) {'.' * MOST_FOLLOWED} add(2)"
    text = f"plus(1) {'.' * MOST_FOLLOWED} "
    assert expected_after(prediction, text, step=7) == "plus(2)"
    assert expected_after(prediction, text, step=1000) == "add(2)"


def test_nothing_is_learned_from_a_difference_just_before_a_replaced_name():
    prediction = "a add(x); foo = add(1); bar = foo;"
    text = "a sum3(x); fu = sum3(1); bar = "
    assert expected_after(prediction, text) == "foo;"


def test_ids_in_a_row_are_counted_since_the_text_was_lost():
    alignment = aligned("one two three four", "one two z")
    assert alignment.agreed == 8
    alignment = aligned("one two three four", "one 2 th")
    assert alignment.agreed == 3


# --- drafts before it


def after(prediction, text, proposed):
    drafts, agreed = aligned(prediction, text).after(ids(proposed), MOST)
    return letters(drafts), agreed


def test_it_continues_drafts_that_agree():
    assert after("one two three", "one ", "two") == (" three", 7)


def test_it_finds_its_place_behind_drafts_that_do_not():
    assert after("one two three", "zzz", "ne two ") == ("three", 7)


def test_it_has_nothing_behind_drafts_that_it_does_not_have():
    assert after("one two three", "one ", "zzz") == ("", 0)


# --- a text so far


def begun(prediction, before, *, resumed=False):
    alignment = Alignment(PredictedText(ids(prediction)), ids(before), resumed=resumed)
    drafts, _ = alignment.after((), 100)
    return letters(drafts)


def test_a_resumed_text_is_found():
    assert begun("one two three four", "prompt: one two ", resumed=True) == "three four"


def test_a_resumed_text_that_is_not_found_is_lost():
    assert begun("one two three four", "prompt: zzzzzzzz", resumed=True) == ""


def test_a_prompt_may_end_with_the_first_half_of_the_prediction():
    assert begun("one two three four", "Go on: one two ") == "three four"


def test_the_end_of_a_prompt_needs_some_ids_in_a_row():
    """A few letters are in every text: nothing is learned from them."""
    assert begun("one two three four", "then on: three on:") == "one two three four"


@pytest.mark.parametrize("before", ["", "Hi", "Go on:two", "one two three four. Go on: "])
def test_any_other_prompt_is_followed_by_its_beginning(before):
    assert begun("one two three four", before) == "one two three four"


def test_a_name_that_the_prompt_has_replaced_is_expected_to_be_replaced():
    before = f"{RENAMED}\nThe same with plus:\n{TEXT[:16]}"
    assert begun(RENAMED, before) == TEXT[16:]


def test_so_is_one_of_a_resumed_text():
    assert begun(RENAMED, f"Rename it.{TEXT[:18]}", resumed=True) == TEXT[18:]


# --- the source


def source_of(prediction, before="", came=""):
    """Return the source of a session, and its prefix, after a text that came in one step."""
    prefix = Prefix(ids(before))
    speculations = Speculations()
    context = SourceContext(
        session=1,
        prefix=prefix,
        params=SessionParams(SamplingParams(), 100),
        limits=LIMITS,
        constraint=None,
        draft_length=DraftLengthController(
            fixed=None,
            most=MOST,
            costs=StepCosts(),
            speculations=speculations,
            times=SessionTimes(opened=0.0),
        ),
        counts=RoundCounts(prompt_tokens=len(before)),
        predicted=PredictedText(ids(prediction)),
    )
    source = PredictionSource.of(context)
    prefix.extend(ids(came))
    return source, prefix


def rejected(*parts):
    """Return a round of these drafts."""
    return Round(
        session=1,
        base=0,
        ids=(),
        accepted=0,
        text=Tokens((), 0),
        drafts=(),
        tested=0,
        by_source=parts,
        generated=0,
        over=False,
        first=False,
        at=0.0,
        sessions=1,
    )


def test_an_empty_prediction_has_no_source():
    source, _ = source_of("")
    assert source is None


def test_it_follows_the_text_when_drafts_are_wanted():
    source, prefix = source_of("one two three", came="one ")
    assert letters(source.propose((), 3)) == "two"
    prefix.extend(ids("two "))
    assert letters(source.propose((), 99)) == "three"


def test_without_room_there_are_none():
    source, _ = source_of("one two three")
    assert source.propose((), 0) == ()


def test_acceptance_is_that_of_the_drafts_proposed_last():
    source, _ = source_of("a" * 99, came="a" * 40)
    source.propose((), 4)
    assert source.acceptance(4) == MatchAcceptance(prior=PREDICTION_PRIOR).chain(40, 4)


def test_its_own_drafts_are_learned_by_the_ids_in_a_row_before_them():
    source, _ = source_of("a" * 99, came="a" * 40)
    source.propose((), 4)
    source.committed(rejected(SourceDrafts(PREDICTION, 4, tested=1)))
    expected = MatchAcceptance(prior=PREDICTION_PRIOR)
    expected.record(40, 1, 0)
    assert source.acceptance(4) == expected.chain(40, 4)


def test_drafts_of_others_show_nothing():
    source, _ = source_of("a" * 99, came="a" * 40)
    source.propose((), 4)
    source.committed(rejected(SourceDrafts("remote", 4, tested=1)))
    assert source.acceptance(4) == MatchAcceptance(prior=PREDICTION_PRIOR).chain(40, 4)


# --- a session

PIECES = (b"", *map(bytes, list(product(b"abcd", repeat=2))[1:]))
LIMITS = TargetLimits(512, 16, frozenset({END}), max_drafts=5, pieces=PIECES)
STRATEGIES = [
    SamplingParams(temperature=0.0),
    SamplingParams(seed=5),
    SamplingParams(seed=5, strategy=Strategy.THRESHOLD, threshold=1.0),
]


def run(predicted, params=None, **changes):
    params = params or SessionParams(SamplingParams(), 60)
    made = session_of(PROMPT, params, LIMITS, attached=False, predicted=predicted, **changes)
    return made, generate(made, row)


def target_text(params=None):
    _, rounds = run(None, params)
    return ids_of(rounds)


def test_a_right_prediction_saves_steps():
    text = target_text()
    made, rounds = run(text)
    assert ids_of(rounds) == text
    assert len(rounds) < len(text) / 4
    drafts = made.counts.by_source()[PREDICTION]
    assert drafts["accepted"] == drafts["drafted"] > len(text) / 2


@pytest.mark.parametrize("sampling", STRATEGIES)
@given(st.lists(st.integers(0, 15), max_size=80), st.integers(0, 60), st.integers(0, 2))
def test_the_text_is_the_targets_own_with_any_prediction(sampling, noise, cut, kind):
    params = SessionParams(sampling, 60)
    text = target_text(params)
    predicted = [[*text[:cut], *noise, *text[cut:]], noise, noise * 20][kind]
    _, rounds = run(predicted, params)
    assert ids_of(rounds) == text


def test_a_client_that_wants_no_drafts_gets_none():
    params = SessionParams(SamplingParams(), 60, draft_n=0)
    made, _ = run(target_text(params), params)
    assert made.counts.by_source() == {}


def test_without_a_prediction_there_is_no_such_source():
    made, _ = run([])
    assert "prediction" not in made.counts.by_source()


def test_a_session_that_was_set_back_goes_on_with_its_prediction():
    text = target_text()
    made = session_of(
        PROMPT, SessionParams(SamplingParams(), 60), LIMITS, attached=False, predicted=text
    )
    rounds = generate(made, row, back_after=3)
    assert ids_of(rounds) == text
    assert len(rounds) < len(text) / 4


def test_nothing_of_it_runs_for_a_step_without_drafts(monkeypatch):
    """The text is followed only when drafts are wanted."""
    text = target_text()
    made, _ = run(text)
    followed = []
    monkeypatch.setattr(Alignment, "follow", lambda _, ids: followed.append(ids))
    params = SessionParams(SamplingParams(), 60, draft_n=0)
    run(text, params)
    assert followed == []
    assert made.finished is not None


# --- proposals of a drafter's drafts


def proposals(*parts):
    """Return the proposals of a step's drafts 7 and 8, which a drafter has sampled, and then 9.

    parts: the source of the drafts, and how many are its own.
    """
    sampling = SamplingParams(strategy=Strategy.PROBABILISTIC)
    made = session_of(PROMPT, SessionParams(sampling, 60), LIMITS)
    frame = m.DraftProbs(
        session=1,
        base=len(PROMPT),
        prefix_crc=made.prefix.crc,
        ids=(7, 8, 9),
        sizes=(2, 2, 2),
        support=(7, 1, 8, 1, 9, 1),
        weights=(1, 1, 1, 1, 1, 1),
    )
    made.take(frame, 0.0)
    segments = [SourceDrafts(source, drafted) for source, drafted in parts]
    offers = made.remote.offers((7, 8), segments)
    assert [offer.token for offer in offers] == [7, 8, 9]
    return [offer.proposal for offer in offers]


SEVEN, EIGHT, NINE = (Proposal((token, 1), (1, 1)) for token in (7, 8, 9))


def test_a_drafters_drafts_have_their_proposals():
    assert proposals(("remote", 2)) == [SEVEN, EIGHT, NINE]


def test_a_predicted_draft_has_none_even_if_a_drafter_has_sampled_it():
    """It would have been proposed whatever was sampled: another law."""
    assert proposals((PREDICTION, 2)) == [None, None, NINE]


def test_drafts_behind_predicted_ones_have_their_proposals():
    assert proposals((PREDICTION, 1), ("remote", 1)) == [None, EIGHT, NINE]


@given(st.integers(0, 2**32))
def test_a_text_that_changes_all_the_time_breaks_nothing(seed):
    """Random texts of few letters against random predictions: places come and go."""
    luck = random.Random(seed)
    prediction = luck.choices("ab(", k=luck.randrange(60))
    alignment = aligned("".join(prediction))
    for _ in range(40):
        size = luck.randrange(1, 6)
        drafts, agreed = alignment.after(ids(luck.choices("ab", k=luck.randrange(2))), MOST)
        assert len(drafts) <= MOST
        assert agreed >= 0
        if luck.random() < 0.5:
            alignment.follow([*alignment.after((), size)[0], ord("c")])
        else:
            alignment.follow(ids(luck.choices("ab(", k=size)))
