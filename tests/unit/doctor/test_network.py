"""What is said of addresses and links."""

import errno
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from specmesh.cli.status import Found
from specmesh.doctor import mesh
from specmesh.doctor.mesh import (
    LinkFacts,
    Reach,
    ReachFacts,
    RoleSettings,
    judge_link,
    judge_reach,
    judge_wire,
    links,
    reach_of,
)
from specmesh.security.addresses import Way
from specmesh.security.keys import KeyFolder

LAN = ReachFacts("tcp://192.168.1.5:7071", Reach.OPEN, Way.LOCAL)


@pytest.mark.parametrize(
    ("changes", "status", "found", "fix"),
    [
        ({}, "ok", "answers", None),
        ({"attached": True}, "ok", "answers", None),
        ({"attached": False}, "warn", "has no verifier", "specmesh stats"),
        ({"attached": False, "macos": True}, "warn", "has no verifier", "Local Network"),
        ({"attached": False, "macos": True, "way": Way.TAILNET}, "warn", "has no verifier", "specmesh stats"),
        ({"reach": Reach.REFUSED}, "fail", "refuses", "specmesh verifier --bind"),
        ({"reach": Reach.TIMED_OUT}, "fail", "does not answer", "firewall"),
        ({"reach": Reach.NO_ROUTE, "code": 113}, "fail", "no route", "VPN"),
        ({"reach": Reach.NO_ROUTE, "code": 65}, "fail", "no route", "VPN"),
        (
            {"reach": Reach.NO_ROUTE, "code": 65, "macos": True},
            "fail",
            "errno 65",
            "Privacy & Security > Local Network",
        ),
        ({"reach": Reach.NO_ROUTE, "code": 51, "macos": True}, "fail", "no route", "VPN"),
        ({"reach": Reach.NO_ROUTE, "code": 65, "macos": True, "way": Way.ROUTED}, "fail", "no route", "VPN"),
        ({"reach": Reach.NO_NAME}, "fail", "name is not found", "IP address"),
        ({"reach": Reach.BAD}, "fail", "is no address", "config show drafter"),
        ({"reach": Reach.OTHER}, "fail", "cannot be reached", "nc -vz"),
    ],
)
@pytest.mark.fault(
    "E4.49",
    "errno 65, as macOS gives without leave for the local network (simulated)",
    "`doctor` names it, and the setting",
)
def test_reach(changes: dict[str, object], status: str, found: str, fix: str | None):
    """Each way that a connection may end, told apart."""
    check = judge_reach(replace(LAN, **changes))  # type: ignore[arg-type]
    assert check.status == status
    assert found in check.found
    assert (fix is None and check.fix is None) or (fix is not None and fix in str(check.fix))


@pytest.mark.parametrize(
    ("error", "reach"),
    [
        (socket.gaierror(-2, "Name or service not known"), Reach.NO_NAME),
        (ConnectionRefusedError(errno.ECONNREFUSED, "refused"), Reach.REFUSED),
        (TimeoutError("timed out"), Reach.TIMED_OUT),
        (OSError(errno.EHOSTUNREACH, "No route to host"), Reach.NO_ROUTE),
        (OSError(errno.ENETUNREACH, "Network is unreachable"), Reach.NO_ROUTE),
        (OSError(errno.EACCES, "Permission denied"), Reach.OTHER),
    ],
)
def test_errors_of_connecting(error: OSError, reach: Reach):
    """What the system's errors mean."""
    assert reach_of(error) is reach


@pytest.mark.parametrize(
    ("way", "status"),
    [(Way.SAME_MACHINE, None), (Way.TAILNET, "ok"), (Way.LOCAL, "warn"), (Way.ROUTED, "warn")],
)
def test_wire(way: Way, status: str | None):
    """Beyond this machine the wire is unencrypted without keys, except within a tailnet."""
    check = judge_wire("verifier", "tcp://somewhere:7071", way, encrypted=False)
    assert (check.status if check is not None else None) == status
    keyed = judge_wire("verifier", "tcp://somewhere:7071", way, encrypted=True)
    assert keyed is not None
    assert (keyed.status, "allowed keys" in keyed.found) == ("ok", True)


STEPS = tuple(0.034 + 0.001 * drafts for drafts in range(9))
LINK = LinkFacts("mac:1", 0.0004, 0.0011, 0.005, STEPS)


@pytest.mark.parametrize(
    ("changes", "status", "found"),
    [
        ({}, "ok", "p50 0.4 ms, p99 1.1 ms, jitter 0.7 ms"),
        ({"p50": 0.02, "p99": 0.03}, "ok", "p50 20 ms"),
        ({"p50": 5.0, "p99": 6.0}, "warn", "too long for drafting to pay where a step takes 34 ms"),
        ({"interval": 0.5}, "warn", "at any distance"),
        ({"interval": None}, "ok", "p50"),
        ({"steps": (), "p50": 5.0, "p99": 5.0}, "ok", "p50 5e+03 ms"),
        ({"p50": None}, "ok", "no round trip"),
    ],
)
def test_link(changes: dict[str, object], status: str, found: str):
    """Whether drafting can pay is judged by the verifier's own rule."""
    check = judge_link(replace(LINK, **changes))  # type: ignore[arg-type]
    assert check.status == status
    assert found in check.found


def test_links_of_snapshots():
    """A verifier's drafters with its step costs; a drafter's verifier; nothing of a daemon alone."""
    trip = {"p50": 0.5, "p99": 2.0}
    peers = [{"drafter": "mac:1", "round_trip_ms": trip, "draft_interval_ms": None}]
    [link] = links({"role": "verifier", "peers": peers, "steps_ms": {"1": 30.0, "5": 34.0}})
    assert (link.peer, link.p50, link.p99, link.interval) == ("mac:1", 0.0005, 0.002, None)
    assert link.steps[:3] == pytest.approx((0.030, 0.031, 0.032))
    [link] = links({"role": "drafter", "verifiers": [{"name": "big:2", "round_trip_ms": trip}]})
    assert (link.peer, link.p50, link.steps) == ("big:2", 0.0005, ())
    assert links({"role": "verifier", "peers": [], "steps_ms": {}}) == []
    assert links({"role": "drafter", "verifiers": [{"name": None, "round_trip_ms": trip}]}) == []


def test_several_verifiers(tmp_path: Path):
    """Each of a running drafter's is looked at for itself: whether it has it, whether its wire is encrypted."""
    trip = {"p50": 0.5, "p99": 2.0}
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        near, far = (f"tcp://127.0.0.1:{server.getsockname()[1]}" for server in (one, other))
        rows = [
            {"address": near, "name": "big:1", "encrypted": True, "round_trip_ms": trip},
            {"address": far, "name": None, "encrypted": False, "round_trip_ms": {"p50": None, "p99": None}},
        ]
        stats: dict[str, object] = {
            "role": "drafter",
            "address": near,
            "verifier": {"name": "big:1"},
            "verifiers": rows,
        }
        told = mesh.network([], [Found(tmp_path, stats)])
    reached = [check for check in told if check.name == "verifier"]
    assert [check.status for check in reached] == ["ok", "warn"]
    assert [check.name for check in told if check.name.startswith("link")] == ["link to big:1"]


def test_addresses_are_tried():
    """An address that answers, one that refuses, one that is none; each once."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        drafter = RoleSettings("drafter", {"connect": f"tcp://127.0.0.1:{port}"})
        [check] = mesh.network([drafter, drafter], [])
        assert check.status == "ok"
    [check] = mesh.network([drafter], [])
    assert (check.status, "refuses" in check.found) == ("fail", True)
    with socket.create_server(("127.0.0.1", 0)) as server:
        both = [f"tcp://127.0.0.1:{server.getsockname()[1]}", f"tcp://127.0.0.1:{port}"]
        told = mesh.network([RoleSettings("drafter", {"connect": both})], [])
        assert [check.status for check in told] == ["ok", "fail"], "each of several"
    [check, *_] = mesh.network([RoleSettings("drafter", {"connect": "bigbox"})], [])
    assert (check.status, "is no address" in check.found) == ("fail", True)


def test_a_verifier_that_listens_beyond():
    """A bind address of settings is judged without anything running."""
    [check] = mesh.network([RoleSettings("verifier", {"bind": "tcp://192.168.1.5:7071"})], [])
    assert (check.name, check.status) == ("verifier's wire", "warn")


def test_whether_keys_are_used(tmp_path: Path):
    """A running daemon says so itself; of settings it is found out: keys, none, none wanted."""
    folder = KeyFolder(tmp_path / "keys")
    folder.new()
    address = "tcp://192.168.1.5:7071"
    here = {"bind": address, "keys": str(folder.path)}
    for values, status in ((here, "ok"), (here | {"insecure-no-auth": True}, "warn"), ({"bind": address}, "warn"),
                           (here | {"keys": "/nowhere"}, "warn")):  # fmt: skip
        [check] = mesh.network([RoleSettings("verifier", values)], [])
        assert check.status == status, values
    stats: dict[str, object] = {"role": "verifier", "address": address, "encrypted": True, "peers": [], "steps_ms": {}}
    [check] = mesh.network([RoleSettings("verifier", {"bind": address})], [Found(tmp_path, stats)])
    assert check.status == "ok"


def test_nothing_to_look_at():
    """Neither settings nor daemons."""
    [check] = mesh.network([], [])
    assert check.status == "ok"
