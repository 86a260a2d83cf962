"""Sessions with a grammar: the text is in its language, and the same for every drafter."""

import json
import random
from contextlib import closing
from functools import partial
from itertools import product

import numpy as np
import pytest
from harness.sessions import generate, ids_of, mostly_right
from harness.sessions import session as session_of
from harness.tables import cases
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fuzz.oracle import row
from specmesh.core.prefix import Prefix
from specmesh.core.sampling.constraint import (
    MAX_GRAMMAR,
    DraftConstraint,
    Grammar,
    GrammarKind,
    check_grammar,
    masked,
)
from specmesh.core.sampling.sampler import FORBIDDEN, Penalties, Sampler, SamplingParams
from specmesh.core.session_params import SessionParams, TargetLimits, opened_options, wire_params
from specmesh.core.vocabulary.vocabulary import Vocabulary
from specmesh.engines.grammar import Grammars
from specmesh.errors import RequestError
from specmesh.wire.codec import encode
from specmesh.wire.messages import FinishReason, Opened

FEW = settings(max_examples=settings().max_examples // 4)
PIECES = (b"", b"a", b"b", b"c", b"ab", b"bc", b"abc", b"ca", b"d")
N_VOCAB = len(PIECES)
END = 0
PROMPT = (8, 8)
ASTRAY = 8  # in no language

TARGET = partial(row, n_vocab=N_VOCAB, end_bias=0.0)


@pytest.fixture(scope="module")
def grammars():
    with closing(Grammars(Vocabulary(PIECES, frozenset({END})))) as made:
        yield made


def language(grammars, texts):
    """Return a constraint to these texts at its start."""
    alternatives = [f'"{text.decode()}"' for text in sorted(texts)]
    return grammars.compile(Grammar(GrammarKind.GBNF, f"root ::= {' | '.join(alternatives)}"))


def session(constraint, sampling, *, draft_n=None, max_tokens=100):
    limits = TargetLimits(512, N_VOCAB, frozenset({END}), max_drafts=8, pieces=PIECES)
    params = SessionParams(sampling, max_tokens, draft_n=draft_n)
    return session_of(PROMPT, params, limits, constraint=constraint)


def finish(made, drafter=None):
    return ids_of(generate(made, TARGET, drafter))


def spelt(ids):
    return b"".join(PIECES[token] for token in ids)


# --- drafters


def hostile(seed):
    """Drafts anything."""
    luck = random.Random(seed)

    def drafts(_):
        return [luck.randrange(N_VOCAB) for _ in range(luck.randrange(1, 9))]

    return drafts


def knowing(fresh, sampling):
    """Drafts the target's own choices in the language."""
    sampler = Sampler(sampling)

    def drafts(made):
        guide = fresh()
        for token in made.text_ids():
            guide.accept(token)
        prefix = Prefix(made.prefix[0:])
        ids = []
        while len(ids) < 6 and not guide.complete:
            logits = np.where(guide.allowed(), TARGET(prefix.crc), -1e30)
            token = int(sampler.choose(logits, len(prefix)))
            ids.append(token)
            if token == END:
                break
            guide.accept(token)
            prefix.extend([token])
        return ids or [1]

    return drafts


def drafter_of(name, fresh, sampling):
    """Return a drafter; an ignorant one drafts mostly the target's choices without a grammar."""
    match name:
        case "hostile":
            return hostile(sampling.seed)
        case "knowing":
            return knowing(fresh, sampling)
        case "ignorant":
            return mostly_right(TARGET, random.Random(sampling.seed), n_vocab=N_VOCAB)
        case _:
            return None


# --- texts

languages = st.sets(st.text("abc", min_size=1, max_size=9).map(str.encode), min_size=1, max_size=8)
temperatures = st.sampled_from([0.0, 0.7, 3.0])
seeds = st.integers(0, 99)
lengths = st.integers(1, 12)
any_text = given(texts=languages, temperature=temperatures, seed=seeds, most=lengths)
any_drafts = given(texts=languages, seed=seeds, data=st.data())


@FEW
@any_text
def test_a_text_is_in_the_language(grammars, texts, temperature, seed, most):
    """One that is cut begins a text of it."""
    sampling = SamplingParams(temperature=temperature, seed=seed)
    made = session(language(grammars, texts), sampling, max_tokens=most)
    text = spelt(finish(made))
    if made.finished == FinishReason.LENGTH:
        assert any(whole.startswith(text) for whole in texts)
    else:
        assert text in texts


@FEW
@any_text
@pytest.mark.parametrize("draft_n", [None, 0, 8])
@pytest.mark.parametrize("drafter", ["none", "hostile", "knowing", "ignorant"])
def test_a_text_is_the_same_for_every_drafter(
    grammars, texts, temperature, seed, most, drafter, draft_n
):
    sampling = SamplingParams(temperature=temperature, top_k=seed % 3, seed=seed)
    fresh = partial(language, grammars, texts)
    alone = session(fresh(), sampling, draft_n=0, max_tokens=most)
    made = session(fresh(), sampling, draft_n=draft_n, max_tokens=most)
    assert finish(made, drafter_of(drafter, fresh, sampling)) == finish(alone)


class Tiring:
    """A constraint whose library gives up after so many ids of a text, and over drafts before."""

    def __init__(self, library, most, drafted):
        self.library = library
        self.left = most
        self.drafted = drafted

    def __getattr__(self, name):
        return getattr(self.library, name)

    def accept(self, token):
        self.left -= 1
        self.library.accept(token)

    def rollback(self, count):
        self.left += count
        self.library.rollback(count)

    def allows(self, token):
        return self.left > 0 and self.library.allows(token)

    def allowed(self):
        if self.left <= 0:
            raise RequestError("it takes too much", "grammar")
        return self.library.allowed()

    def count_allowed(self, ids):
        self.drafted -= len(ids)
        return self.library.count_allowed(ids) if self.drafted >= 0 else 0


WORDS = [*map(bytes, product(b"ab", repeat=5))]
tiring = given(
    limits=st.fixed_dictionaries(
        {
            "most": st.integers(0, 6),
            "drafted": st.integers(0, 40),
            "temperature": st.sampled_from([0.0, 0.7]),
            "seed": seeds,
        }
    )
)


def tired(grammars, limits, drafter="none"):
    """Return the text of a grammar that gives up, and the reason of its end."""
    sampling = SamplingParams(temperature=limits["temperature"], seed=limits["seed"])
    fresh = partial(language, grammars, WORDS)
    made = session(Tiring(fresh(), limits["most"], limits["drafted"]), sampling)
    return finish(made, drafter_of(drafter, fresh, sampling)), made.finished


@FEW
@tiring
@pytest.mark.parametrize("drafter", ["hostile", "knowing"])
def test_a_grammar_gives_up_at_the_same_place_for_every_drafter(grammars, limits, drafter):
    assert tired(grammars, limits, drafter) == tired(grammars, limits)


@FEW
@tiring
def test_a_text_whose_grammar_gives_up_ends_in_an_error(grammars, limits):
    ids, reason = tired(grammars, limits)
    assert (reason == "error") == (len(spelt(ids)) < 5)


# --- at the drafter


def guided(grammars, texts, seed):
    """Return a text, the constraint of its drafter, and the sampler without one."""
    sampling = SamplingParams(temperature=1.0, seed=seed)
    ids = finish(session(language(grammars, texts), sampling))
    return ids, DraftConstraint(language(grammars, texts), {END}), Sampler(sampling)


def sampler_after(drafts, plain, ids):
    return drafts.sampler(plain, len(ids), lambda count: ids[len(ids) - count :])


@FEW
@any_drafts
def test_guided_drafts_are_the_targets_choices(grammars, texts, seed, data):
    """After any beginning of the text, in any order."""
    ids, drafts, plain = guided(grammars, texts, seed)
    assume(ids)
    for at in data.draw(st.lists(st.integers(0, len(ids) - 1), max_size=12)):
        prefix = Prefix((*PROMPT, *ids[:at]))
        sampler = sampler_after(drafts, plain, list(ids[:at]))
        assert sampler.choose(TARGET(prefix.crc), len(prefix)) == ids[at]


@FEW
@any_drafts
def test_drafts_are_not_guided_after_a_text_that_the_grammar_forbids(grammars, texts, seed, data):
    """They are guided again after the part that it allows."""
    ids, drafts, plain = guided(grammars, texts, seed)
    begun = list(ids[: data.draw(st.integers(0, len(ids)))])
    assert sampler_after(drafts, plain, [*begun, ASTRAY]) is plain
    assert sampler_after(drafts, plain, begun) is not plain


def test_an_engine_does_not_choose_guided_drafts_itself(grammars):
    _, drafts, _ = guided(grammars, {b"ab"}, 1)
    assert not sampler_after(drafts, Sampler(SamplingParams()), []).argmax


# --- grammars as values, and rows that are masked

TOO_LONG = "x" * (MAX_GRAMMAR + 1)


@cases(
    "kind, text, field, why",
    r"""
    ["gbnf", $LONG, "grammar", "bytes"]
    ["gbnf", " \n", "grammar", "empty"]
    ["gbnf", "root ::= \"x\" # \u0001", "grammar", "control characters"]
    ["gbnf", "\udc80", "grammar", "not valid Unicode"]
    ["json_schema", "\udc80", "json_schema", "not valid Unicode"]
    ["json_schema", "{", "json_schema", "not JSON"]
    ["json_schema", $DEEP, "json_schema", "nested too deeply"]
    ["json_schema", "[]", "json_schema", "must be a JSON object"]
    ["json_schema", $LARGE, "json_schema", "bytes"]
    ["tools", "[]", "tools", "must be a JSON object"]
    """,
    LONG=TOO_LONG,
    DEEP="[" * 20_000,
    LARGE=json.dumps({"title": TOO_LONG}),
)
def test_an_impossible_grammar_is_refused(kind, text, field, why):
    with pytest.raises(RequestError, match=why) as refused:
        check_grammar(Grammar(GrammarKind(kind), text))
    assert refused.value.param == field


BIASES = ((3, FORBIDDEN), (5, 100.0), (7, FORBIDDEN))


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(temperature=0.8),
        SamplingParams(temperature=100.0, seed=3),
        SamplingParams(temperature=0.7, top_k=5, top_p=0.99),
        SamplingParams(temperature=0.7, min_p=0.01),
        SamplingParams(temperature=0.7, top_p=0.999999999999),
        SamplingParams(temperature=1.0, penalties=Penalties(100, 100, 100)),
        SamplingParams(temperature=1.0, penalties=Penalties(0.01, -100, -100)),
        SamplingParams(logit_bias=BIASES),
        SamplingParams(temperature=1.0, logit_bias=BIASES),
    ],
)
def test_no_forbidden_id_wins(params):
    assert chosen(params) <= {3, 7}


def chosen(params):
    """Return the ids that are chosen from rows that allow 3 and 7."""
    allowed = np.zeros(64, np.bool_)
    allowed[[3, 7]] = True
    rows = np.random.default_rng(1).normal(0, 8, (50, 64)).astype(np.float32)
    with np.errstate(all="raise", under="ignore"):
        sampler = Sampler(params, (5, 5, 3))
        return {sampler.choose(masked(row, allowed), at) for at, row in enumerate(rows)}


# --- the grammar of a drafter


@pytest.mark.parametrize(
    ("text", "fits"), [("x" * 300_000, True), ('"' * 300_000, False), ("ü" * 300_000, False)]
)
def test_a_grammar_that_no_frame_holds_is_left_out(text, fits):
    """Escapes and bytes count; the rest of the session is the same."""
    grammar = Grammar(GrammarKind.TOOLS, text)
    params = SessionParams(SamplingParams(), 9, stop=("x",), grammar=grammar)
    options = opened_options(params)
    assert (options["grammar"] is not None, options["grammar_kind"] is not None) == (fits, fits)
    assert options | params.named() == params.named()
    encode(Opened(1, 0, 5, options))


@pytest.mark.parametrize("kind", GrammarKind)
def test_the_wire_has_the_thought_that_comes_before_a_grammar(kind):
    text = "{}" if kind != GrammarKind.GBNF else 'root ::= "a"'
    inside = "" if kind == GrammarKind.TOOLS else "think!"
    params = SessionParams(
        SamplingParams(), 9, grammar=Grammar(kind, text, inside), thinking="think!"
    )
    read = wire_params(params.named())
    assert (read.grammar, read.thinking) == (params.grammar, "think!")
