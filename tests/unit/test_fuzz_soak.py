"""The fuzz targets, by their corpora, any bytes and broken products; the verdicts of the soak."""

import importlib
from collections import Counter
from typing import get_args

import pytest
from harness.tables import cases
from hypothesis import given
from hypothesis import strategies as st

from fuzz import TARGETS, corpus
from fuzz.codec import REASONS
from soak.report import untouched
from soak.truth import Text, Told, judge
from specmesh.core import events as ev
from specmesh.core.drafter.reading import TextReading
from specmesh.core.drafter.window import Windows
from specmesh.core.kv_contents import ANY_LENGTH
from specmesh.core.prefix import Prefix
from specmesh.core.sampling.sampler import SamplingParams
from specmesh.core.verifier import session
from specmesh.core.verifier.accept import Acceptance
from specmesh.core.verifier.session import VerifierSession
from specmesh.wire import codec
from specmesh.wire import messages as m

MESSAGES = {message.__name__ for message in get_args(m.Message)}
VERIFIER = "Truth Sync Nack Round Rollback Finish accepted rejected stale waits solved resumed"
DRAFTER = "Draft DraftProbs Nack KVCut Learned accepted sampled"
WINDOWS = {"drafts of a window", "takeover", "window of an earlier turn"}
REACHED = {
    "codec": REASONS | MESSAGES,
    "verifier_session": {"no event", *VERIFIER.split()},
    "drafter_session": {"no event", *DRAFTER.split()},
    "drafter_windows": {"Draft", "Nack", "DraftingEnded", "Learned", "read", *WINDOWS},
}
"""Messages, refusals, effects and turns that some input of each corpus reaches."""


def run(target, data):
    return importlib.import_module(f"fuzz.{target}").run(data)


def run_corpus(target):
    """Return how often each thing happened; raise the target's error with the input's path."""
    seen = Counter()
    for path in corpus(target):
        try:
            seen += run(target, path.read_bytes())
        except Exception as error:
            error.add_note(str(path))
            raise
    return seen


@pytest.mark.parametrize("target", TARGETS)
def test_no_input_of_a_corpus_breaks_its_target(target):
    """Together they reach all that the target can do."""
    assert REACHED[target] <= set(run_corpus(target))


@pytest.mark.parametrize("target", TARGETS)
@given(st.sampled_from([b"", b"SM\x02"]), st.binary(max_size=400))
def test_no_input_breaks_a_target(target, begin, data):
    run(target, begin + data)


# --- a broken product is noticed


def believe_drafts(drafts, choose, **_):
    committed = drafts[:1] or (choose(0),)
    count = min(len(drafts), 1)
    return Acceptance(committed=committed, accepted=count, tested=count, ended=False)


STEPPED = VerifierSession.stepped


def step_without_trims(self, *step, **fields):
    effects = STEPPED(self, *step, **fields)
    return [effect for effect in effects if not isinstance(effect, ev.Rollback)]


def take_any_piece(self, row, _):
    """Count a piece of the next window, whatever happened to the text meanwhile."""
    if self.spare is not None:
        self.spare.length += row.bos + len(row.ids)
    return []


def limit_no_slot(*_):
    return ANY_LENGTH


def hold_any_prefix(*_):
    return True


@pytest.mark.parametrize(
    ("target", "place", "name", "broken"),
    [
        ("verifier_session", session, "accept", believe_drafts),
        ("verifier_session", VerifierSession, "stepped", step_without_trims),
        ("drafter_session", Prefix, "holds", hold_any_prefix),
        ("drafter_windows", TextReading, "read_piece", take_any_piece),
        ("drafter_windows", Windows, "limit", limit_no_slot),
        ("codec", codec, "MAX_DEPTH", 10**9),
    ],
)
def test_a_broken_product_is_noticed(target, place, name, broken, monkeypatch):
    monkeypatch.setattr(place, name, broken)
    with pytest.raises((AssertionError, LookupError, RecursionError, ValueError)):
        run_corpus(target)


# --- the soak


def judged(answer, max_tokens=4, *, ended=False, excused=False):
    """Return the verdict about an answer, whose ids are those of its text or of another one."""
    ids = answer.get("ids", answer["text"]).encode()
    told = Told(**answer | {"ids": [*ids]})
    truth = Text("p", SamplingParams(), (65, 66, 67, 68), ended=ended)
    return judge(told, truth, max_tokens, ids.decode(), excused=excused, waits=False)


@cases(
    "answer, max_tokens, verdict",
    """
    [{"text": "ABCD", "finish": "length"}, 4, "complete"]
    [{"text": "AB", "finish": "length"}, 4, "incomplete"]
    [{"text": "AB", "finish": "cancelled"}, 2, "incomplete"]
    [{"text": "A", "error": "x"}, 4, "incomplete"]
    [{"text": "ABC", "finish": "length"}, 2, "mismatch"]
    [{"text": "ABC", "finish": "length", "ids": "ABCD"}, 4, "mismatch"]
    [{"text": "ABD", "error": "x"}, 4, "mismatch"]
    [{"text": "A", "left": true}, 4, "excused"]
    """,
)
def test_verdicts(answer, max_tokens, verdict):
    assert judged(answer, max_tokens) == verdict


@cases("finish, verdict", '["stop", "complete"] ["length", "incomplete"]')
def test_a_text_that_ends_must_stop(finish, verdict):
    assert judged({"text": "ABCD", "finish": finish}, 9, ended=True) == verdict


@cases(
    "answer, verdict",
    """
    [{"text": "A", "error": "x", "opened": true}, "excused"]
    [{"text": "", "error": "x"}, "excused"]
    [{"text": "B", "error": "x"}, "mismatch"]
    [{"text": "A", "finish": "length"}, "incomplete"]
    """,
)
def test_faults_excuse_a_missing_rest(answer, verdict):
    """The part that came must be right all the same."""
    assert judged(answer, excused=True) == verdict


MAPPINGS = """
7f0000000000-7f0004000000 {rights} 00000000 00:00 {inode} {name}
Size:              65536 kB
Anonymous:         16384 kB
Swap:               1024 kB
"""


@pytest.mark.parametrize(
    ("rights", "name", "reserved"),
    [
        ("rw-p", "", 48128),
        ("rw-p", "[heap]", 0),
        ("rw-p", "/models/target.gguf", 0),
        ("---p", "", 0),
    ],
)
def test_reserved_memory_counts_before_it_is_written_to(rights, name, reserved):
    """A soak would take the first use of a model's cells for growth."""
    smaps = MAPPINGS.format(rights=rights, inode=len(name), name=name).replace(" \n", "\n")
    assert untouched(smaps) == reserved * 1024
