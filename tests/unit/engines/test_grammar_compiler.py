"""Which compiler of grammars an installation has."""

import sys
import tomllib
from pathlib import Path

import pytest

from specmesh.cli import doctor
from specmesh.core.sampling.constraint import Grammar, GrammarKind
from specmesh.core.vocabulary.vocabulary import Vocabulary
from specmesh.engines import grammar_compiler
from specmesh.engines.grammar import Grammars
from specmesh.errors import RequestError, pip_install

VOCABULARY = Vocabulary((b"yes", b"no", b""), frozenset({2}))
YES_OR_NO = Grammar(GrammarKind.GBNF, 'root ::= "yes" | "no"')
PROJECT = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text("utf-8"))


@pytest.fixture(autouse=True)
def forgotten():
    """Look at the installation anew, as each test has changed it."""
    grammar_compiler.trouble.cache_clear()
    yield
    grammar_compiler.trouble.cache_clear()


@pytest.fixture
def hidden(monkeypatch):
    monkeypatch.setitem(sys.modules, "llguidance", None)


@pytest.fixture
def older(monkeypatch):
    """The release that vLLM 0.33 pins."""
    monkeypatch.setattr(grammar_compiler, "version", lambda _: "1.7.6")


def refusal():
    """Return the error for a grammar that is valid."""
    with pytest.raises(RequestError) as caught:
        grammar_compiler.grammar_compiler(VOCABULARY).compile(YES_OR_NO)
    return caught.value


def test_the_library_compiles_where_it_is_installed():
    compiler = grammar_compiler.grammar_compiler(VOCABULARY)
    assert isinstance(compiler, Grammars)


@pytest.mark.usefixtures("hidden")
def test_without_the_library_a_refusal_says_what_to_install():
    error = refusal()
    assert error.param == "grammar"
    assert "llguidance is not installed" in error.what
    assert "pip install '.[llama]'" in error.remedy


@pytest.mark.usefixtures("older")
def test_an_older_library_is_not_used():
    assert "llguidance 1.7.6 is installed, specmesh needs 1.9" in refusal().what


def test_doctor_warns_where_models_run():
    check = doctor.judge_grammars("it is not installed", decodes=True)
    assert (check.status, check.fix) == ("warn", pip_install("llama"))


def test_doctor_wants_no_grammars_where_no_model_runs():
    assert doctor.judge_grammars("it is not installed", decodes=False).status == "ok"


def test_only_engines_bring_the_library():
    """Beside vLLM, which pins an older one, `pip install specmesh` must resolve."""
    assert not [need for need in PROJECT["project"]["dependencies"] if "llguidance" in need]
    extras = PROJECT["project"]["optional-dependencies"]
    bringing = {extra for extra, needs in extras.items() if "llguidance" in str(needs)}
    assert bringing == {"llama", "mlx"}
