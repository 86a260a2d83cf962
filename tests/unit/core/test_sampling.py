"""Sampling that is coupled with the drafter's: exact for the target and the same everywhere.

Its noise, its penalties, and stop strings.
"""

import codecs
import math
from collections import Counter

import numpy as np
import pytest
from harness.tables import cases, rows
from hypothesis import example, given, settings
from hypothesis import strategies as st

from specmesh.core.sampling.noise import gumbel
from specmesh.core.sampling.sampler import Penalties, Sampler, SamplingParams, penalised
from specmesh.core.session_params import stops_of
from specmesh.core.text.stop import StopScan, StopTextFilter
from specmesh.core.vocabulary.vocabulary import Vocabulary
from specmesh.errors import RequestError

M64 = 2**64 - 1

# Chi-square quantiles at 0.9999 by degrees of freedom: a right sampler fails once in 10,000 seeds.
CHI_SQUARE = {1: 15.14, 2: 18.42, 3: 21.11, 4: 23.51, 7: 29.88}

quarters = st.lists(st.integers(-40, 40), min_size=1, max_size=24)
small_rows = quarters.map(lambda values: np.array(values, np.float32) / 4)


def wide(seed, size, kind):
    """A row of a large vocabulary: spread, with many ties, peaked, partly impossible, or flat."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 3, size).astype(np.float32)
    match kind:
        case "ties":
            logits = np.round(logits)
        case "peaked":
            logits[rng.integers(0, size, 3)] += 30
        case "impossible":
            logits[rng.random(size) < 0.9] = -np.inf
            logits[0] = 0.0
        case "flat":
            logits[:] = 1.5
    return logits


kinds = st.sampled_from(["spread", "ties", "peaked", "impossible", "flat"])
sizes = st.sampled_from([1000, 10_509, 20_001])
wide_rows = st.builds(wide, st.integers(0, 2**32), sizes, kinds)
seeds = st.integers(0, M64)
positions = st.integers(0, 2**31)
texts = st.lists(st.integers(0, 30), max_size=30)


def softmax(logits, temperature=1.0):
    weights = np.exp((logits - logits.max()).astype(np.float64) / temperature)
    return weights / weights.sum()


def naive_support(logits, top_k=0, top_p=1.0, min_p=0.0):
    """Return the ids that all filters leave; of equal logits the lower id comes first."""
    order = np.argsort(-logits, kind="stable")
    if top_k:
        order = order[:top_k]
    if top_p < 1:
        shares = np.cumsum(softmax(logits[order]))
        order = order[: np.searchsorted(shares, top_p) + 1]
    if min_p > 0:
        least = logits[order[0]] + math.log(min_p)
        order = order[logits[order] >= least]
    return order.tolist()


def draw(logits, positions, **params):
    sampler = Sampler(SamplingParams(**params))
    return [sampler.choose(logits, position) for position in positions]


# --- what is chosen


@pytest.mark.parametrize("temperature", [0.0, 5e-324, 1e-310, 1e-307, 1e-45, 9.9e-6])
@cases("filters", '{} {"top_k": 5} {"top_p": 0.9} {"min_p": 0.1}')
def test_an_almost_cold_choice_is_the_largest_logit(temperature, filters):
    """Some clients send `Number.MIN_VALUE` for "almost 0"."""
    logits = wide(3, 1000, "spread")
    params = SamplingParams(temperature=temperature, seed=1, **filters)
    sampler = Sampler(params)
    assert {sampler.choose(logits, position) for position in range(20)} == {int(logits.argmax())}
    assert sampler.distribution(logits).argmax() == logits.argmax()
    assert params == SamplingParams(seed=1, **filters)
    assert SamplingParams(temperature=1e-5).temperature == 1e-5, "the least one"


@pytest.mark.parametrize(
    ("seed", "draws"),
    [
        (1, 8000),
        (M64, 2000),
        pytest.param(1, 40_000, marks=pytest.mark.slow),
        pytest.param(M64, 40_000, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize(
    ("logits", "params"),
    rows("""
    [[0.0, 1.0, 2.0, -1.0, 0.5], {"temperature": 1.0}]
    [[0.0, 1.0, 2.0, -1.0, 0.5], {"temperature": 0.5}]
    [[0.3, 0.3, 0.3, 0.3, 0.3, 0.3, 0.3, 0.3], {"temperature": 1.0}]
    [[0.0, 1.0, 2.0, -1.0, 0.5], {"temperature": 1.0, "top_k": 3}]
    [[0.0, 1.0, 2.0, -1.0, 0.5], {"temperature": 0.8, "top_p": 0.9}]
    [[0.0, 1.0, 2.0, -1.0, 0.5], {"temperature": 1.2, "min_p": 0.1}]
    """),
    ids=["plain", "cold", "uniform", "top-k", "top-p", "min-p"],
)
def test_coupled_sampling_is_exact(logits, params, draws, seed):
    logits = np.array(logits, np.float32)
    filters = params.copy()
    temperature = filters.pop("temperature")
    support = naive_support(logits, **filters)
    counts = Counter(draw(logits, range(draws), seed=seed, **params))
    assert set(counts) <= set(support)
    expected = draws * softmax(logits[support], temperature)
    found = np.array([counts[token] for token in support])
    assert sum((found - expected) ** 2 / expected) < CHI_SQUARE[len(support) - 1]


top_ks = st.integers(0, 30) | st.sampled_from([300, 10**6])
FILTERS = {"top_k": top_ks, "top_p": st.floats(0.001, 1.0), "min_p": st.floats(0.0, 1.0)}
filter_sets = st.fixed_dictionaries({}, optional=FILTERS)


@given(small_rows | wide_rows, filter_sets, positions, seeds)
def test_support_is_every_filter_in_order(logits, filters, position, seed):
    """The support is top-k's, then top-p's and min-p's, each of the ids that are left.

    Sums over a large vocabulary may differ in their last bits: by one id, or by ids that are never
    chosen.
    """
    sampler = Sampler(SamplingParams(temperature=1.0, seed=seed, **filters))
    found = sampler.candidates(logits)
    ids = [*found.ids]
    kept = set(ids)
    in_order = [token for token in naive_support(logits) if token in kept]
    assert ids in (in_order, [*range(len(logits))])
    apart = [*kept.symmetric_difference(naive_support(logits, **filters))]
    may_differ = len(logits) > 24 and "top_p" in filters
    assert len(apart) <= int(may_differ) or softmax(logits)[apart].sum() < 1e-15
    assert np.array_equal(found.scores, logits[ids])
    assert sampler.choose(logits, position) in ids


@settings(max_examples=settings().max_examples // 4)
@given(
    st.integers(0, 2**32), st.sampled_from([0.05, 1.0, 5.0]), st.floats(0.1, 4.0), positions, seeds
)
def test_ids_that_are_not_looked_at_could_not_have_won(shape, spread, temperature, position, seed):
    logits = np.random.default_rng(shape).normal(0, spread, 5000).astype(np.float32)
    logits[::7] = -np.inf
    noise = gumbel(np.uint64(seed), position, np.arange(5000))
    best = (logits.astype(np.float64) / temperature + noise).argmax()
    sampler = Sampler(SamplingParams(temperature=temperature, seed=seed))
    assert sampler.choose(logits, position) == best


# --- noise

GOLDEN = 0x9E3779B97F4A7C15


def mix(value):
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & M64
    value = (value ^ value >> 27) * 0x94D049BB133111EB & M64
    return value ^ value >> 31


@given(seeds, positions, st.integers(0, 2**31 - 1))
def test_noise_is_the_documented_function(seed, position, token):
    place = mix((seed + GOLDEN * (position + 1)) & M64)
    bits = mix(place ^ (GOLDEN * (token + 1)) & M64)
    expected = -math.log(-math.log(((bits >> 12) + 0.5) * 2.0**-52))
    [found] = gumbel(np.uint64(seed), position, np.array([token]))
    assert found == pytest.approx(expected, rel=1e-9, abs=1e-12)


# --- biases and penalties


BIASED = np.array([0.0, 3.0, 2.0], np.float32)


@pytest.mark.parametrize(
    ("temperature", "bias", "chosen"),
    [(0.0, (1, -math.inf), {2}), (2.0, (1, -math.inf), {0, 2}), (2.0, (0, 100.0), {0})],
)
def test_a_bias_forbids_and_forces(temperature, bias, chosen):
    ids = draw(BIASED, range(200), temperature=temperature, logit_bias=(bias,))
    assert set(ids) == chosen


repeats = st.sampled_from([1.0, 1.1, 2.0, 0.5])
frequencies = st.sampled_from([0.0, 0.5, -1.0])
presences = st.sampled_from([0.0, 1.5])


@given(small_rows, texts, repeats, frequencies, presences)
def test_each_id_of_the_text_pays(logits, ids, repeat, frequency, presence):
    row = penalised(logits, ids, Penalties(repeat, frequency, presence))
    for token, score in enumerate(logits.tolist()):
        expected = score
        times = ids.count(token)
        if times:
            expected = score * repeat if score <= 0 else score / repeat
            expected -= times * frequency + presence
        assert row[token] == pytest.approx(expected, abs=1e-5)


@cases("window, latest", "[2, [2, 3]] [9, [1, 2, 3]] [-1, [1, 2, 3]]")
def test_the_window_is_the_latest_ids(window, latest):
    assert list(Penalties(2.0, window=window).latest([1, 2, 3])) == latest


def test_penalties_without_effect_are_false():
    assert not Penalties(2.0, window=0)
    assert not Penalties()
    assert Penalties(frequency=-1.0)


# --- stop strings, in ids and in text

PIECES = (b"a", b"b", b"ab", b"ba", b"", b"\xc3", b"\xa9", b"abab", b"\xf0\x9f", b"\xff")
VOCABULARY = Vocabulary(PIECES, frozenset())
STOPS = st.lists(st.text("abé", min_size=1, max_size=4), max_size=6)
IDS = st.lists(st.integers(0, len(PIECES) - 1), max_size=20)


@given(STOPS, IDS)
@example(["ab"], [0, 1])
@example(["bé"], [1, 5, 6])
def test_the_scan_notices_the_first_id_that_completes_one(stops, ids):
    scan = StopScan(stops, PIECES)
    raw = b""
    for token in ids:
        raw += PIECES[token]
        found = any(stop.encode() in raw for stop in stops)
        assert scan.completes(token) == found
        if found:
            return


@given(STOPS, IDS, st.data())
@pytest.mark.fault("E7.83")
def test_the_text_before_a_stop_string_is_shown(stops, ids, data):
    """The last id is the first that completes a stop string; ids come in any pieces.

    Ids are reported if their text begins before the stop string. No id is reported whose text may
    be the beginning of one.
    """
    scan = StopScan(stops, PIECES)
    stop_at = (count for count, token in enumerate(ids, 1) if scan.completes(token))
    left = ids = ids[: next(stop_at, len(ids))]
    whole = decoded(ids, final=True)
    found = [whole.find(stop) for stop in stops if stop in whole]
    expected = whole[: min(found, default=None)]
    text_filter = StopTextFilter(VOCABULARY, stops)
    begins = []
    shown = ""
    while left:
        count = data.draw(st.integers(1, len(left)))
        passage = text_filter.feed(left[:count])
        left = left[count:]
        begins += passage.begins
        shown += passage.text
        assert expected.startswith(shown)
        assert not stops or all(start < len(shown) for start in begins)
    passage = text_filter.finish()
    assert shown + passage.text == expected
    starts = [len(decoded(ids[:count])) for count in range(len(ids))]
    if found:
        starts = [start for start in starts if start < len(expected)]
    assert [*begins, *passage.begins] == starts


LONG = "x" * 1024


@pytest.mark.parametrize("stops", [["x"] * 65, [LONG + "x"], [LONG] * 17, ["a\ufffd"], ["\ud800"]])
def test_stops_that_cannot_be(stops):
    with pytest.raises(RequestError, match="stop") as refused:
        stops_of(stops)
    assert refused.value.param == "stop"


def decoded(ids, *, final=False):
    """Return the text of ids, without a last character that is not complete unless it is final."""
    raw = b"".join(PIECES[token] for token in ids)
    return codecs.getincrementaldecoder("utf-8")("replace").decode(raw, final)
