"""Whose draft each token was: runs, and a session's record."""

import random
from dataclasses import replace
from functools import partial
from itertools import pairwise, product

import pytest
from harness.sessions import generate, mostly_right
from harness.sessions import session as session_of
from hypothesis import given
from hypothesis import strategies as st

from fuzz.oracle import row
from specmesh.core.rounds import SourceDrafts
from specmesh.core.sampling.sampler import SamplingParams
from specmesh.core.session_params import SessionParams, TargetLimits
from specmesh.core.token_sources import TARGET, SourceRecorder, names_of, runs_of

NAMES = st.lists(st.sampled_from(["remote", "grammar", TARGET]))
PROMPT = (3, 1, 4, 1, 5)
END = 0
PIECES = (b"", *map(bytes, list(product(b"abcd", repeat=2))[1:]))
LIMITS = TargetLimits(512, 16, frozenset({END}), max_drafts=3, pieces=PIECES)
ROW = partial(row, end_bias=-3.0)
SEEDS = range(20)


def run(seed, **changes):
    """Return a session that has ended, and its rounds."""
    params = SessionParams(SamplingParams(), 30, sources=True)
    made = session_of(PROMPT, replace(params, **changes), LIMITS)
    return made, generate(made, ROW, mostly_right(ROW, random.Random(seed)))


# --- runs


@given(NAMES)
def test_runs_and_names_are_two_forms_of_one_thing(names):
    assert names_of(runs_of(names), len(names)) == names


@given(NAMES)
def test_no_two_runs_beside_each_other_have_one_source(names):
    runs = runs_of(names)
    assert all(left[0] != right[0] for left, right in pairwise(runs))


def test_tokens_of_which_nothing_is_known_are_the_targets():
    assert names_of([("remote", 1)], 3) == ["remote", TARGET, TARGET]


def test_runs_beyond_the_tokens_are_cut():
    assert names_of([("remote", 3)], 2) == ["remote", "remote"]


@pytest.mark.parametrize(
    ("begin", "end", "names"),
    [
        (4, 8, [TARGET, "grammar", "remote", TARGET]),
        (5, 7, ["grammar", "remote"]),
        (2, 4, [TARGET, TARGET]),
    ],
)
def test_a_record_begins_with_the_ids_that_were_generated_here(begin, end, names):
    recorder = SourceRecorder(5)
    recorder.take([SourceDrafts("grammar", 2, 2, 1), SourceDrafts("remote", 2, 1, 1)], 3)
    assert recorder.between(begin, end) == names


# --- a session


@pytest.mark.parametrize("stop", [(), ("ab",), ("abba",)])
@pytest.mark.parametrize("seed", SEEDS)
def test_runs_count_the_ids_of_a_round_and_its_accepted_drafts(seed, stop):
    _, rounds = run(seed, stop=stop)
    for done in rounds:
        names = names_of(done.text.sources, len(done.text.ids))
        accepted = done.text.accepted
        assert names == ["remote"] * accepted + [TARGET] * (len(names) - accepted)


@pytest.mark.parametrize("max_tokens", [0, 1, 2, 3, 30])
@pytest.mark.parametrize("seed", SEEDS)
def test_the_report_counts_the_drafts_of_all_runs_and_of_an_end_token(seed, max_tokens):
    made, rounds = run(seed, max_tokens=max_tokens)
    shown = 0
    for done in rounds:
        shown += sum(count for name, count in done.text.sources if name == "remote")
    drafted_ends = 0
    for done in rounds:
        drafted_ends += done.accepted - done.text.accepted
    assert drafted_ends <= 1
    assert made.counts.accepted_by_source["remote"] == shown + drafted_ends


def test_no_sources_are_noted_unless_asked_for():
    made, rounds = run(1, sources=False)
    assert made.token_sources is None
    assert {done.text.sources for done in rounds} == {()}
