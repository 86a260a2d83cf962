"""Checks as lines and as JSON."""

from specmesh.doctor.check import Checks, Status, fail, ok, warn

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


def test_colour():
    """Green, yellow, red, around the word alone; without colour no escape at all."""
    text = "\n".join(Checks(CHECKS, colour=True).lines())
    for code, status in (("32", "ok  "), ("33", "warn"), ("31", "fail")):
        assert f"\x1b[{code}m{status}\x1b[0m" in text
    assert "\x1b" not in "\n".join(Checks(CHECKS).lines())


def test_json():
    """Every field of every check."""
    assert Checks(CHECKS[:2]).as_json() == {
        "schema_version": 1,
        "checks": [
            {"group": "software", "name": "python", "status": "ok", "found": "3.11.7", "fix": None},
            {"group": "network", "name": "wire", "status": "warn", "found": "unencrypted", "fix": "use a tunnel"},
        ],
    }


def test_a_warning_is_no_failure():
    """Only a failed check fails the whole."""
    assert Checks(CHECKS).failed
    assert not Checks(CHECKS[:2]).failed
    assert [check.status for check in CHECKS] == [Status.OK, Status.WARN, Status.FAIL]


def test_nothing():
    """No checks: only the counts."""
    assert Checks([]).lines() == ["", "0 ok, 0 warn, 0 fail"]
