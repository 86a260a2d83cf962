"""Keys on the wire, with the real daemons: who gets in, who is cut off, what a listener sees, what is refused; and
`specmesh pair`, which has two machines know each other's."""

import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pytest
from harness import PATIENCE
from harness.ports import free_port
from peer import greeting
from processes import (
    Daemon,
    Mesh,
    Running,
    Stream,
    body,
    command,
    complete,
    drafted,
    edited,
    generate,
    sim_text,
    until,
)
from proxy import Proxy

from specmesh.security.keys import KeyFolder, Listing
from specmesh.wire import messages as m
from specmesh.wire.codec import encode

PROMPT = "Nobody reads along"
fault = pytest.mark.fault
AUTH = "from specmesh.security import curve as auth"


class Keys:
    """Folders of keys: one for the verifier, and one per drafter, which knows the verifier's key."""

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh
        self.verifier = KeyFolder(mesh.folder / "verifier.keys")
        self.public = self.verifier.new().public.hex()

    def drafter(
        self, name: str, port: int | None = None, *, allowed: bool = True, server: str = ""
    ) -> Path:
        """A drafter's folder; it expects this verifier, or `server`'s key, at the mesh's port or another."""
        folder = KeyFolder(self._mesh.folder / f"{name}.keys")
        key = folder.new().public.hex()
        folder.allow(
            Listing.VERIFIERS, server or self.public, f"tcp://127.0.0.1:{port or self._mesh.port}"
        )
        if allowed:
            self.run("allow", key, "--name", name)
        return folder.path

    def run(self, *words: object) -> None:
        """`specmesh keys` on the verifier's folder."""
        done = command("keys", words[0], "--keys", self.verifier.path, *words[1:])
        assert done.code == 0, done.err


@pytest.fixture
def keys(mesh: Mesh) -> Keys:
    return Keys(mesh)


def peers(verifier: Daemon) -> list[object]:
    """The names of the keys of its drafters."""
    return sorted(str(peer["key"]) for peer in verifier.stats()["peers"])


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        ("key", "specmesh keys allow"),
        ("mechanism", "specmesh keys new"),
        ("broken", "specmesh keys list"),
    ],
)
@fault("E6.61")
@fault("E6.59")
@fault("E6.60")
def test_refused_until_allowed(mesh: Mesh, keys: Keys, reason: str, said: str):
    """No drafter is attached, its socket says why, the text goes on; an unknown key joins once it is allowed."""
    verifier = mesh.verifier("", "--keys", keys.verifier.path)
    options: dict[str, tuple[object, ...]] = {
        "key": ("--keys", keys.drafter("mac", allowed=False)),
        "mechanism": ("--insecure-no-auth",),
        "broken": ("--keys", keys.drafter("lost", server="ab" * 32)),
    }
    drafter = mesh.drafter("", *options[reason], ready=False)
    until(lambda: drafter.verifier().get("refusal"), "it knows why")
    until(
        lambda: drafter.stats()["wire"]["handshake_failures"].get(reason, 0) > 1,
        "it is refused, and tries again",
    )
    generate(drafter, PROMPT).refused(69, said)
    assert peers(verifier) == []
    assert complete(verifier, body(PROMPT, 30)).text == sim_text(PROMPT, 30)
    if reason == "key":
        assert verifier.stats()["wire"]["handshake_failures"]["key"] > 1
        [refused] = verifier.events("drafter_refused")
        keys.run("allow", refused["key"], "--name", "mac")
        mesh.attached(drafter)
        assert drafter.verifier()["refusal"] is None
        assert complete(drafter, body(PROMPT, 30)).text == sim_text(PROMPT, 30)


@fault("E6.62")
def test_revoked_while_it_drafts(mesh: Mesh, keys: Keys, proxy: Callable[..., Proxy]):
    """Its connection is cut, and what it asked for ends; a text goes on with the other. Allowed again, it is back."""
    verifier, link = mesh.verifier("step_ms=4", "--keys", keys.verifier.path), proxy(mesh.port)
    lost = mesh.drafter("", "--keys", keys.drafter("lost", link.port), port=link.port, name="lost")
    with Stream(verifier, body(PROMPT, 4000, draft_n=4)) as stream:
        stream.drafted(8)
        kept = mesh.drafter("", "--keys", keys.drafter("kept"), name="kept")
        connections = link.connections
        own = Stream(lost, body(PROMPT, 4000, reconnect_timeout=2)).read(5)
        keys.run("revoke", "lost")
        until(lambda: peers(verifier) == ["kept"], "it is gone")
        until(lambda: link.connections > connections, "its connection was cut, and it tries again")
        stream.drafted(8)
        until(lambda: lost.verifier().get("refusal"), "it knows why")
    with own, pytest.raises(Exception, match="verifier"):
        own.read()
    assert sim_text(PROMPT, 4000).startswith(own.text)
    until(lambda: verifier.live() == 0, "both sessions end")
    assert not verifier.events("session_kept")
    assert stream.text == sim_text(PROMPT, len(stream.ids))
    assert [event["reason"] for event in verifier.events("drafter_gone")] == ["revoked"]
    assert (kept.events("verifier_lost"), kept.stats()["reconnects"]) == ([], 0)
    keys.run(
        "allow", KeyFolder(mesh.folder / "lost.keys").identity().public.hex(), "--name", "lost"
    )
    mesh.attached(lost)


def test_a_verifier_that_is_trusted_no_more(mesh: Mesh, keys: Keys):
    """Revoked at the drafter, the verifier is left at once; trusted again, it is found again, without a restart."""
    verifier, folder = mesh.verifier("", "--keys", keys.verifier.path), keys.drafter("mac")
    drafter = mesh.drafter("", "--keys", folder)
    assert command("keys", "revoke", mesh.address, "--keys", folder).code == 0
    until(lambda: drafter.verifier()["name"] is None, "it has left")
    until(lambda: drafter.verifier().get("refusal"), "it says why")
    assert generate(drafter, PROMPT).code == 69
    assert (
        command("keys", "allow", keys.public, "--verifier", mesh.address, "--keys", folder).code
        == 0
    )
    mesh.attached(drafter)
    assert complete(verifier, body(PROMPT, 30)).text == sim_text(PROMPT, 30)


@pytest.mark.parametrize("keyed", [True, False])
@fault("E6.66")
def test_what_a_listener_sees(mesh: Mesh, keys: Keys, proxy: Callable[..., Proxy], keyed: bool):
    """Neither prompt nor ids nor name; without keys all three, so this test would see them. Drafts stand either way."""
    verifier, link = (
        mesh.verifier("", *(("--keys", keys.verifier.path) if keyed else ())),
        proxy(mesh.port),
    )
    options = ("--keys", keys.drafter("mac", link.port)) if keyed else ()
    drafter = mesh.drafter("", *options, port=link.port)
    for daemon in (verifier, drafter):
        stream = drafted(daemon, body(PROMPT, 60, draft_n=4, rounds=True))
        assert stream.text == sim_text(PROMPT, 60)
        assert [event["encrypted"] for event in daemon.events("ready")] == [keyed]
    assert not keyed or peers(verifier) == ["mac"]
    until(lambda: verifier.live() == 0 and drafter.live() == 0, "the sessions end")
    seen = bytes(link.captured[0]) + bytes(link.captured[1])
    ids = [struct.pack("<2i", *pair) for pair in pairwise(stream.ids)]
    found = [PROMPT.encode() in seen, any(two in seen for two in ids), b"sim-target" in seen]
    assert found == [not keyed] * 3


@fault("E6.67")
def test_a_replay_does_not_get_in(mesh: Mesh, keys: Keys, proxy: Callable[..., Proxy]):
    """A good drafter's bytes, sent again by somebody else: the handshake ends at the verifier's first answer."""
    verifier, link = mesh.verifier("", "--keys", keys.verifier.path), proxy(mesh.port)
    drafter = mesh.drafter("", "--keys", keys.drafter("mac", link.port), port=link.port)
    complete(drafter, body(PROMPT, 30))
    with (
        socket.create_connection(("127.0.0.1", mesh.port), PATIENCE) as replay,
        suppress(ConnectionResetError),
    ):
        replay.sendall(bytes(link.captured[0]))
        while replay.recv(4096):
            pass
    assert peers(verifier) == ["mac"]
    assert len(verifier.events("drafter_attached")) == 1


def write_over(path: Path, text: str) -> None:
    """At once: a list that is emptied first lets nobody in for a moment."""
    with path.open("r+") as file:
        file.write(text)


@fault("E8.96")
def test_a_broken_list_changes_nothing(mesh: Mesh, keys: Keys):
    """A list that was broken by hand keeps those in who were; the next right one holds."""
    verifier = mesh.verifier("", "--keys", keys.verifier.path)
    mesh.drafter("", "--keys", keys.drafter("mac"))
    listing = keys.verifier.path / "drafters"
    right = listing.read_text()
    write_over(listing, "all of them\n")
    until(lambda: verifier.events("drafters_not_read"), "it is told")
    assert peers(verifier) == ["mac"]
    write_over(listing, right)
    until(lambda: verifier.events("drafters_read"), "it is read again")
    assert peers(verifier) == ["mac"]


@fault("E6.63")
def test_a_dead_handler_lets_nobody_in(mesh: Mesh, keys: Keys):
    """The thread that answers libzmq has ended: keys allowed, unknown and none are kept out, and the text goes on."""
    dies = "protect = auth.ZapGuard.protect\n"
    dies += (
        "auth.ZapGuard.protect = lambda *both: (protect(*both), both[0].pipe.send(b'TERMINATE'))"
    )
    verifier = mesh.verifier("", "--keys", keys.verifier.path, program=edited(AUTH, dies))
    kinds = {
        "allowed": ("--keys", keys.drafter("allowed")),
        "unknown": ("--keys", keys.drafter("unknown", allowed=False)),
        "none": ("--insecure-no-auth",),
    }
    drafters = [mesh.drafter("", *words, name=name, ready=False) for name, words in kinds.items()]
    for drafter in drafters:
        until(lambda drafter=drafter: drafter.verifier().get("refusal"), "it is kept out")
        assert drafter.verifier()["name"] is None
    assert peers(verifier) == []
    assert complete(verifier, body(PROMPT, 30)).text == sim_text(PROMPT, 30)


@pytest.mark.parametrize(
    ("change", "options"),
    [
        ("auth.protect_server = lambda socket, identity: None", ("--insecure-no-auth",)),
        ("auth.ZapGuard.callback = lambda guard, domain, key: True", ()),
    ],
)
@fault("E6.64")
def test_an_open_door_lets_nobody_speak(
    mesh: Mesh, keys: Keys, change: str, options: tuple[str, ...]
):
    """Where a defect lets strangers through the handshake, each of their frames is refused, unread."""
    verifier = mesh.verifier("", "--keys", keys.verifier.path, program=edited(AUTH, change))
    drafter = mesh.drafter(
        "", *(options or ("--keys", keys.drafter("mac", allowed=False))), ready=False
    )
    until(
        lambda: verifier.stats()["wire"]["rejected"].get("key", 0) > 1,
        "it is refused, and says HELLO again",
    )
    assert drafter.verifier()["name"] is None
    assert (peers(verifier), verifier.events("drafter_attached")) == ([], [])


def claims(key: str, hello: bytes) -> bytes:
    """What a client sends after the greeting that says it is the user `key`: READY and one message."""

    def field(name: bytes, value: bytes) -> bytes:
        return bytes([len(name)]) + name + len(value).to_bytes(4, "big") + value

    ready = (
        b"\x05READY"
        + field(b"Socket-Type", b"DEALER")
        + field(b"Identity", b"x")
        + field(b"User-Id", key.encode())
    )
    return bytes([4, len(ready)]) + ready + bytes([0, len(hello)]) + hello


@fault("E6.64")
def test_a_key_is_proved_not_claimed(mesh: Mesh, keys: Keys):
    """Where the handshake protects nothing, libzmq takes what a peer says of itself."""
    allowed = KeyFolder(keys.drafter("mac")).identity().public.hex()
    change = "auth.protect_server = lambda socket, identity: None"
    verifier = mesh.verifier("", "--keys", keys.verifier.path, program=edited(AUTH, change))
    with socket.create_connection(("127.0.0.1", mesh.port)) as client:
        client.sendall(greeting(b"NULL"))
        client.recv(len(greeting(b"NULL")), socket.MSG_WAITALL)
        client.sendall(
            claims(
                allowed,
                encode(
                    m.Hello(
                        drafter="mac",
                        engine="sim",
                        model="",
                        vocab_fingerprint="",
                        n_vocab=0,
                        n_ctx=4096,
                    )
                ),
            )
        )
        until(lambda: verifier.stats()["wire"]["rejected"].get("key", 0) > 0, "it is refused")
    assert peers(verifier) == []


@fault("E6.65")
def test_unsafe_keys_are_refused(mesh: Mesh, keys: Keys, role: str):
    """A secret that others can read: exit 77, and how to mend it."""
    (keys.verifier.path / "secret.key").chmod(0o644)
    mesh.cannot_start(role, "--keys", keys.verifier.path).refused(77, "chmod 600", "secret.key")


class Pairing(Running):
    """`specmesh pair` on the verifier's machine, which waits; `code` is what it shows."""

    def __init__(self, folder: Path, bind: str) -> None:
        self.address = f"127.0.0.1:{free_port()}"
        words = ("pair", "--keys", folder, "--address", self.address)
        super().__init__(*words, env={"SPECMESH_VERIFIER_BIND": bind})
        _, _, shown = self.line(f"specmesh pair {self.address}").partition(self.address)
        self.code = shown.split()[0]


def test_pair(mesh: Mesh):
    """Two machines without keys, paired by the code alone. A wrong code is refused, and the right one is good once."""
    box, mac = mesh.folder / "box.keys", mesh.folder / "mac.keys"
    pairing = Pairing(box, mesh.address)
    wrong = f"{(int(pairing.code[:4]) + 1) % 10**4:04}{pairing.code[4:]}"
    refused = command("pair", pairing.address, wrong, "--keys", mac), pairing.end()
    assert [done.code for done in refused] == [77, 77], refused
    assert [done.err.count("specmesh pair") for done in refused] == [1, 1], refused
    pairing = Pairing(box, mesh.address)
    codes = [command("pair", pairing.address, pairing.code, "--keys", mac) for _ in range(2)]
    assert [done.code for done in codes] == [0, 69], codes
    ended = pairing.end()
    assert ended.code == 0
    assert f"--connect {mesh.address}" in codes[0].out
    verifier = mesh.verifier("", "--keys", box)
    drafter = mesh.drafter("", "--keys", mac)
    for daemon in (verifier, drafter):
        assert complete(daemon, body(PROMPT, 30)).text == sim_text(PROMPT, 30)
    [peer] = verifier.stats()["peers"]
    assert f"keys revoke {peer['key']}" in ended.out


def test_pair_waits_at_one_address(mesh: Mesh):
    """Not at every network, nor at another machine's. The folder that the daemon's settings name is the one paired."""
    folder = mesh.folder / "named.keys"
    for address, said in (
        ("0.0.0.0", "every network"),
        ("192.0.2.1", "cannot listen at 192.0.2.1:7072"),
    ):
        done = command("pair", "--address", address, env={"SPECMESH_VERIFIER_KEYS": str(folder)})
        assert (done.code, said in done.err) == (78, True), done.err
    assert (folder / "secret.key").exists()
