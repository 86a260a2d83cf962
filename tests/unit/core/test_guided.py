"""Sessions with a constraint: text in its language, the same for every drafter, and drafts counted as what they are;
what can be a grammar, and rows that are masked."""

import json
import random
from contextlib import closing
from functools import partial
from itertools import product

import numpy as np
import pytest
from harness.sessions import generate, ids_of, mostly_right
from harness.sessions import session as session_of
from hypothesis import given, settings
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
from specmesh.core.session_params import (
    SessionParams,
    TargetLimits,
    opened_options,
    wire_params,
)
from specmesh.core.vocabulary.vocabulary import Vocabulary
from specmesh.engines.grammar import Grammars
from specmesh.errors import RequestError
from specmesh.wire.codec import encode
from specmesh.wire.messages import Opened

FEW = settings(max_examples=settings().max_examples // 4)
PIECES = (b"", b"a", b"b", b"c", b"ab", b"bc", b"abc", b"ca", b"d")
END, N_VOCAB = 0, len(PIECES)
PROMPT = (8, 8)

TARGET = partial(row, n_vocab=N_VOCAB, end_bias=0.0)


@pytest.fixture(scope="module")
def grammars():
    with closing(Grammars(Vocabulary(PIECES, frozenset({END})))) as made:
        yield made


def language(grammars, texts):
    """A constraint to these texts at its start."""
    spelt = " | ".join(f'"{text.decode()}"' for text in sorted(texts))
    return grammars.compile(Grammar(GrammarKind.GBNF, f"root ::= {spelt}"))


def session(constraint, sampling, *, draft_n=None, max_tokens=100):
    limits = TargetLimits(512, N_VOCAB, frozenset({END}), 8, PIECES)
    return session_of(
        PROMPT, SessionParams(sampling, max_tokens, draft_n), limits, constraint=constraint
    )


def finish(made, drafter=None):
    return ids_of(generate(made, TARGET, drafter))


def spelt(ids):
    return b"".join(PIECES[token] for token in ids)


def anything(luck):
    return lambda _: [luck.randrange(N_VOCAB) for _ in range(luck.randrange(1, 9))]


def knowing(fresh, sampling):
    def drafts(made):
        guide, ids = fresh(), []
        for token in made.said():
            guide.accept(token)
        known, sampler = Prefix(made.prefix[0:]), Sampler(sampling)
        while len(ids) < 6 and not guide.complete:
            ids.append(
                int(sampler.choose(np.where(guide.allowed(), TARGET(known.crc), -1e30), len(known)))
            )
            if ids[-1] == END:
                break
            guide.accept(ids[-1])
            known.extend(ids[-1:])
        return ids or [1]

    return drafts


LANGUAGES = st.sets(st.text("abc", min_size=1, max_size=9).map(str.encode), min_size=1, max_size=8)


@FEW
@given(LANGUAGES, st.sampled_from([0.0, 0.7, 3.0]), st.integers(0, 99), st.integers(1, 12))
def test_the_text_is_in_the_language_and_the_same_for_every_drafter(
    grammars, texts, temperature, seed, most
):
    sampling, fresh = (
        SamplingParams(temperature, top_k=seed % 3, seed=seed),
        partial(language, grammars, texts),
    )
    hostile, knows = anything(random.Random(seed)), knowing(fresh, sampling)
    ignorant = mostly_right(TARGET, random.Random(seed), n_vocab=N_VOCAB)
    ways = (
        (None, None),
        (None, 3),
        (hostile, None),
        (hostile, 8),
        (knows, None),
        (ignorant, None),
        (ignorant, 0),
    )
    [ids] = {
        finish(session(fresh(), sampling, draft_n=n, max_tokens=most), drafter)
        for drafter, n in ways
    }
    alone = session(fresh(), sampling, draft_n=0, max_tokens=most)
    finish(alone)
    if alone.finished == "stop":
        assert spelt(ids) in texts
    else:
        assert len(ids) == most
        assert any(text.startswith(spelt(ids)) for text in texts)


class Tiring:
    """One whose library gives up for good after so many ids of a text, and over drafts before that."""

    def __init__(self, library, most, drafted):
        self.library, self.left, self.drafted = library, most, drafted

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


@FEW
@given(st.integers(0, 6), st.integers(0, 40), st.sampled_from([0.0, 0.7]), st.integers(0, 99))
def test_a_grammar_that_breaks_does_so_at_the_same_place_for_every_drafter(
    grammars, most, drafted, temperature, seed
):
    fresh = partial(language, grammars, [bytes(text) for text in product(b"ab", repeat=5)])
    sampling, told = SamplingParams(temperature, seed=seed), []
    for drafter in (None, anything(random.Random(seed)), knowing(fresh, sampling)):
        made = session(Tiring(fresh(), most, drafted), sampling)
        told.append((finish(made, drafter), made.finished))
    assert told[1:] == told[:1] * 2
    assert told[0][1] == "error" or len(spelt(told[0][0])) == 5


# --- at the drafter


@FEW
@given(LANGUAGES, st.integers(0, 99))
def test_guided_guesses_are_what_the_target_would_say(grammars, texts, seed):
    luck, sampling = random.Random(seed), SamplingParams(1.0, seed=seed)
    whole = finish(session(language(grammars, texts), sampling))
    drafts, plain = DraftConstraint(language(grammars, texts), {END}), Sampler(sampling)
    for _ in range(12):
        at = luck.randrange(len(whole))
        said = [*whole[:at]]
        astray = luck.random() < 0.3
        if astray:
            said.append(8)
        known = Prefix((*PROMPT, *said))
        chooser = drafts.sampler(plain, len(said), lambda n, said=said: said[len(said) - n :])
        if astray:
            assert chooser is plain
        else:
            assert not chooser.argmax
            assert chooser.choose(TARGET(known.crc), len(known)) == whole[at]


# --- grammars as values, and rows that are masked

GBNF, SCHEMA = GrammarKind.GBNF, GrammarKind.JSON_SCHEMA


@pytest.mark.parametrize(
    ("grammar", "why"),
    [
        (Grammar(GBNF, "x" * (MAX_GRAMMAR + 1)), "bytes"),
        (Grammar(GBNF, " \n"), "empty"),
        (Grammar(GBNF, 'root ::= "x" # \x01'), "control characters"),
        (Grammar(GBNF, "\udc80"), "not valid Unicode"),
        (Grammar(SCHEMA, "{"), "not JSON"),
        (Grammar(SCHEMA, "[" * 20_000), "nested too deeply"),
        (Grammar(SCHEMA, "[]"), "must be a JSON object"),
        (Grammar(GrammarKind.TOOLS, "[]"), "must be a JSON object"),
        (Grammar(SCHEMA, json.dumps({"title": "x" * MAX_GRAMMAR})), "bytes"),
    ],
)
def test_what_cannot_be_a_grammar(grammar: Grammar, why: str):
    with pytest.raises(RequestError, match=why) as told:
        check_grammar(grammar)
    assert told.value.param == ("grammar" if grammar.kind is GBNF else grammar.kind.value)


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(0.8),
        SamplingParams(100.0, seed=3),
        SamplingParams(0.7, top_k=5, top_p=0.99),
        SamplingParams(0.7, min_p=0.01),
        SamplingParams(0.7, top_p=1 - 1e-12),
        SamplingParams(1.0, logit_bias=((3, FORBIDDEN), (5, 100.0), (7, FORBIDDEN))),
        SamplingParams(0.0, logit_bias=((3, FORBIDDEN), (5, 100.0), (7, FORBIDDEN))),
        SamplingParams(1.0, penalties=Penalties(100.0, 100.0, 100.0)),
        SamplingParams(1.0, penalties=Penalties(0.01, -100.0, -100.0)),
    ],
)
def test_nothing_makes_a_barred_id_win(params: SamplingParams):
    allowed = np.zeros(64, np.bool_)
    allowed[[3, 7]] = True
    rows = np.random.default_rng(1).normal(0, 8, (50, 64)).astype(np.float32)
    with np.errstate(all="raise", under="ignore"):
        chosen = {
            Sampler(params, (5, 5, 3)).choose(masked(row, allowed), position)
            for position, row in enumerate(rows)
        }
    assert chosen <= {3, 7}


# --- what a drafter gets of it


@pytest.mark.parametrize(
    ("text", "fits"), [("x" * 300_000, True), ('"' * 300_000, False), ("ü" * 300_000, False)]
)
def test_a_grammar_that_no_frame_holds_is_left_out(text: str, fits: bool):
    """Escapes and bytes count; all else of the session is the same."""
    grammar = Grammar(GrammarKind.TOOLS, text)
    params = SessionParams(SamplingParams(), 9, stop=("x",), grammar=grammar)
    options = opened_options(params)
    assert (options["grammar"] is not None, options["grammar_kind"] is not None) == (fits, fits)
    assert options | params.named() == params.named()
    encode(Opened(1, 0, 5, options))


@pytest.mark.parametrize("kind", GrammarKind)
def test_the_wire_has_the_thought_that_comes_before_a_grammar(kind: GrammarKind):
    text = "{}" if kind != GrammarKind.GBNF else 'root ::= "a"'
    inside = "" if kind == GrammarKind.TOOLS else "think!"
    params = SessionParams(
        SamplingParams(), 9, grammar=Grammar(kind, text, inside), thinking="think!"
    )
    read = wire_params(params.named())
    assert (read.grammar, read.thinking) == (params.grammar, "think!")
