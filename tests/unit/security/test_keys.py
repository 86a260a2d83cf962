"""The folder of keys: what is in it, and what is refused; which addresses need keys."""

import os
import socket
from itertools import product
from pathlib import Path

import pytest
import zmq
from click.testing import CliRunner
from zmq.utils import z85

from specmesh import paths
from specmesh.cli import main
from specmesh.daemons.link.names import numbers_here
from specmesh.errors import ConfigError, InsecureKeys
from specmesh.security import check_bind, check_connect, check_one_network, check_rpc, keys
from specmesh.security.keys import KeyFolder, Listing, find_keys, parse_key

KEY, OTHER = "ab" * 32, "cd" * 32


@pytest.fixture
def folder(tmp_path: Path) -> KeyFolder:
    made = KeyFolder(tmp_path / "keys")
    made.new()
    return made


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_a_new_key(tmp_path: Path):
    before = os.umask(0)
    try:
        folder = KeyFolder(tmp_path / "deep" / "keys")
        made = folder.new()
    finally:
        os.umask(before)
    assert (mode(folder.path), mode(folder.path / "secret.key")) == (0o700, 0o600)
    assert z85.decode(zmq.curve_public(z85.encode(made.secret))) == made.public
    assert folder.identity() == made
    assert made.secret.hex() not in repr(made)


def test_a_key_is_not_replaced_by_accident(folder: KeyFolder):
    first = folder.identity()
    with pytest.raises(ConfigError, match="there already"):
        folder.new()
    assert folder.identity() == first
    assert folder.new(replace=True) != first


def test_lists(folder: KeyFolder):
    """Keys come on a list and off it, by key, by name and by address; a file others cannot read."""
    assert folder.listed(Listing.DRAFTERS) == {}
    folder.allow(Listing.DRAFTERS, KEY, "mac")
    folder.allow(Listing.DRAFTERS, OTHER, "studio")
    folder.allow(Listing.VERIFIERS, KEY, "tcp://192.0.2.1:7071")
    assert folder.listed(Listing.DRAFTERS) == {KEY: "mac", OTHER: "studio"}
    assert mode(folder.path / "drafters") == 0o600
    assert folder.revoke("nobody") == []
    assert folder.revoke("studio") == [(Listing.DRAFTERS, "studio")]
    assert folder.revoke(KEY) == [
        (Listing.DRAFTERS, "mac"),
        (Listing.VERIFIERS, "tcp://192.0.2.1:7071"),
    ]
    assert [folder.listed(listing) for listing in Listing] == [{}, {}]


def test_a_name_is_one_keys(folder: KeyFolder):
    """A name that has a key is not given to another by accident: the old key would stay allowed, or vanish."""
    folder.allow(Listing.DRAFTERS, KEY, "mac")
    with pytest.raises(ConfigError, match="revoke mac"):
        folder.allow(Listing.DRAFTERS, OTHER, "mac")
    folder.allow(Listing.DRAFTERS, OTHER, "mac", replace=True)
    assert folder.listed(Listing.DRAFTERS) == {OTHER: "mac"}
    folder.allow(Listing.DRAFTERS, OTHER, "studio")
    assert folder.listed(Listing.DRAFTERS) == {OTHER: "studio"}


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("abc",), 78, "64 hexadecimal digits"),
        ((KEY, "--verifier", "bigbox"), 78, "tcp://HOST:PORT"),
        ((KEY, "--verifier", "tcp://a:1", "--name", "b"), 2, "leave one out"),
        ((KEY, "--name", "two words"), 78, "one word"),
    ],
)
def test_what_cannot_be_allowed(folder: KeyFolder, words: tuple[str, ...], code: int, said: str):
    """Each mistake is told by what to write, and lets nobody in."""
    done = CliRunner().invoke(main, ["keys", "allow", "--keys", str(folder.path), *words])
    assert (done.exit_code, said in done.stderr) == (code, True), done.output
    assert folder.listed(Listing.DRAFTERS) == folder.listed(Listing.VERIFIERS) == {}


@pytest.mark.parametrize(
    ("name", "right"),
    [
        *product(["secret.key", "drafters", "verifiers"], [0o640, 0o604, 0o620, 0o602, 0o601]),
        (".", 0o720),
    ],
)
@pytest.mark.fault("E6.65")
def test_open_files_are_refused(folder: KeyFolder, name: str, right: int):
    """And a folder that others may write, which could hold anybody's files."""
    for listing in Listing:
        folder.allow(listing, KEY, "tcp://192.0.2.1:7071")
    path = folder.path / name
    path.chmod(right)
    with pytest.raises(
        InsecureKeys, match=f"chmod {'700' if path == folder.path else '600'} {path}"
    ) as caught:
        _ = folder.identity(), [folder.listed(listing) for listing in Listing]
    assert caught.value.exit_code == 77


@pytest.mark.fault("E6.65")
def test_other_files_are_refused(folder: KeyFolder, tmp_path: Path):
    path, away = folder.path / "secret.key", tmp_path / "away"
    path.rename(away)
    path.symlink_to(away)
    with pytest.raises(InsecureKeys, match="symbolic link"):
        folder.identity()
    path.unlink()
    os.mkfifo(path, 0o600)
    with pytest.raises(InsecureKeys, match="no regular file"):
        folder.identity()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.fault("E6.65")
def test_other_peoples_files_are_refused(folder: KeyFolder):
    """A file of another user; root reads those of the folder's owner, whose service it looks after."""
    os.chown(folder.path / "secret.key", 12345, 12345)
    with pytest.raises(InsecureKeys, match="user 12345"):
        folder.identity()
    os.chown(folder.path, 12345, 12345)
    folder.identity()
    folder.allow(Listing.DRAFTERS, KEY, "mac")
    assert (folder.path / "drafters").stat().st_uid == 12345


@pytest.mark.parametrize("line", ["mac", KEY, f"{KEY[:-1]} mac", f"mac {KEY}", f"{KEY} a b", "\0"])
def test_a_wrong_list(folder: KeyFolder, line: str):
    folder.allow(Listing.DRAFTERS, OTHER, "mac")
    with (folder.path / "drafters").open("a") as file:
        file.write(f"# a comment\n\n{line}\n")
    with pytest.raises(ConfigError, match="drafters:4"):
        folder.listed(Listing.DRAFTERS)


@pytest.mark.parametrize("text", ["", "ab", "ab" * 33, "-" * 64, "g" * 64])
def test_what_is_no_key(text: str):
    with pytest.raises(ConfigError, match="specmesh keys show"):
        parse_key(text)
    assert parse_key(f" {KEY.upper()}\n") == KEY


def test_where_keys_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The folder named, which must have a key; else the user's, else the system's; no keys are no error."""
    user, system, named = (KeyFolder(tmp_path / name) for name in ("user", "system", "named"))
    monkeypatch.setattr(keys, "key_folders", lambda: [user.path, system.path])
    assert find_keys(None) is None
    system.new()
    assert find_keys(None) == system
    user.new()
    assert find_keys(None) == user
    with pytest.raises(ConfigError, match="specmesh keys new --keys"):
        find_keys(named.path)
    named.new()
    assert find_keys(named.path) == named


def test_an_address_is_one_however_it_is_spelt(folder: KeyFolder):
    """It has one key, the newest; without one a verifier of this machine has our own, and others none."""
    for key in ("a" * 64, "b" * 64):
        folder.allow(Listing.VERIFIERS, key, "tcp://BigBox:7071", replace=True)
    folder.allow(Listing.VERIFIERS, "b" * 64, "tcp://other:7071")
    assert folder.verifier_at("tcp://bigbox:7071") == bytes.fromhex("b" * 64)
    assert len(folder.entries(Listing.VERIFIERS)) == 2
    assert folder.verifier_at("tcp://bigbox:7072") is None
    assert folder.verifier_at("tcp://127.0.0.1:7071") == folder.identity().public


@pytest.mark.parametrize("words", ["HOST box:abc", "--address box:abc"])
def test_pair_names_what_was_typed(tmp_path: Path, words: str):
    option, typed = words.split()
    given = [typed, "1234-5678"] if option == "HOST" else [option, typed]
    done = CliRunner().invoke(main, ["pair", *given, "--keys", str(tmp_path)])
    assert done.exit_code == 78
    assert f"{option} '{typed}' is not an address: write HOST or HOST:PORT" in done.stderr


def test_pair_takes_the_key_that_the_daemon_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for module in (keys, paths):
        monkeypatch.setattr(
            module, "config_folders", lambda: [tmp_path / "user", tmp_path / "system"]
        )
    KeyFolder(tmp_path / "system" / "keys").new()
    assert CliRunner().invoke(main, ["pair", "127.0.0.1:1", "1234-5678"]).exit_code == 69
    assert not (tmp_path / "user").exists()


# --- what kind of way an address means

NAMED = {"everywhere": "0.0.0.0", "all-of-six": "::", "mapped": "::ffff:0.0.0.0"}
EVERYWHERE = [
    "*",
    "0.0.0.0",
    "0",
    "0.0",
    "0x0",
    "[::]",
    "[::0]",
    "[0:0:0:0:0:0:0:0]",
    "[::ffff:0.0.0.0]",
    *NAMED,
]
BEYOND = [
    "192.0.2.1",
    "example.org",
    "[2001:db8::1]",
    "[::ffff:192.168.1.5]",
    "eth0",
    "localhost.example.org",
]


@pytest.fixture(autouse=True)
def _names(monkeypatch: pytest.MonkeyPatch) -> None:
    resolve = socket.getaddrinfo

    def lookup(host: str, *more: object, flags: int = 0, **options: object) -> object:
        known = NAMED.get(host, host)
        return resolve(known, *more, flags=flags | socket.AI_NUMERICHOST, **options)

    monkeypatch.setattr(socket, "getaddrinfo", lookup)


@pytest.mark.parametrize("host", EVERYWHERE)
@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.parametrize("insecure", [False, True])
@pytest.mark.fault("E6.68")
def test_never_on_every_network(host: str, keyed: bool, insecure: bool):
    if host in NAMED:  # a name is judged by the numbers that it means
        with pytest.raises(ConfigError, match="every network"):
            numbers_here(host, "--bind")
        return
    with pytest.raises(ConfigError, match="every network"):
        check_bind(f"tcp://{host}:7071", keyed=keyed, insecure=insecure)
    with pytest.raises(ConfigError, match="every network"):
        check_one_network(f"tcp://{host}:7072", "--address")


@pytest.mark.parametrize("host", BEYOND)
@pytest.mark.fault("E6.68")
def test_beyond_loopback_needs_keys_or_a_word(host: str):
    for check, option in ((check_bind, "--bind"), (check_connect, "--connect")):
        with pytest.raises(ConfigError, match=rf"{option}.*specmesh keys new.*--insecure-no-auth"):
            check(f"tcp://{host}:7071", keyed=False, insecure=False)
        check(f"tcp://{host}:7071", keyed=True, insecure=False)
        check(f"tcp://{host}:7071", keyed=False, insecure=True)


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.8.9.10", "localhost", "[::1]", "[::ffff:127.0.0.1]"]
)
def test_loopback_needs_nothing(host: str):
    for check in (check_bind, check_connect):
        check(f"tcp://{host}:7071", keyed=False, insecure=False)
        check(f"tcp://{host}:7071", keyed=True, insecure=False)


@pytest.mark.parametrize("option", ["--rpc", "--bind"])
def test_rpc_has_no_keys(option: str):
    for insecure in (False, True):
        check_rpc("127.0.0.1:50052", option, insecure=insecure)
        check_rpc("localhost:50052", option, insecure=insecure)
        with pytest.raises(ConfigError, match=f"{option}.*every network"):
            check_rpc("0.0.0.0:50052", option, insecure=insecure)
    for host in ("192.0.2.1", "example.org"):
        check_rpc(f"{host}:50052", option, insecure=True)
        with pytest.raises(
            ConfigError, match=rf"{option} {host}.*neither keys nor encryption.*--insecure-rpc"
        ):
            check_rpc(f"{host}:50052", option, insecure=False)


@pytest.mark.parametrize(
    "address", ["", "box", "box:", ":1", "box:0", "box:65536", "box:x", "[::1]:1", "tcp://box:1"]
)
def test_no_address_for_rpc(address: str):
    """llama.cpp takes HOST:PORT with one colon, and ends the process over others."""
    with pytest.raises(ConfigError) as told:
        check_rpc(address, "--rpc", insecure=True)
    assert told.value.remedy == "write HOST:PORT, like 127.0.0.1:50052"
