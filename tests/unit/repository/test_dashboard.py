"""The Grafana dashboard asks for what the daemons export, and for nothing besides."""

import json
import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from specmesh.api.metrics import Exposition

BOARD = json.loads((Path(__file__).parents[3] / "docs" / "grafana.json").read_text(encoding="utf-8"))
PANELS = BOARD["panels"]
OF_PROMETHEUS = {"instance", "job"}
QUERIES = [target["expr"] for panel in PANELS for target in panel["targets"]]
QUERIES += [variable["query"]["query"] for variable in BOARD["templating"]["list"] if variable["type"] == "query"]


@pytest.fixture(scope="module")
def exported(snapshots):
    """{sample: its labels} of a verifier and a drafter that have worked."""
    labels: dict[str, set[str]] = {}
    for snapshot in (snapshots.verifier(), snapshots.drafter()):
        text = Exposition(snapshots.backend(snapshot)).answer("")[0].decode()
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                labels.setdefault(sample.name, set()).update(sample.labels)
    return labels


@pytest.mark.parametrize("query", QUERIES)
def test_queries_name_what_is_exported(exported, query):
    names = re.findall(r"specmesh_\w+", query)
    assert names
    assert set(names) <= exported.keys()
    for name, selectors in re.findall(r"(specmesh_\w+)\{([^}]*)\}", query):
        assert set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", selectors)) <= exported[name] | OF_PROMETHEUS
    for by, name in re.findall(r"by \(([^)]*)\) \((?:rate\()?(specmesh_\w+)", query):
        assert set(by.split(", ")) <= exported[name] | OF_PROMETHEUS
    for name, label in re.findall(r"label_values\((specmesh_\w+).*, (\w+)\)", query):
        assert label in exported[name] | OF_PROMETHEUS
    assert query.count("by (") == len(re.findall(r"by \([^)]*\) \((?:rate\()?specmesh_", query))


def test_legends_name_labels_that_are_left(exported):
    for panel in PANELS:
        for target in panel["targets"]:
            used = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            [name, *_] = re.findall(r"specmesh_\w+", target["expr"])
            kept = [set(by.split(", ")) for by in re.findall(r"by \(([^)]*)\)", target["expr"])]
            for labels in kept or [exported[name] | OF_PROMETHEUS]:
                assert used <= labels, panel["title"]


def test_panels_are_whole():
    """Each panel has an id of its own, a title, a unit, a place of its own, and the chosen data source."""
    assert len({panel["id"] for panel in PANELS}) == len(PANELS) == len({panel["title"] for panel in PANELS})
    places = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in PANELS}
    assert len(places) == len(PANELS)
    for panel in PANELS:
        assert all((panel["title"], panel["fieldConfig"]["defaults"]["unit"], panel["targets"]))
        assert {one["datasource"]["uid"] for one in (panel, *panel["targets"])} == {"${datasource}"}


def test_variables():
    """The data source, the role and, by the role, the instance can be chosen; queries keep to the instance."""
    assert [variable["name"] for variable in BOARD["templating"]["list"]] == ["datasource", "role", "instance"]
    shown = [target["expr"] for panel in PANELS for target in panel["targets"]]
    for query in shown:
        assert query.count('{instance=~"$instance"}') == len(re.findall(r"specmesh_\w+", query))
