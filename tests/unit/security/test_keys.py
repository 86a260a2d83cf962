"""Folders of keys, the files in them that are refused, and addresses that need keys."""

import os
import socket
from itertools import product

import pytest
import zmq
from click.testing import CliRunner
from harness.tables import cases
from zmq.utils import z85

from specmesh import paths
from specmesh.cli import main
from specmesh.daemons.link.names import numbers_here
from specmesh.errors import ConfigError, InsecureKeys, NotThereYet
from specmesh.security import keys
from specmesh.security.addresses import check_bind, check_connect, check_one_network, check_rpc
from specmesh.security.keys import KeyFolder, Listing, find_keys, parse_key

fault = pytest.mark.fault

KEY = "ab" * 32
OTHER = "cd" * 32
DRAFTERS = Listing.DRAFTERS
VERIFIERS = Listing.VERIFIERS


@pytest.fixture
def folder(tmp_path):
    made = KeyFolder(tmp_path / "keys")
    made.new()
    return made


def mode(path):
    return path.stat().st_mode & 0o777


def run(*args):
    return CliRunner().invoke(main, [*map(str, args)])


# --- keys


def test_a_new_key(folder):
    made = folder.identity()
    assert z85.decode(zmq.curve_public(z85.encode(made.secret))) == made.public
    assert made.secret.hex() not in repr(made)


def test_a_new_key_is_private_under_any_umask(tmp_path):
    folder = KeyFolder(tmp_path / "deep" / "keys")
    before = os.umask(0)
    try:
        folder.new()
    finally:
        os.umask(before)
    assert (mode(folder.path), mode(folder.path / "secret.key")) == (0o700, 0o600)


def test_a_key_is_not_replaced_by_accident(folder):
    first = folder.identity()
    with pytest.raises(ConfigError, match="there already"):
        folder.new()
    assert folder.identity() == first
    assert folder.new(replace=True) != first


@pytest.mark.parametrize("text", ["", "ab", "ab" * 33, "-" * 64, "g" * 64])
def test_what_is_no_key(text):
    with pytest.raises(ConfigError, match="specmesh keys show"):
        parse_key(text)


def test_a_key_may_be_in_capitals():
    assert parse_key(f" {KEY.upper()}\n") == KEY


# --- lists


def test_keys_come_on_a_list(folder):
    folder.allow(DRAFTERS, KEY, "mac")
    folder.allow(DRAFTERS, OTHER, "studio")
    assert folder.listed(DRAFTERS) == {KEY: "mac", OTHER: "studio"}
    assert mode(folder.path / "drafters") == 0o600


@pytest.mark.parametrize(
    ("revoked", "listings"),
    [
        ("nobody", []),
        ("mac", [DRAFTERS]),
        (KEY, [DRAFTERS, VERIFIERS]),
        ("tcp://192.0.2.1:7071", [VERIFIERS]),
    ],
)
def test_keys_go_off_the_lists(folder, revoked, listings):
    """A key is revoked by itself, by its name or by its address."""
    folder.allow(DRAFTERS, KEY, "mac")
    folder.allow(VERIFIERS, KEY, "tcp://192.0.2.1:7071")
    assert [listing for listing, _ in folder.revoke(revoked)] == listings
    for listing in Listing:
        assert (KEY in folder.listed(listing)) == (listing not in listings)


def test_a_name_is_one_keys(folder):
    """It is not given to another key by accident, and a key has one name."""
    folder.allow(DRAFTERS, KEY, "mac")
    with pytest.raises(ConfigError, match="revoke mac"):
        folder.allow(DRAFTERS, OTHER, "mac")
    folder.allow(DRAFTERS, OTHER, "mac", replace=True)
    assert folder.listed(DRAFTERS) == {OTHER: "mac"}
    folder.allow(DRAFTERS, OTHER, "studio")
    assert folder.listed(DRAFTERS) == {OTHER: "studio"}


@pytest.mark.parametrize(
    ("words", "code", "remedy"),
    [
        ("abc", 78, "64 hexadecimal digits"),
        (f"{KEY} --verifier bigbox", 78, "tcp://HOST:PORT"),
        (f"{KEY} --verifier tcp://a:1 --name b", 2, "leave one out"),
        (f"{KEY} --name two,words", 78, "one word"),
    ],
)
def test_what_cannot_be_allowed(folder, words, code, remedy):
    words = [word.replace(",", " ") for word in words.split()]
    done = run("keys", "allow", "--keys", folder.path, *words)
    assert done.exit_code == code
    assert remedy in done.stderr
    assert folder.listed(DRAFTERS) == folder.listed(VERIFIERS) == {}


@pytest.mark.parametrize("line", ["mac", KEY, f"{KEY[:-1]} mac", f"mac {KEY}", f"{KEY} a b", "\0"])
def test_a_wrong_list(folder, line):
    folder.allow(DRAFTERS, OTHER, "mac")
    with (folder.path / "drafters").open("a") as file:
        file.write(f"# a comment\n\n{line}\n")
    with pytest.raises(ConfigError, match="drafters:4"):
        folder.listed(DRAFTERS)


def test_an_address_has_one_key(folder):
    """The newest key counts, in whatever letters the address is written."""
    for key in (KEY, OTHER):
        folder.allow(VERIFIERS, key, "tcp://BigBox:7071", replace=True)
    assert folder.verifier_at("tcp://bigbox:7071") == bytes.fromhex(OTHER)
    folder.allow(VERIFIERS, OTHER, "tcp://other:7071")
    assert len(folder.entries(VERIFIERS)) == 2


def test_a_verifier_of_this_machine_has_our_own_key(folder):
    assert folder.verifier_at("tcp://127.0.0.1:7071") == folder.identity().public
    assert folder.verifier_at("tcp://bigbox:7071") is None


# --- files that are refused


def read_all(folder):
    folder.identity()
    for listing in Listing:
        folder.listed(listing)


@pytest.mark.parametrize(
    ("name", "right"),
    [
        *product(["secret.key", "drafters", "verifiers"], [0o640, 0o604, 0o620, 0o602, 0o601]),
        (".", 0o720),
    ],
)
@fault("E6.65")
def test_open_files_are_refused(folder, name, right):
    """Files of a folder that others may write could be anybody's."""
    for listing in Listing:
        folder.allow(listing, KEY, "tcp://192.0.2.1:7071")
    path = folder.path / name
    path.chmod(right)
    private = "700" if name == "." else "600"
    with pytest.raises(InsecureKeys, match=f"chmod {private} {path}") as raised:
        read_all(folder)
    assert raised.value.exit_code == 77


@fault("E6.65")
def test_a_link_is_refused(folder, tmp_path):
    path = folder.path / "secret.key"
    path.rename(tmp_path / "away")
    path.symlink_to(tmp_path / "away")
    with pytest.raises(InsecureKeys, match="symbolic link"):
        folder.identity()


@fault("E6.65")
def test_a_pipe_is_refused(folder):
    path = folder.path / "secret.key"
    path.unlink()
    os.mkfifo(path, 0o600)
    with pytest.raises(InsecureKeys, match="no regular file"):
        folder.identity()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
@fault("E6.65")
def test_other_peoples_files_are_refused(folder):
    """Root reads the files of the folder's owner, whose service it looks after."""
    os.chown(folder.path / "secret.key", 12345, 12345)
    with pytest.raises(InsecureKeys, match="user 12345"):
        folder.identity()
    os.chown(folder.path, 12345, 12345)
    folder.identity()
    folder.allow(DRAFTERS, KEY, "mac")
    assert (folder.path / "drafters").stat().st_uid == 12345


# --- folders


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """The user's and the system's folder of keys, neither of which exists."""
    configs = [tmp_path / "user", tmp_path / "system"]
    for module in (keys, paths):
        monkeypatch.setattr(module, "config_folders", lambda: configs)
    return [KeyFolder(config / "keys") for config in configs]


def test_the_users_keys_come_before_the_systems(folders):
    user, system = folders
    assert find_keys(None) is None
    system.new()
    assert find_keys(None) == system
    user.new()
    assert find_keys(None) == user


def test_a_named_folder_must_have_a_key(tmp_path):
    folder = KeyFolder(tmp_path / "named")
    with pytest.raises(ConfigError, match="specmesh keys new --keys"):
        find_keys(folder.path)
    folder.new()
    assert find_keys(folder.path) == folder


def test_a_named_folder_that_may_come_is_not_there_yet(tmp_path):
    """It is missing, or empty as the place of a disk; one with other files is wrong."""
    folder = tmp_path / "disk" / "keys"
    with pytest.raises(NotThereYet):
        find_keys(folder)
    folder.mkdir(parents=True)
    with pytest.raises(NotThereYet):
        find_keys(folder)
    (folder / "drafters").touch()
    with pytest.raises(ConfigError) as raised:
        find_keys(folder)
    assert type(raised.value) is ConfigError


@cases("option, args", '["HOST", ["box:abc", "1234-5678"]] ["--address", ["--address", "box:abc"]]')
def test_pair_names_what_was_typed(tmp_path, option, args):
    done = run("pair", *args, "--keys", tmp_path)
    assert done.exit_code == 78
    assert f"{option} 'box:abc' is not an address: write HOST or HOST:PORT" in done.stderr


def test_pair_takes_the_key_that_the_daemon_has(folders):
    user, system = folders
    system.new()
    assert run("pair", "127.0.0.1:1", "1234-5678").exit_code == 69
    assert not user.path.parent.exists()


# --- networks of an address

EVERYWHERE = "* 0.0.0.0 0 0.0 0x0 [::] [::0] [0:0:0:0:0:0:0:0] [::ffff:0.0.0.0]"
NAMED = {"everywhere": "0.0.0.0", "all-of-six": "::", "mapped": "::ffff:0.0.0.0"}


@pytest.fixture(autouse=True)
def _names(monkeypatch):
    """Look up these names without a resolver."""
    resolve = socket.getaddrinfo

    def lookup(host, *more, flags=0, **options):
        known = NAMED.get(host, host)
        return resolve(known, *more, flags=flags | socket.AI_NUMERICHOST, **options)

    monkeypatch.setattr(socket, "getaddrinfo", lookup)


@pytest.mark.parametrize("host", EVERYWHERE.split())
@cases("keyed, insecure", "[false, false] [false, true] [true, true]")
@fault("E6.68")
def test_never_on_every_network(host, keyed, insecure):
    with pytest.raises(ConfigError, match="every network"):
        check_bind(f"tcp://{host}:7071", keyed=keyed, insecure=insecure)
    with pytest.raises(ConfigError, match="every network"):
        check_one_network(f"tcp://{host}:7072", "--address")


@pytest.mark.parametrize("host", NAMED)
@fault("E6.68")
def test_names_are_judged_by_their_numbers(host):
    with pytest.raises(ConfigError, match="every network"):
        numbers_here(host, "--bind")


ways = pytest.mark.parametrize(
    ("check", "option"), [(check_bind, "--bind"), (check_connect, "--connect")]
)
BEYOND = "192.0.2.1 example.org [2001:db8::1] [::ffff:192.168.1.5] eth0 localhost.example.org"
LOOPBACK = "127.0.0.1 127.8.9.10 localhost [::1] [::ffff:127.0.0.1]"


@ways
@pytest.mark.parametrize("host", BEYOND.split())
@fault("E6.68")
def test_beyond_loopback_needs_keys_or_a_word(check, option, host):
    address = f"tcp://{host}:7071"
    with pytest.raises(ConfigError, match=rf"{option}.*specmesh keys new.*--insecure-no-auth"):
        check(address, keyed=False, insecure=False)
    check(address, keyed=True, insecure=False)
    check(address, keyed=False, insecure=True)


@ways
def test_a_free_port_is_for_those_who_can_tell_it(check, option):
    """A daemon's drafters know its port by their own settings."""
    with pytest.raises(ConfigError, match=f"{option} .*not an address"):
        check("tcp://127.0.0.1:*", keyed=True, insecure=False)


@ways
@pytest.mark.parametrize("host", LOOPBACK.split())
@pytest.mark.parametrize("keyed", [False, True])
def test_loopback_needs_nothing(check, option, host, keyed):
    check(f"tcp://{host}:7071", keyed=keyed, insecure=False)


# --- llama.cpp's RPC, which has no keys


@pytest.mark.parametrize("insecure", [False, True])
def test_rpc_on_every_network_and_on_loopback(insecure):
    """Never there, and always here."""
    with pytest.raises(ConfigError, match=r"--bind.*every network"):
        check_rpc("0.0.0.0:50052", "--bind", insecure=insecure)
    for host in ("127.0.0.1", "localhost"):
        check_rpc(f"{host}:50052", "--rpc", insecure=insecure)


@pytest.mark.parametrize("host", ["192.0.2.1", "example.org"])
def test_rpc_beyond_loopback_needs_a_word(host):
    check_rpc(f"{host}:50052", "--rpc", insecure=True)
    refused = rf"--rpc {host}.*neither keys nor encryption.*--insecure-rpc"
    with pytest.raises(ConfigError, match=refused):
        check_rpc(f"{host}:50052", "--rpc", insecure=False)


@pytest.mark.parametrize(
    "address", ["", "box", "box:", ":1", "box:0", "box:65536", "box:x", "[::1]:1", "tcp://box:1"]
)
def test_no_address_for_rpc(address):
    """llama.cpp takes HOST:PORT with one colon, and ends the process over others."""
    with pytest.raises(ConfigError, match=r"write HOST:PORT, like 127\.0\.0\.1:50052"):
        check_rpc(address, "--rpc", insecure=True)
