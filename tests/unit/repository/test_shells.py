"""The daemons' shells carry out decisions of the core, and branch far less than it does."""

from pathlib import Path

from branch_points import branch_points

ROOT = Path(__file__).parents[3]


def counted(folder):
    files = (ROOT / folder).rglob("*.py")
    return sum(branch_points(file.read_text(encoding="utf-8")) for file in files)


def test_shells_branch_at_most_a_third_as_often_as_the_core():
    assert counted("daemons") <= counted("specmesh/core") / 3
