"""E4, and E1.16: faults of the network between the two.

The text stays the same, drafting ends and resumes.
"""

import time
from functools import partial

import pytest
from names import Names
from processes import Stream, Usage, body, complete, drafted, until, writes

PROMPT = "The network is reliable"
fault = pytest.mark.fault


@pytest.fixture(scope="module")
def verifier(shared):
    """Return the verifier of the networks that are bad from the start.

    64 kbit/s carry a TRUTH for each step of 8 ms; with 4 ms they would fall behind for ever.
    """
    return shared.verifier("step_ms=8")


SLOW = pytest.mark.slow
NETWORKS = [
    {"delay": 0.0005},
    {"delay": 0.02},
    {"delay": 0.01, "jitter": 0.02},
    {"loss": 0.1},
    {"piece": 1},
    {"bandwidth": 8000},
    pytest.param({"delay": 0.0025}, marks=SLOW),
    pytest.param({"delay": 0.01}, marks=SLOW),
    pytest.param({"delay": 0.05}, marks=SLOW),
    pytest.param({"delay": 0.25}, marks=SLOW),
    pytest.param({"loss": 0.01}, marks=SLOW),
]
"""As options of the proxy, whose delay is half of a round trip."""


@pytest.mark.parametrize("faults", NETWORKS, ids=str)
@fault("E4.39", "E4.40", "E4.41", "E4.45", "E4.46")
def test_bad_networks_change_only_the_time(verifier, beside, proxy, faults):
    drafter = beside.drafter("draft_ms=1,alpha=0.75", port=proxy(beside.port, **faults).port)
    gone = len(verifier.events("drafter_gone"))
    for daemon in (verifier, drafter):
        writes(daemon, PROMPT, 100)
    in_time = faults.get("delay", 0.0) < 0.05 and "loss" not in faults
    ask = drafted if in_time else complete  # a stall may be as long as the text
    # long enough to find out how late drafts come
    ask(verifier, body(PROMPT, 150, draft_n=4)).checked()
    assert len(verifier.events("drafter_gone")) == gone
    assert not drafter.events("verifier_lost")


@pytest.fixture
def linked(mesh, proxy):
    """Start a verifier, and a drafter behind a proxy between them; return all three."""

    def start(target, drafter, *keys):
        verifier, link = mesh.verifier(target, *keys), proxy(mesh.port)
        return verifier, link, mesh.drafter(drafter, *keys, port=link.port)

    return start


@fault("E4.44")
def test_cut_connection_drafting_resumes(linked):
    verifier, link, drafter = linked("step_ms=10", "draft_ms=0.5,alpha=1")
    with Stream(verifier, body(PROMPT, 8000, draft_n=4)) as stream:
        stream.drafted(8)
        usages = [Usage(daemon.pid) for daemon in (verifier, drafter)]
        for cuts in range(1, 4):
            link.cut()
            until(lambda cuts=cuts: link.connections > cuts, "it connects again")
            stream.drafted(8)
        for usage in usages:
            usage.unchanged()
    stream.checked()


@fault("E4.48")
def test_cut_connection_with_the_client_at_the_drafter(linked):
    verifier, link, drafter = linked("step_ms=10", "draft_ms=0.5,alpha=1")
    with Stream(drafter, body(PROMPT, 300)) as stream:
        stream.read(5)
        link.cut()
        stream.read().checked()
    counts = verifier.stats()["sessions"]
    assert (counts["opened"], counts["resumed"]) == (1, 1), "the same session goes on"
    with Stream(drafter, body(PROMPT, 300, reconnect_timeout=0)) as stream:
        stream.read(5)
        link.cut()
        with pytest.raises(Exception, match="verifier"):
            stream.read()
    stream.checked()
    writes(drafter.ready(), PROMPT, 30)


@pytest.mark.parametrize(
    ("direction", "seconds"),
    [
        (None, 0),
        pytest.param(None, 30, marks=SLOW),
        pytest.param(True, 0, marks=SLOW),
        pytest.param(False, 0, marks=SLOW),
    ],
)
@fault("E4.42", "E4.43")
def test_blackhole_goes_on_alone_and_heals(mesh, linked, direction, seconds):
    verifier, link, drafter = linked("step_ms=5", "draft_ms=1,alpha=0.75")
    with Stream(verifier, body(PROMPT, 8000, draft_n=4)) as stream:
        stream.drafted(10)
        link.hold(direction)
        stream.read(100)
        since = time.monotonic()
        verifier.alone()
        stream.read(while_=lambda: time.monotonic() - since < seconds)
        link.release()
        mesh.attached(drafter)
        stream.drafted(10)
    stream.checked()


def connect(mesh, name):
    """Return the options of a drafter that looks for the mesh's verifier by a name."""
    return "--connect", f"tcp://{name}.test:{mesh.port}", "--insecure-no-auth"


@fault("E4.50")
def test_a_name_that_is_known_later(mesh, tmp_path):
    names = Names(tmp_path / "names")
    verifier = mesh.verifier()
    options = ("--engine", "ngram", *connect(mesh, "later"))
    drafter = mesh.start("drafter", *options, program=names.program)
    until(lambda: "does not answer" in str(drafter.client.get("/health")), "it has looked for one")
    names.know(later="127.0.0.1")
    mesh.attached(drafter)
    writes(verifier, PROMPT, 30)


@fault("E4.50", "E8.86")
def test_a_resolver_that_never_answers(mesh, tmp_path):
    """The other verifier is drafted for as if it was the only one, and the end does not wait for
    the resolver."""
    names = Names(tmp_path / "names")
    names.know(asleep="hangs")
    verifier = mesh.verifier()
    drafter = mesh.drafter("", *connect(mesh, "asleep"), program=names.program)
    drafted(verifier, body(PROMPT, 200)).checked()
    assert [bool(one["name"]) for one in drafter.stats()["verifiers"]] == [True, False]
    assert drafter.stop() == 0


@pytest.mark.parametrize("keyed", [False, True], ids=["open", "keyed"])
@fault("E1.16")
def test_flipped_bits_cost_time_only(mesh, linked, keyed):
    keys, least = (), 16
    if keyed:
        keys, least = mesh.new_keys(), 4
    verifier, link, drafter = linked("step_ms=1", "draft_ms=0.2,alpha=0.8", *keys)
    link.damage = 0.05
    texts = 0
    while link.flipped < least or texts < 4:
        for daemon in (drafter, verifier):
            begin = partial(Stream, daemon, body(PROMPT, 100 + texts, draft_n=4))
            until(begin, "it is attached and begins").read().checked()
            texts += 1
    if not keyed:  # CURVE ends the connection instead
        rejected = drafter.rejected("checksum") + verifier.rejected("checksum")
        assert rejected > 0
    assert drafter.process.poll() is verifier.process.poll() is None


@pytest.mark.parametrize("draft_n", ["auto", 1, 4])
def test_wire_bytes_per_token(verifier, beside, proxy, role, draft_n):
    """Under 120 bytes per generated token are sent and received.

    The verifier's report has them, less ZMTP's own.
    """
    link = proxy(beside.port)
    drafter = beside.drafter("draft_ms=1,alpha=0.75", port=link.port)
    asked = drafter if role == "drafter" else verifier

    def crossed():
        """Return the proxy's count once the session has ended on both sides."""
        drafter.idle()
        return sum(map(len, link.captured))

    def counted():
        before = crossed()
        stream = writes(asked, PROMPT, 300, draft_n=draft_n)
        return (stream, crossed() - before) if sum(stream.accepted) else None

    stream, used = until(counted, "drafts stand")
    assert 0 < used / 300 < 120
    if (role, draft_n) == ("verifier", 4):
        report = stream.result["report"]
        assert 0.7 * used < report["bytes_sent"] + report["bytes_received"] < used


def test_no_draft_costs_nothing_on_the_wire(verifier, beside, proxy):
    """A session without drafts sends its drafter nothing; only heartbeats cross."""
    link = proxy(beside.port)
    drafter = beside.drafter("draft_ms=1,alpha=0.75", port=link.port)
    drafter.idle()
    before = sum(map(len, link.captured))
    begun = time.monotonic()
    report = writes(verifier, PROMPT, 200, draft_n=0).result["report"]
    assert (report["bytes_sent"], report["bytes_received"]) == (0, 0)
    drafter.idle()
    used = sum(map(len, link.captured)) - before
    # Frames of 120 bytes: four a second, and some as they meet. The text would take 5,200 more.
    assert used < 2500 + 600 * (time.monotonic() - begun)
