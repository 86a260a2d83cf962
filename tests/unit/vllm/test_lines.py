"""Lines of the proposer go to vLLM's own log, whatever has failed."""

import pytest
import structlog
from harness.fake_vllm import config_of
from harness.tables import cases

from specmesh.core.no_drafts import NoDrafts
from specmesh.vllm import proposer
from specmesh.vllm.lines import LOGGER, configure


@pytest.fixture
def logged(monkeypatch, caplog):
    """The lines in vLLM's log, of a process that has configured no log of its own."""
    before = structlog.get_config()
    was_configured = structlog.is_configured()
    structlog.reset_defaults()
    # What has logged once keeps its configuration.
    monkeypatch.setattr(proposer, "log", structlog.get_logger())
    yield lambda: [line.getMessage() for line in caplog.records if line.name == LOGGER]
    structlog.reset_defaults()
    if was_configured:
        structlog.configure(**before)


def test_wrong_settings_are_told_there(logged, monkeypatch):
    monkeypatch.setenv("SPECMESH_VLLM_ROWS", "many")
    proposer.Proposer(config_of()).load_model()
    [line] = logged()
    assert line.startswith("specmesh: no_drafts why=\"SPECMESH_VLLM_ROWS: 'many' is no number")


def test_variables_that_mean_nothing_are_named(logged, monkeypatch):
    monkeypatch.setenv("SPECMESH_VLLM_ROW", "4")
    proposer.Proposer(config_of()).load_model()
    assert logged()[0].startswith("specmesh: unknown_variables names='SPECMESH_VLLM_ROW'")


def test_percents_are_written_once(logged):
    configure("info")
    proposer.log.warning("vocabulary_partial", meaning="12.7 % of the tokens")
    assert logged() == ["specmesh: vocabulary_partial meaning='12.7 % of the tokens'"]


def test_a_value_of_a_list_is_its_text(logged):
    configure("info")
    proposer.log.warning("no_drafts", why=NoDrafts.NONE_ATTACHED)
    assert logged() == ["specmesh: no_drafts why='none attached'"]


@cases(
    "text, shown",
    """
    ["--bind tcp://a:1 is in use", "SPECMESH_VLLM_BIND tcp://a:1 is in use"]
    ["add --insecure-no-auth", "add SPECMESH_VLLM_INSECURE=1"]
    ["run `specmesh keys new --keys /k`", "run `specmesh keys new --keys /k`"]
    ["--keys-of others", "--keys-of others"]
    """,
)
def test_options_are_variables_here(logged, text, shown):
    configure("info")
    proposer.log.warning("told", why=text)
    assert logged() == [f"specmesh: told why={shown!r}"]
