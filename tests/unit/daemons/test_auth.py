"""The guard of a verifier's socket: who gets in, at once; and that nobody does where it is dead or was forgotten."""

import socket
import threading
from collections.abc import Callable
from dataclasses import replace

import pytest
import zmq
from gate import Gate
from harness.loops import PATIENCE, until

from specmesh.daemons.link import auth, transport
from specmesh.daemons.link.auth import Guard
from specmesh.daemons.link.curve import Handshake, next_handshake
from specmesh.daemons.link.transport import bind_router
from specmesh.errors import ConfigError, InsecureKeys
from specmesh.security.keys import Identity, KeyFolder, Listing, new_identity
from specmesh.wire import messages as m
from specmesh.wire.codec import encode


@pytest.mark.fault("E6.59")
@pytest.mark.fault("E6.60")
@pytest.mark.fault("E6.61")
def test_who_gets_in(gate: Gate):
    """A listed key and our own do; an unknown one, none, and one that expects another verifier do not, and are
    counted."""
    assert gate.ends(gate.friend) is Handshake.DONE
    assert gate.ends(gate.identity) is Handshake.DONE
    assert gate.ends(new_identity()) is Handshake.KEY
    assert gate.ends(None) is Handshake.MECHANISM
    assert gate.ends(gate.friend, new_identity().public) is Handshake.BROKEN
    until(lambda: {"key", "mechanism", "cryptography"} <= set(gate.guard.failures), "failures are counted")


@pytest.mark.fault("E6.62")
def test_allowed_and_revoked_while_it_runs(gate: Gate):
    """The list is followed: a new key gets in, a revoked one does not, and the loop is woken each time."""
    stranger = new_identity()
    assert gate.ends(stranger) is Handshake.KEY
    gate.keys.allow(Listing.DRAFTERS, stranger.public.hex(), "stranger")
    assert gate.woken.wait(PATIENCE)
    assert gate.ends(stranger) is Handshake.DONE
    gate.woken.clear()
    gate.keys.revoke("stranger")
    assert gate.woken.wait(PATIENCE)
    assert gate.ends(stranger) is Handshake.KEY
    assert gate.ends(gate.friend) is Handshake.DONE


@pytest.mark.fault("E8.96")
def test_a_wrong_list_changes_nothing(gate: Gate):
    """A list that others may write, or that is none, leaves those allowed who were; one that is gone, nobody."""
    assert gate.ends(gate.friend) is Handshake.DONE
    path = gate.keys.path / "drafters"
    before, stamp = gate.guard.allowed, gate.keys.stamp(Listing.DRAFTERS)
    path.chmod(0o666)
    path.write_text(path.read_text() + f"{new_identity().public.hex()} mallory\n")
    assert gate.keys.stamp(Listing.DRAFTERS) != stamp
    until(lambda: gate.guard._trouble, "the guard has looked")
    assert gate.guard.allowed == before
    path.unlink()
    until(lambda: gate.guard.allowed != before, "the guard has looked again")
    assert gate.guard.allowed == {gate.identity.public.hex()}


def test_a_list_that_could_not_be_read_is_read_again(gate: Gate, monkeypatch: pytest.MonkeyPatch):
    """Nobody stays allowed because a look at the list failed, for want of descriptors, just after it was changed."""
    listed = KeyFolder.listed

    def fails(_: KeyFolder, __: Listing) -> dict[str, str]:
        raise InsecureKeys("too many open files")

    monkeypatch.setattr(KeyFolder, "listed", fails)
    path = gate.keys.path / "drafters"
    path.write_text("")
    until(lambda: gate.guard._trouble, "the guard has looked")
    assert gate.friend.public.hex() in gate.guard.allowed
    monkeypatch.setattr(KeyFolder, "listed", listed)
    until(lambda: gate.guard.allowed == {gate.identity.public.hex()}, "the guard has looked again")


def test_a_replaced_key_lets_nobody_in(gate: Gate):
    """Whoever has the old secret of this machine is no drafter here, before the verifier is started again too."""
    assert gate.ends(gate.identity) is Handshake.DONE
    gate.keys.new(replace=True)
    until(lambda: gate.identity.public.hex() not in gate.guard.allowed, "the guard has looked")
    assert gate.ends(gate.identity) is Handshake.KEY
    assert gate.ends(gate.friend) is Handshake.DONE


def test_wrong_keys_at_the_start(closed: Gate):
    """Nothing begins with keys that others can read, or with a list that is none."""
    (closed.keys.path / "drafters").chmod(0o660)
    with pytest.raises(InsecureKeys):
        Guard(closed.context, closed.keys, closed.woken.set)
    (closed.keys.path / "drafters").chmod(0o600)
    (closed.keys.path / "drafters").write_text("mac\n")
    with pytest.raises(ConfigError, match="drafters:1"):
        Guard(closed.context, closed.keys, closed.woken.set)


@pytest.mark.fault("E6.63")
def test_a_dead_handler_lets_nobody_in(closed: Gate, monkeypatch: pytest.MonkeyPatch):
    """Without the handler's thread an allowed key gets no answer, or is refused; and the guard says that it is dead."""
    monkeypatch.setitem(transport._OPTIONS, zmq.HANDSHAKE_IVL, 1000)
    gate = closed
    gate.open()
    assert gate.ends(gate.friend) is Handshake.DONE
    assert gate.guard.alive
    assert gate.router.guarded
    gate.guard._closing.set()
    until(lambda: not gate.guard.alive, "it answers no more")
    assert not gate.router.guarded
    _, monitor = gate.client(gate.friend)
    assert next_handshake(monitor, PATIENCE) is Handshake.BROKEN


def without_domain(server: "zmq.Socket[bytes]", identity: Identity) -> None:
    """CURVE as one might think it is enough."""
    server.setsockopt(zmq.CURVE_SERVER, 1)
    server.setsockopt(zmq.CURVE_SECRETKEY, identity.secret)


def without_curve(server: "zmq.Socket[bytes]", identity: Identity) -> None:
    """A ZAP domain alone, which asks for no key."""
    server.setsockopt(zmq.ZAP_DOMAIN, auth.DOMAIN.encode())
    server.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)


def of_another_domain(server: "zmq.Socket[bytes]", identity: Identity) -> None:
    """A domain that the handler does not know."""
    without_domain(server, identity)
    server.setsockopt(zmq.ZAP_DOMAIN, b"*")
    server.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (without_domain, "own key was refused"),
        (without_curve, "an unknown key was refused"),
        (of_another_domain, "own key was refused"),
    ],
)
@pytest.mark.fault("E6.64")
def test_the_self_test_finds_what_a_bad_edit_leaves_open(
    closed: Gate, monkeypatch: pytest.MonkeyPatch, broken: Callable[..., None], said: str
):
    """A socket that lets strangers in, or nobody, is never bound to its address."""
    monkeypatch.setattr(auth, "protect_server", broken)
    with pytest.raises(InsecureKeys, match=said):
        bind_router(closed.context, closed.address, False, closed.guard)
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", int(closed.address.rpartition(":")[2]))) != 0


@pytest.mark.fault("E6.64")
def test_a_handler_that_fails_is_found_at_the_start(closed: Gate, monkeypatch: pytest.MonkeyPatch):
    """A handler that lets everybody in, and one that breaks."""
    monkeypatch.setattr(Guard, "callback", lambda *_: True)
    with pytest.raises(InsecureKeys, match="an unknown key was let in"):
        bind_router(closed.context, closed.address, False, closed.guard)


def test_messages_carry_their_senders_key(gate: Gate):
    """A frame counts while its sender's key is allowed; the name of the key is told when a drafter is attached."""
    client, _ = gate.client(gate.friend)
    [(identity, message, _)] = gate.say(client, m.Ping(1, 1))
    assert isinstance(message, m.Ping)
    assert gate.router.doors.attach(identity) == "friend"


def test_a_revoked_drafter_is_cut_off(gate: Gate):
    """It is named once, its connection ends, and what it had sent does not count; the other is not touched."""
    other = new_identity()
    gate.keys.allow(Listing.DRAFTERS, other.public.hex(), "other")
    until(lambda: "other" in gate.guard.names.values(), "the guard has looked")
    client, monitor = gate.client(gate.friend)
    [(identity, _, _)] = gate.say(client, m.Ping(1, 1))
    gate.router.doors.attach(identity)
    theirs, _ = gate.client(other)
    [(second, _, _)] = gate.say(theirs, m.Ping(1, 1))
    gate.router.doors.attach(second)
    assert gate.router.doors.expelled() == []
    gate.keys.revoke("friend")
    until(lambda: gate.friend.public.hex() not in gate.guard.allowed, "the guard has looked")
    client.send(encode(m.Ping(2, 1)))
    assert gate.router.socket.poll(int(PATIENCE * 1e3))
    assert list(gate.router.receive(0.0)) == []
    assert gate.router.traffic.rejected["key"] == 1
    assert gate.router.doors.expelled() == [identity]
    assert gate.router.doors.expelled() == []
    ended = [next_handshake(monitor, PATIENCE) for _ in range(2)]
    assert ended == [Handshake.DONE, Handshake.KEY]
    [(again, _, _)] = gate.say(theirs, m.Ping(3, 1))
    assert again == second


@pytest.mark.fault("E6.62")
def test_a_silent_revoked_drafter_is_cut_off(gate: Gate):
    """One that sends nothing more loses its connection all the same."""
    client, monitor = gate.client(gate.friend)
    [(identity, _, _)] = gate.say(client, m.Ping(1, 1))
    gate.router.doors.attach(identity)
    assert next_handshake(monitor, PATIENCE) is Handshake.DONE
    gate.keys.revoke("friend")
    until(lambda: gate.router.doors.expelled() == [identity], "it is named")
    assert next_handshake(monitor, PATIENCE) is Handshake.KEY


@pytest.mark.fault("E2.25")
def test_an_identity_belongs_to_its_key(gate: Gate):
    """Identities are the peers' own choice: another allowed key that took one over is not heard as that drafter."""
    client, _ = gate.client(gate.friend, routing_id=b"me")
    [(identity, _, _)] = gate.say(client, m.Ping(1, 1))
    assert identity == b"me"
    gate.router.doors.attach(identity)
    gate.router.doors._ends[identity] = replace(gate.router.doors._ends[identity], key=gate.identity.public.hex())
    assert gate.say(client, m.Ping(1, 1)) == []
    assert gate.router.traffic.rejected["key"] == 1
    gate.router.doors.detach(identity)
    assert len(gate.say(client, m.Ping(1, 1))) == 1


def test_invented_keys_do_not_fill_the_log(gate: Gate, monkeypatch: pytest.MonkeyPatch):
    """A key is named once in a minute, and so many at most."""
    named: list[str] = []
    monkeypatch.setattr(auth.log, "warning", lambda event, key, **_: named.append(key))
    for number in range(2 * auth.NAMED):
        for _ in range(2):
            gate.guard._name(f"{number:064x}")
    assert named == [f"{number:064x}" for number in range(auth.NAMED)]


def test_a_handler_that_dies_ends_with_the_socket(gate: Gate, monkeypatch: pytest.MonkeyPatch):
    """A defect in it is told; then nobody gets in, yet the monitor is read, and closing does not hang."""

    def fails(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(Guard, "_look", fails)
    until(lambda: not gate.guard.alive, "it answers no more")
    assert gate.guard._serving is False
    assert not gate.router.guarded
    closing = threading.Thread(target=gate.guard.close)
    closing.start()
    closing.join(PATIENCE)
    assert not closing.is_alive()


def test_the_self_test_is_not_counted(gate: Gate):
    """Its refusals are no strangers', however late they are told."""
    assert gate.ends(gate.friend) is Handshake.DONE
    assert gate.ends(new_identity()) is Handshake.KEY
    until(lambda: gate.guard.failures, "the stranger is counted")
    assert gate.guard.failures == {Handshake.KEY: 1}
