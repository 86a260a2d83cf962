"""E4, and E1.16: faults of the network between the two.

The text stays the same, drafting ends and resumes.
"""

import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from processes import (
    SPECMESH,
    Daemon,
    Mesh,
    Stream,
    Usage,
    body,
    complete,
    drafted,
    edited,
    sim_text,
    until,
)
from proxy import Proxy

from specmesh.security.keys import KeyFolder

PROMPT = "The network is reliable"
fault = pytest.mark.fault


@pytest.fixture(scope="module")
def verifier(shared: Mesh) -> Daemon:
    """Return the verifier of the networks that are bad from the start.

    64 kbit/s carry a TRUTH for each step of 8 ms; with 4 ms they would fall behind for ever.
    """
    return shared.verifier("step_ms=8")


SLOW = pytest.mark.slow
NETWORKS = [
    pytest.param({"delay": 0.0005}, id="1 ms", marks=fault("E4.39")),
    pytest.param({"delay": 0.0025}, id="5 ms", marks=[SLOW, fault("E4.39")]),
    pytest.param({"delay": 0.01}, id="20 ms", marks=[SLOW, fault("E4.39")]),
    pytest.param({"delay": 0.02}, id="40 ms", marks=fault("E4.39")),
    pytest.param({"delay": 0.05}, id="100 ms", marks=[SLOW, fault("E4.39")]),
    pytest.param({"delay": 0.25}, id="500 ms", marks=[SLOW, fault("E4.39")]),
    pytest.param({"delay": 0.01, "jitter": 0.02}, id="jitter", marks=fault("E4.40")),
    pytest.param({"loss": 0.01}, id="loss 1 %", marks=[SLOW, fault("E4.41")]),
    pytest.param({"loss": 0.1}, id="loss 10 %", marks=fault("E4.41")),
    pytest.param({"piece": 1}, id="1-byte pieces", marks=fault("E4.45")),
    pytest.param({"bandwidth": 8000}, id="64 kbit/s", marks=fault("E4.46")),
]


@pytest.mark.parametrize("faults", NETWORKS)
def test_bad_networks_change_only_the_time(verifier, beside, proxy, faults):
    drafter = beside.drafter("draft_ms=1,alpha=0.75", port=proxy(beside.port, **faults).port)
    gone = len(verifier.events("drafter_gone"))
    for daemon in (verifier, drafter):
        assert complete(daemon, body(PROMPT, 100)).text == sim_text(PROMPT, 100)
    fixed = body(PROMPT, 150, draft_n=4)  # long enough to find out how late drafts come
    in_time = faults.get("delay", 0.0) < 0.05 and "loss" not in faults
    ask = drafted if in_time else complete  # a stall may be as long as the text
    assert ask(verifier, fixed).text == sim_text(PROMPT, 150)
    assert len(verifier.events("drafter_gone")) == gone
    assert not drafter.events("verifier_lost")


@fault("E4.44")
def test_cut_connection_drafting_resumes(mesh, proxy):
    verifier, link = mesh.verifier("step_ms=10"), proxy(mesh.port)
    drafter = mesh.drafter("draft_ms=0.5,alpha=1", port=link.port)
    usages: list[Usage] = []
    with Stream(verifier, body(PROMPT, 8000, draft_n=4)) as stream:
        for cuts in range(3):
            stream.drafted(8)
            usages = usages or [Usage(verifier.pid), Usage(drafter.pid)]
            link.cut()
            until(lambda cuts=cuts: link.connections > cuts + 1, "it connects again")
        stream.drafted(8)
        for usage in usages:
            usage.unchanged()
    assert stream.text == sim_text(PROMPT, len(stream.ids))


@fault("E4.48")
def test_cut_connection_with_the_client_at_the_drafter(mesh, proxy):
    verifier, link = mesh.verifier("step_ms=10"), proxy(mesh.port)
    drafter = mesh.drafter("draft_ms=0.5,alpha=1", port=link.port)
    with Stream(drafter, body(PROMPT, 300)) as stream:
        stream.read(5)
        link.cut()
        assert stream.read().text == sim_text(PROMPT, 300)
    counts = verifier.stats()["sessions"]
    assert (counts["opened"], counts["resumed"]) == (1, 1), "the same session goes on"
    with Stream(drafter, body(PROMPT, 300, reconnect_timeout=0)) as stream:
        stream.read(5)
        link.cut()
        with pytest.raises(Exception, match="verifier"):
            stream.read()
    assert sim_text(PROMPT, 300).startswith(stream.text)
    drafter.ready()
    assert complete(drafter, body(PROMPT, 30)).text == sim_text(PROMPT, 30)


@pytest.mark.parametrize(
    ("direction", "seconds"),
    [
        pytest.param(None, 0, id="both"),
        pytest.param(None, 30, id="both, 30 s", marks=SLOW),
        pytest.param(True, 0, id="to the verifier", marks=[SLOW, fault("E4.43")]),
        pytest.param(False, 0, id="to the drafter", marks=[SLOW, fault("E4.43")]),
    ],
)
@fault("E4.42")
def test_blackhole_goes_on_alone_and_heals(mesh, proxy, direction, seconds):
    verifier, link = mesh.verifier("step_ms=5"), proxy(mesh.port)
    drafter = mesh.drafter("draft_ms=1,alpha=0.75", port=link.port)
    with Stream(verifier, body(PROMPT, 8000, draft_n=4)) as stream:
        stream.drafted(10)
        link.hold(direction)
        stream.read(100)
        since = time.monotonic()
        until(lambda: not verifier.stats()["peers"], "the drafter is given up")
        stream.read(while_=lambda: time.monotonic() - since < seconds)
        link.release()
        mesh.attached(drafter)
        stream.drafted(10)
    assert stream.text == sim_text(PROMPT, len(stream.ids))


def _own_hosts(folder: Path) -> list[str]:
    """A command before another that gives it names of its own.

    `hosts` in this folder is its /etc/hosts.
    """
    script = 'mount --bind "$0" /etc/hosts && exec "$@"'
    return ["unshare", "--mount", "--map-root-user", "sh", "-c", script, str(folder / "hosts")]


@fault("E4.50")
def test_a_name_that_is_known_later(mesh, tmp_path):
    hosts = tmp_path / "hosts"
    hosts.write_text("127.0.0.1 localhost\n")
    able = shutil.which("unshare")
    if not able or subprocess.run([*_own_hosts(tmp_path), "true"], check=False).returncode:
        pytest.skip("needs Linux, and to be allowed a namespace of its own")
    verifier = mesh.verifier("step_ms=4")
    program = [*_own_hosts(tmp_path), *SPECMESH]
    connect = ("--connect", f"tcp://bigbox.test:{mesh.port}", "--insecure-no-auth")
    where = ("--model", "draft_ms=0.5", *connect)
    drafter = mesh.start("drafter", "--engine", "sim", *where, program=program)
    until(lambda: "does not answer" in str(drafter.client.get("/health")), "it has looked for one")
    with hosts.open("a") as file:
        file.write("127.0.0.1 bigbox.test\n")
    mesh.attached(drafter)
    assert complete(verifier, body(PROMPT, 30)).text == sim_text(PROMPT, 30)


@fault("E4.50")
@fault("E8.86")
def test_a_resolver_that_never_answers(mesh):
    """The other verifier is drafted for as if it was the only one, and the end does not wait for
    the resolver."""
    hangs = edited(
        "import socket, time",
        "real = socket.getaddrinfo",
        "def hangs(host, *more, **options):",
        "    return time.sleep(10**6) if host.endswith('.test') else real(host, *more, **options)",
        "socket.getaddrinfo = hangs",
    )
    verifier = mesh.verifier("step_ms=4")
    asleep = ("--connect", f"tcp://asleep.test:{mesh.port}", "--insecure-no-auth")
    drafter = mesh.drafter("draft_ms=0.5", *asleep, program=hangs)
    assert drafted(verifier, body(PROMPT, 200)).text == sim_text(PROMPT, 200)
    assert [bool(one["name"]) for one in drafter.stats()["verifiers"]] == [True, False]
    assert drafter.stop() == 0


@pytest.mark.parametrize("keyed", [False, True], ids=["open", "keyed"])
@fault("E1.16")
def test_flipped_bits_cost_time_only(mesh, proxy, keyed):
    folder = KeyFolder(mesh.folder / "keys")
    if keyed:
        folder.new()
    keys = ("--keys", folder.path) if keyed else ()
    verifier, link = mesh.verifier("step_ms=1", *keys), proxy(mesh.port)
    drafter = mesh.drafter("draft_ms=0.2,alpha=0.8", *keys, port=link.port)
    link.damage = 0.05
    texts = 0
    while link.flipped < (4 if keyed else 16) or texts < 4:
        for daemon in (drafter, verifier):
            asked = body(PROMPT, 100 + texts, draft_n=4)
            begin = partial(Stream, daemon, asked)
            stream = until(begin, "it is attached and begins")
            assert stream.read().text == sim_text(PROMPT, 100 + texts)
            texts += 1
    if not keyed:  # CURVE ends the connection instead
        rejected = [daemon.stats()["wire"]["rejected"] for daemon in (drafter, verifier)]
        assert sum(reasons.get("checksum", 0) for reasons in rejected) > 0
    assert drafter.process.poll() is verifier.process.poll() is None


@dataclass
class Counted:
    """A pair with a counting proxy between; 3 of 4 drafts are right."""

    verifier: Daemon
    drafter: Daemon
    link: Proxy

    def bytes(self) -> int:
        """Return the proxy's count once the session has ended on both sides."""
        until(lambda: self.drafter.live() == 0, "the session ends")
        return sum(map(len, self.link.captured))


@pytest.fixture
def counted(verifier: Daemon, beside: Mesh, proxy: Callable[..., Proxy]) -> Counted:
    link = proxy(beside.port)
    return Counted(verifier, beside.drafter("draft_ms=1,alpha=0.75", port=link.port), link)


@pytest.mark.parametrize("draft_n", ["auto", 1, 4])
def test_wire_bytes_per_token(counted, role, draft_n):
    """Under 120 bytes per generated token are sent and received.

    The verifier's report has them, less ZMTP's own.
    """
    daemon = getattr(counted, role)

    def counted_text() -> tuple[Stream, float] | None:
        before = counted.bytes()
        stream = complete(daemon, body(PROMPT, 300, draft_n=draft_n))
        assert stream.text == sim_text(PROMPT, 300)
        return (stream, counted.bytes() - before) if sum(stream.accepted) else None

    stream, used = until(counted_text, "drafts stand")
    assert 0 < used / 300 < 120
    if (role, draft_n) == ("verifier", 4):
        report = stream.result["report"]
        assert 0.7 * used < report["bytes_sent"] + report["bytes_received"] < used


def test_no_draft_costs_nothing_on_the_wire(counted):
    """A session without drafts sends its drafter nothing; only heartbeats cross."""
    before = counted.bytes()
    begun = time.monotonic()
    report = complete(counted.verifier, body(PROMPT, 200, draft_n=0)).result["report"]
    assert (report["bytes_sent"], report["bytes_received"]) == (0, 0)
    used = counted.bytes() - before
    # frames of 120 bytes: four a second, and some as they meet
    heartbeats = 2500 + 600 * (time.monotonic() - begun)
    assert used < heartbeats  # the text would take 5,200 more
