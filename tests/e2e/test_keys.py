"""Keys on the wire, with the real daemons: getting in, being cut off, and a listener's view.

`specmesh pair` introduces two machines to each other.
"""

import socket
import struct
from contextlib import suppress
from itertools import pairwise

import pytest
from harness.loops import hello
from harness.ports import free_port
from harness.tables import cases
from peer import greeting
from processes import Running, Stream, body, command, drafted, edited, generate, until, writes
from served import many

from specmesh.security.keys import KeyFolder, Listing
from specmesh.wire.codec import encode

PROMPT = "Nobody reads along"
fault = pytest.mark.fault
AUTH = "from specmesh.security import curve as auth"


class Keys:
    """Folders of keys: the verifier's, and one per drafter, which knows the verifier's key."""

    def __init__(self, mesh):
        self._mesh = mesh
        self.verifier = KeyFolder(mesh.folder / "verifier.keys")
        self.public = self.verifier.new().public.hex()

    def drafter(self, name, port=0, *, allowed=True, server=""):
        """Return the options of a drafter that expects this verifier, or `server`'s key."""
        folder = KeyFolder(self._mesh.folder / f"{name}.keys")
        key = folder.new().public.hex()
        address = f"tcp://127.0.0.1:{port or self._mesh.port}"
        folder.allow(Listing.VERIFIERS, server or self.public, address)
        if allowed:
            self.run("allow", key, "--name", name)
        return "--keys", folder.path

    def run(self, verb, *words):
        """Run `specmesh keys` on the verifier's folder."""
        done = command("keys", verb, *words, keys=self.verifier.path)
        assert done.code == 0, done.err

    def start(self, model="", *changes):
        """Start the verifier, with changes of its code."""
        program = edited(AUTH, *changes) if changes else None
        return self._mesh.verifier(model, "--keys", self.verifier.path, program=program)


@pytest.fixture
def keys(mesh):
    return Keys(mesh)


def peers(verifier):
    """Return the names of the keys of its drafters."""
    return sorted(str(peer["key"]) for peer in verifier.stats()["peers"])


def is_refused(drafter):
    until(lambda: drafter.verifier().get("refusal"), "it knows why")


def start_refused(mesh, keys, reason):
    verifier = keys.start()
    options = ("--insecure-no-auth",)
    if reason == "key":
        options = keys.drafter("mac", allowed=False)
    elif reason == "broken":
        options = keys.drafter("mac", server="ab" * 32)
    drafter = mesh.drafter("", *options, ready=False)
    is_refused(drafter)
    return verifier, drafter


@cases(
    "reason, remedy",
    """
    ["key", "specmesh keys allow"]
    ["mechanism", "specmesh keys new"]
    ["broken", "specmesh keys list"]
    """,
)
@fault("E6.61", "E6.59", "E6.60")
def test_a_refused_drafter_knows_why(mesh, keys, reason, remedy):
    """It is not attached, and the text goes on."""
    verifier, drafter = start_refused(mesh, keys, reason)

    def tried():
        return int(drafter.stats()["wire"]["handshake_failures"].get(reason, 0))

    until(lambda: tried() > 1, "it is refused, and tries again")
    generate(drafter, PROMPT).refused(69, remedy)
    assert peers(verifier) == []
    writes(verifier, PROMPT, 30)


@fault("E6.61")
def test_an_unknown_key_joins_once_it_is_allowed(mesh, keys):
    verifier, drafter = start_refused(mesh, keys, "key")
    refused = verifier.event("drafter_refused")
    assert verifier.stats()["wire"]["handshake_failures"]["key"] > 0
    keys.run("allow", refused["key"], "--name", "mac")
    mesh.attached(drafter)
    assert drafter.verifier()["refusal"] is None
    writes(drafter, PROMPT, 30)


@fault("E6.62")
def test_revoked_while_it_drafts(mesh, keys, proxy):
    """Its connection is cut, its own texts end, and others go on with another drafter."""
    verifier = keys.start("step_ms=4")
    link = proxy(mesh.port)
    lost = mesh.drafter("", *keys.drafter("lost", link.port), port=link.port, name="lost")
    with Stream(verifier, body(PROMPT, 4000, draft_n=4)) as stream:
        stream.drafted(8)
        kept = mesh.drafter("", *keys.drafter("kept"), name="kept")
        connections = link.connections
        own = Stream(lost, body(PROMPT, 4000, reconnect_timeout=2)).read(5)
        keys.run("revoke", "lost")
        until(lambda: peers(verifier) == ["kept"], "it is gone")
        until(lambda: link.connections > connections, "its connection was cut, and it tries again")
        stream.drafted(8)
        is_refused(lost)
    with own, pytest.raises(Exception, match="verifier"):
        own.read()
    own.checked()
    stream.checked()
    verifier.idle()
    assert not verifier.events("session_kept")
    assert verifier.event("drafter_gone")["reason"] == "revoked"
    assert (kept.events("verifier_lost"), kept.stats()["reconnects"]) == ([], 0)


def test_a_verifier_that_is_trusted_no_more(mesh, keys):
    """The drafter leaves it at once, and finds it again, without a restart."""
    verifier = keys.start()
    option, folder = keys.drafter("mac")
    drafter = mesh.drafter("", option, folder)
    assert command("keys", "revoke", mesh.address, keys=folder).code == 0
    until(lambda: drafter.verifier()["name"] is None, "it has left")
    is_refused(drafter)
    assert generate(drafter, PROMPT).code == 69
    trusted = ("--verifier", mesh.address, "--keys", folder)
    assert command("keys", "allow", keys.public, *trusted).code == 0
    mesh.attached(drafter)
    writes(verifier, PROMPT, 30)


@pytest.mark.parametrize("keyed", [True, False])
@fault("E6.66")
def test_what_a_listener_sees(mesh, keys, proxy, keyed):
    """Only without keys it sees prompt, ids and name, which shows that the test would find them."""
    verifier = keys.start() if keyed else mesh.verifier()
    link = proxy(mesh.port)
    options = keys.drafter("mac", link.port) if keyed else ()
    drafter = mesh.drafter("", *options, port=link.port)
    for daemon in (verifier, drafter):
        stream = drafted(daemon, body(PROMPT, 60, draft_n=4)).checked()
        assert daemon.event("ready")["encrypted"] == keyed
    verifier.idle()
    drafter.idle()
    seen = b"".join(map(bytes, link.captured))
    assert (PROMPT.encode() in seen) != keyed
    assert (b"sim-target" in seen) != keyed
    id_pairs = [struct.pack("<2i", *pair) for pair in pairwise(stream.ids)]
    assert any(pair in seen for pair in id_pairs) != keyed


@fault("E6.67")
def test_a_replay_does_not_get_in(mesh, keys, proxy):
    """The handshake of a good drafter's recorded bytes ends at the verifier's first answer."""
    verifier = keys.start()
    link = proxy(mesh.port)
    drafter = mesh.drafter("", *keys.drafter("mac", link.port), port=link.port)
    writes(drafter, PROMPT, 30)
    recorded = bytes(link.captured[0])
    with many(("127.0.0.1", mesh.port), 1, recorded) as [replay], suppress(ConnectionResetError):
        while replay.recv(4096):
            pass
    assert peers(verifier) == ["mac"]
    assert len(verifier.events("drafter_attached")) == 1


def write_over(path, text):
    """Write at once: a list that is emptied first lets nobody in for a moment."""
    with path.open("r+") as file:
        file.write(text)


@fault("E8.96")
def test_a_broken_list_changes_nothing(mesh, keys):
    """The peers stay until the list is right again."""
    verifier = keys.start()
    mesh.drafter("", *keys.drafter("mac"))
    listing = keys.verifier.path / "drafters"
    right = listing.read_text()
    for text, event in (("all of them\n", "drafters_not_read"), (right, "drafters_read")):
        write_over(listing, text)
        verifier.event(event)
        assert peers(verifier) == ["mac"]


DIES = """protect = auth.ZapGuard.protect
auth.ZapGuard.protect = lambda *both: (protect(*both), both[0].pipe.send(b'TERMINATE'))"""


@fault("E6.63")
def test_a_dead_handler_lets_nobody_in(mesh, keys):
    """The thread that answers libzmq has ended; texts go on."""
    verifier = keys.start("", DIES)
    options = [keys.drafter("mac"), keys.drafter("eve", allowed=False), ("--insecure-no-auth",)]
    for number, words in enumerate(options):
        mesh.drafter("", *words, name=f"{number}", ready=False)
    for drafter in mesh.daemons[1:]:
        is_refused(drafter)
        assert drafter.verifier()["name"] is None
    assert peers(verifier) == []
    writes(verifier, PROMPT, 30)


UNPROTECTED = "auth.protect_server = lambda socket, identity: None"
TRUSTING = "auth.ZapGuard.callback = lambda guard, domain, key: True"


@pytest.mark.parametrize(("change", "keyed"), [(UNPROTECTED, False), (TRUSTING, True)])
@fault("E6.64")
def test_an_open_door_lets_nobody_speak(mesh, keys, change, keyed):
    """A defect lets strangers through the handshake; their frames are refused unread."""
    verifier = keys.start("", change)
    options = keys.drafter("mac", allowed=False) if keyed else ("--insecure-no-auth",)
    drafter = mesh.drafter("", *options, ready=False)
    until(lambda: verifier.rejected("key") > 1, "it is refused, and says HELLO again")
    assert drafter.verifier()["name"] is None
    assert (peers(verifier), verifier.events("drafter_attached")) == ([], [])


def claims(key, hello):
    """Return READY and one message of a client that calls itself the user `key`."""
    ready = b"\x05READY"
    fields = {b"Socket-Type": b"DEALER", b"Identity": b"x", b"User-Id": key.encode()}
    for name, value in fields.items():
        ready += bytes([len(name)]) + name + struct.pack(">I", len(value)) + value
    return bytes([4, len(ready)]) + ready + bytes([0, len(hello)]) + hello


@fault("E6.64")
def test_a_key_is_proved_not_claimed(mesh, keys):
    """Without a protected handshake libzmq believes a peer's word for its key."""
    _, folder = keys.drafter("mac")
    verifier = keys.start("", UNPROTECTED)
    with socket.create_connection(("127.0.0.1", mesh.port)) as client:
        client.sendall(greeting(b"NULL"))
        client.recv(len(greeting(b"NULL")), socket.MSG_WAITALL)
        client.sendall(claims(KeyFolder(folder).identity().public.hex(), encode(hello("mac"))))
        until(lambda: verifier.rejected("key"), "it is refused")
    assert peers(verifier) == []


@fault("E6.65")
def test_unsafe_keys_are_refused(mesh, keys, role):
    """Others can read the secret: the error has the remedy."""
    (keys.verifier.path / "secret.key").chmod(0o644)
    mesh.cannot_start(role, "--keys", keys.verifier.path).refused(77, "chmod 600", "secret.key")


def test_pair(mesh):
    """The code introduces two machines without keys, and is good once."""
    box = mesh.folder / "box.keys"
    mac = mesh.folder / "mac.keys"
    address = f"127.0.0.1:{free_port()}"
    bind = {"SPECMESH_VERIFIER_BIND": mesh.address}
    waiting = Running("pair", "--keys", box, "--address", address, env=bind)
    _, _, shown = waiting.line(f"specmesh pair {address}").partition(address)
    first, second = (command("pair", address, shown.split()[0], keys=mac) for _ in range(2))
    ended = waiting.end()
    assert (first.code, second.code, ended.code) == (0, 69, 0)
    assert f"--connect {mesh.address}" in first.out
    verifier = mesh.verifier("", "--keys", box)
    drafter = mesh.drafter("", "--keys", mac)
    writes(drafter, PROMPT, 30)
    [key] = peers(verifier)
    assert f"keys revoke {key}" in ended.out


@cases(
    "address, why",
    """
    ["0.0.0.0", "every network"]
    ["192.0.2.1", "cannot listen at 192.0.2.1:7072"]
    """,
)
def test_pair_waits_at_one_address(mesh, address, why):
    """The folder of the daemon's settings is the one that is paired."""
    folder = mesh.folder / "named.keys"
    done = command("pair", address=address, env={"SPECMESH_VERIFIER_KEYS": str(folder)})
    assert done.code == 78
    assert why in done.err
    assert (folder / "secret.key").exists()
