"""Checks as lines and as JSON."""

from specmesh.doctor.check import Checks, fail, ok, warn

CHECKS = [
    ok("software", "python", "3.11.7"),
    warn("network", "wire", "unencrypted", "use a tunnel"),
    fail("software", "mlx", "broken", "pip install it"),
]


def test_lines_by_group():
    """Groups in the order they come in, the fix below what it is for, counts at the end."""
    assert Checks(CHECKS).lines() == [
        "software",
        "  ok    python  3.11.7",
        "  fail  mlx     broken",
        "                -> pip install it",
        "",
        "network",
        "  warn  wire    unencrypted",
        "                -> use a tunnel",
        "",
        "1 ok, 1 warn, 1 fail",
    ]


def test_json():
    """Every field of every check."""
    assert Checks(CHECKS[:2]).as_json() == {
        "schema_version": 1,
        "checks": [
            {"group": "software", "name": "python", "status": "ok", "found": "3.11.7", "fix": None},
            {"group": "network", "name": "wire", "status": "warn", "found": "unencrypted", "fix": "use a tunnel"},
        ],
    }
