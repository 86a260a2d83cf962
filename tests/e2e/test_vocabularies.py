"""Drafters whose vocabulary is not the verifier's: each does what is said, and the text is always the verifier's."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from processes import Daemon, Mesh, Stream, body, complete, generate, until

from specmesh.client import Json
from specmesh.engines.load import load_tokenizer

pytest.importorskip("llama_cpp")
pytestmark = pytest.mark.models

SMALL = ("--ctx", 256, "--max-sessions", 4)
PROMPTS = ["def fibonacci(n):\n    ", "hello the theory", "Grüße 😀 "]
N = 60
TARGET: dict[str, object] = {"seed": 1, "words": 58}
"""Every token but the end has text, so a twin can say all that the target says."""

Make = Callable[..., Path]


@pytest.fixture(scope="module")
def verifier(make_gguf: Make, shared: Mesh) -> Daemon:
    """One for all drafters with other vocabularies."""
    return target(make_gguf, shared)


@pytest.fixture
def beside(verifier: Daemon, shared: Mesh) -> Iterator[Mesh]:
    """Where this verifier runs; the test's drafters end with it."""
    before = len(shared.daemons)
    yield shared
    for daemon in shared.daemons[before:]:
        daemon.stop()
    until(lambda: not verifier.stats()["peers"], "the verifier is alone")


def target(make_gguf: Make, mesh: Mesh) -> Daemon:
    return mesh.verifier(make_gguf("target-words", **TARGET), *SMALL, "--reproducible", engine="llama")


def drafter(mesh: Mesh, path: Path, *args: object, name: str | None = None) -> Daemon:
    return mesh.drafter(path, *SMALL, *args, engine="llama", name=name)


def check_texts(verifier: Daemon, daemons: list[Daemon]) -> tuple[int, int]:
    """Greedy and sampled, at every socket: ids and text equal those without drafts. (drafted, accepted) of greedy."""
    drafted = accepted = 0
    for prompt in PROMPTS:
        alone = complete(verifier, body(prompt, N, draft_n=0))
        sampled = body(prompt, N, temperature=0.8, seed=3, top_p=0.95)
        told = complete(verifier, sampled | {"draft_n": 0})
        for daemon in daemons:
            stream = complete(daemon, body(prompt, N, draft_n=3))
            assert (stream.ids, stream.text) == (alone.ids, alone.text)
            report: Json = stream.result["report"]  # type: ignore[assignment]
            drafted += report["drafted"]  # type: ignore[operator]
            accepted += report["accepted"]  # type: ignore[operator]
            again = complete(daemon, sampled | {"draft_n": 3})
            assert (again.ids, again.text) == (told.ids, told.text)
    return drafted, accepted


def sampled_acceptance(verifier: Daemon) -> float:
    """Accepted / drafted at temperature 1."""
    reports: list[Json] = [
        complete(verifier, body(prompt, N, temperature=1.0, seed=seed, draft_n=3)).result["report"]  # type: ignore[misc]
        for prompt in PROMPTS
        for seed in range(3)
    ]
    drafted = sum(report["drafted"] for report in reports)  # type: ignore[misc]
    assert drafted
    return sum(report["accepted"] for report in reports) / drafted  # type: ignore[misc,operator,no-any-return]


def test_permuted_twin(verifier: Daemon, make_gguf: Make, beside: Mesh):
    """The target's own weights under other ids: translated, said once, accepted as often as the identical model."""
    twin = drafter(beside, make_gguf("target-words", **TARGET), name="twin")
    drafted, accepted = check_texts(verifier, [verifier, twin])
    identical, identical_sampled = accepted / drafted, sampled_acceptance(verifier)
    assert twin.stats()["vocabulary"] == {"verdict": "same", "overlap": 1.0}
    assert not twin.events("vocabulary_fetched")
    twin.stop()
    other = drafter(beside, make_gguf("permuted", **TARGET, permute=5), name="permuted")
    drafted, accepted = check_texts(verifier, [verifier, other])
    assert identical > 0.95
    assert accepted / drafted > identical - 0.01
    assert sampled_acceptance(verifier) > identical_sampled - 0.01 > 0.9
    [told] = other.events("vocabulary_permuted")
    assert "under other ids" in str(told["meaning"])
    assert not other.events("encoders_differ")
    assert other.stats()["vocabulary"] == {"verdict": "permuted", "overlap": 1.0}


def check_foreign(verifier: Daemon, mesh: Mesh, draft: Path, permute: int) -> None:
    daemon = drafter(mesh, draft)
    drafted, accepted = check_texts(verifier, [verifier, daemon])
    assert accepted / drafted > 0.3  # random weights: after a foreign token in the text their guesses are any
    [told] = daemon.events("vocabulary_partial")
    assert told["level"] == "warning"
    assert "99.05 % of the tokens have a counterpart" in str(told["meaning"])
    assert "'w" in str(told["meaning"])
    assert permute or "'x" in str(told["meaning"])
    daemon.stop()
    strict = mesh.drafter(draft, *SMALL, "--min-vocab-overlap", 0.995, engine="llama", ready=False, name="strict")
    assert strict.wait() == 78
    assert "99.5 % are needed" in strict.text().splitlines()[-1]


@pytest.mark.parametrize("permute", [0, 6], ids=["same order", "other order"])
def test_foreign_tokens(verifier: Daemon, make_gguf: Make, beside: Mesh, permute: int):
    """1 % foreign tokens: drafts the others, says the share, and still helps."""
    check_foreign(verifier, beside, make_gguf(f"foreign-{permute}", **TARGET, foreign=3, permute=permute), permute)


@pytest.mark.parametrize("permute", [0, 6], ids=["same order", "other order"])
def test_foreign_tokens_of_the_verifier(make_gguf: Make, mesh: Mesh, permute: int):
    """The same where it is the verifier that has others."""
    model = make_gguf(f"foreign-{permute}", **TARGET, foreign=3, permute=permute)
    verifier = mesh.verifier(model, *SMALL, "--reproducible", engine="llama")
    check_foreign(verifier, mesh, make_gguf("target-words", **TARGET), permute)


@pytest.mark.fault(
    "E7.78",
    "vocabularies that differ in size, order, one token, end ids; GGUF and MLX of one model",
    "translated, or refused with the reason; taken for the same",
)
def test_one_token_changed(verifier: Daemon, make_gguf: Make, beside: Mesh):
    """A single foreign token is seen and named."""
    daemon = drafter(beside, make_gguf("one-changed", **TARGET, foreign=1))
    check_texts(verifier, [verifier, daemon])
    [told] = daemon.events("vocabulary_partial")
    assert "is 'x57' for the drafter, 'w57' for the verifier" in str(told["meaning"])


def check_padding(verifier: Daemon, daemon: Daemon) -> None:
    drafted, accepted = check_texts(verifier, [verifier, daemon])
    assert accepted / drafted > 0.95
    assert daemon.stats()["vocabulary"] == {"verdict": "same", "overlap": 1.0}
    assert len(daemon.events("vocabulary_same")) == 1


def test_padding(verifier: Daemon, make_gguf: Make, beside: Mesh):
    """Unused rows at the end of the drafter's table: the same vocabulary, and nearly every draft stands."""
    check_padding(verifier, drafter(beside, make_gguf("padded", **TARGET, pad=64)))


def test_padding_of_the_verifier(make_gguf: Make, mesh: Mesh):
    """At the end of the verifier's."""
    verifier = mesh.verifier(make_gguf("padded", **TARGET, pad=64), *SMALL, "--reproducible", engine="llama")
    check_padding(verifier, drafter(mesh, make_gguf("target-words", **TARGET)))


@pytest.mark.fault("E7.78")
def test_wholly_different(verifier: Daemon, make_gguf: Make, beside: Mesh):
    """Too few tokens in common: exit 78, the reason, and the first differing ids in both spellings."""
    daemon = beside.drafter(make_gguf("stranger", words=58, foreign=58), *SMALL, engine="llama", ready=False)
    assert daemon.wait() == 78
    last = daemon.text().splitlines()[-1]
    first = "262 is 'x00' for the drafter, 'w00' for the verifier"
    for words in ("vocabulary", "stranger", "target-words", "81.81 %", "90 % are needed", first, "same family"):
        assert words in last
    assert generate(verifier, PROMPTS[0], "--max-tokens", 5).code == 0


def test_vocabulary_is_fetched_once(make_gguf: Make, mesh: Mesh):
    """It is cached by fingerprint; a damaged file is ignored, and the vocabulary fetched anew."""
    verifier = target(make_gguf, mesh)
    path = make_gguf("permuted", **TARGET, permute=5)
    first = drafter(mesh, path, name="first")
    assert len(first.events("vocabulary_fetched")) == 1
    first.stop()
    second = drafter(mesh, path, name="second")
    assert (len(second.events("vocabulary_fetched")), len(second.events("vocabulary_from_cache"))) == (0, 1)
    check_texts(verifier, [second])
    second.stop()
    [cached] = mesh.folder.rglob("*.vocabulary")
    whole = cached.read_bytes()
    cached.write_bytes(whole[:40] + b"\x00" + whole[41:])
    third = drafter(mesh, path, name="third")
    assert len(third.events("vocabulary_cache_damaged")) == len(third.events("vocabulary_fetched")) == 1
    assert cached.read_bytes() == whole
    check_texts(verifier, [third])


def test_drafter_meets_another_verifier(make_gguf: Make, mesh: Mesh):
    """A verifier that comes back with another model is compared with anew."""
    verifier = target(make_gguf, mesh)
    daemon = drafter(mesh, make_gguf("permuted", **TARGET, permute=5))
    verifier.stop()
    other = mesh.verifier(make_gguf("permuted", **TARGET, permute=5), *SMALL, engine="llama", name="again")
    mesh.attached(daemon)
    drafted, accepted = check_texts(other, [other, daemon])
    assert accepted / drafted > 0.95
    assert len(daemon.events("vocabulary_same")) == 1


def test_text_is_the_verifiers_at_the_drafters_socket(verifier: Daemon, make_gguf: Make, beside: Mesh):
    """A drafter without a vocabulary, and one with other ids: prompts are read, and text written, by the verifier's."""
    daemons = [
        beside.drafter(engine="ngram", name="ngram"),
        drafter(beside, make_gguf("permuted", **TARGET, permute=5), name="permuted"),
    ]
    for prompt in PROMPTS:
        told = generate(verifier, prompt, "--max-tokens", 80, "--no-draft", "--json").json
        for daemon in daemons:
            done = generate(daemon, prompt, "--max-tokens", 80, "--json").json
            assert [done[name] for name in ("text", "token_ids", "prompt_token_ids")] == [
                told[name] for name in ("text", "token_ids", "prompt_token_ids")
            ]
            shown = generate(daemon, prompt, "--max-tokens", 80).out
            assert shown == "\n".join(re.split("\r\n|\r", f"{told['text']}\n"))  # as Python reads a pipe's text


@pytest.mark.fault("E7.83")
def test_no_stream_shows_half_a_character(verifier: Daemon, make_gguf: Make, beside: Mesh):
    """Through the real API: a model that says bytes at random, streamed round by round at each daemon's socket. What
    has come at any moment is the beginning of the whole text, whose characters are whole."""
    ngram = beside.drafter(engine="ngram", name="ngram")
    remapped = drafter(beside, make_gguf("permuted", **TARGET, permute=5), name="permuted")
    vocabulary = load_tokenizer(make_gguf("target-words", **TARGET)).vocabulary
    split = 0
    for daemon in (verifier, ngram, remapped):
        for seed in range(6):
            with Stream(daemon, body("é", 90, temperature=3.0, seed=seed, draft_n=2, rounds=True)) as stream:
                shown = [stream.read(1).text]
                while stream.finish is None:
                    shown.append(stream.read(1).text)
            whole = vocabulary.text(stream.ids)
            assert stream.text == whole
            for text in shown:
                assert whole.startswith(text)
            split += sum(
                len(piece) == 1 and piece[0] >= 0xC0 for piece in map(vocabulary.pieces.__getitem__, stream.ids)
            )
    assert split > 50  # tokens that begin a character and do not end it


def test_probes_find_another_encoder(verifier: Daemon, make_gguf: Make, beside: Mesh):
    """The same tokens, cut differently: it drafts, and warns that fewer drafts will stand."""
    daemon = drafter(beside, make_gguf("fewer-merges", **TARGET, merges=3))
    check_texts(verifier, [verifier, daemon])
    [told] = daemon.events("encoders_differ")
    assert told["level"] == "warning"
    assert "'h' 'e'" in str(told["first"])
    assert "'he' " in str(told["first"])
